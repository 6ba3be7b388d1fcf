//! [`Timer`] with closures that capture eight bytes.

use delaywheel::{TimeoutHandle, Timer};

use super::settle_own;
use crate::prelude::*;

/// [`Timer`], whose closures count.
#[derive(Clone)]
pub struct Closures {
    timer: Timer,
    ran: Counter,
}

impl SharedTimer for Closures {
    type Timeout = TimeoutHandle;

    const NAME: &'static str = "delaywheel closures";

    fn start() -> Self {
        Self { timer: Timer::new(), ran: Counter::new() }
    }

    fn schedule(&self, delay: Duration) -> TimeoutHandle {
        let ran = self.ran;
        self.timer.schedule(delay, move || ran.add()).expect("the timer takes 2^32 timeouts")
    }

    fn replace(&self, timeout: &mut TimeoutHandle, delay: Duration) -> bool {
        let was_pending = timeout.cancel();
        *timeout = self.schedule(delay);
        was_pending
    }

    fn reset(&self, timeout: &mut TimeoutHandle, delay: Duration) -> bool {
        timeout.reset(delay)
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        let timeout = self.timer.schedule(delay, move || note.run());
        drop(timeout.expect("the timer takes 2^32 timeouts"));
    }

    fn settle(&self, scheduled: u64, cancelled: u64) {
        let returned = self.timer.shutdown().len();
        settle_own(Self::NAME, returned, &self.timer.stats(), self.ran, [scheduled, cancelled]);
    }
}
