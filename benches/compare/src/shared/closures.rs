//! [`Timer`] with closures that capture eight bytes.

use std::{sync::atomic::AtomicU64, time::Duration};

use delaywheel::{Timeout, Timer, TimerBuilder};

use super::{Note, SharedTimer, counter, counting, settings, settle_own};
use crate::Promises;

/// [`Timer`], whose closures count.
#[derive(Debug, Clone)]
pub struct Closures {
    timer: Timer,
    ran: &'static AtomicU64,
}

impl Closures {
    /// Starts one with these settings.
    pub fn new(settings: TimerBuilder) -> Self {
        Self { timer: settings.build().expect("the settings are valid"), ran: counter() }
    }
}

impl SharedTimer for Closures {
    type Timeout = Timeout;

    const NAME: &'static str = "delaywheel closures";

    const PROMISES: Promises =
        Promises { scheme: "this crate, a closure for each timeout", ..Promises::STRICT };

    fn start() -> Self {
        Self::new(settings())
    }

    #[inline]
    fn schedule(&self, delay: Duration) -> Timeout {
        self.timer.schedule(delay, counting(self.ran)).expect("the timer takes 2^32 timeouts")
    }

    #[inline]
    fn replace(&self, timeout: &mut Timeout, delay: Duration) -> bool {
        let was_pending = timeout.cancel();
        *timeout = self.schedule(delay);
        was_pending
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
