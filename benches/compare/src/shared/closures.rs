//! [`Timer`], with closures that capture eight bytes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use delaywheel::{Timeout, Timer, TimerBuilder, TimerStats};

use super::{Accountable, Expectation, SharedTimer, counting};
use crate::Promises;

/// [`Timer`], whose closures count.
#[derive(Debug, Clone)]
pub struct Closures {
    timer: Timer,
    /// Never freed, so that a closure captures no more than where it is, and counts no references.
    ran: &'static AtomicU64,
}

impl Closures {
    /// Makes one with these settings.
    ///
    /// # Panics
    ///
    /// If the settings are refused.
    #[must_use]
    pub fn new(settings: TimerBuilder) -> Self {
        let timer = settings.build().expect("the settings are valid");
        Self { timer, ran: Box::leak(Box::new(AtomicU64::new(0))) }
    }
}

impl SharedTimer for Closures {
    type Timeout = Timeout;

    const NAME: &'static str = "closures";

    const PROMISES: Promises =
        Promises { scheme: "our timer, with a closure for each timeout", ..Promises::STRICT };

    #[inline]
    fn schedule(&self, delay: Duration) -> Timeout {
        let callback = counting(self.ran);
        self.timer.schedule(delay, callback).expect("the timer takes 2^32 timeouts")
    }

    #[inline]
    fn replace(&self, timeout: &mut Timeout, delay: Duration) -> bool {
        let was_pending = timeout.cancel();
        *timeout = self.schedule(delay);
        was_pending
    }

    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        let timeout = self.timer.schedule(delay, move || expectation.meet());
        drop(timeout.expect("the timer takes 2^32 timeouts"));
    }
}

impl Accountable for Closures {
    #[inline]
    fn reset(&self, timeout: &Timeout, delay: Duration) -> bool {
        timeout.reset(delay)
    }

    fn ran(&self) -> u64 {
        self.ran.load(Ordering::Relaxed)
    }

    fn stats(&self) -> TimerStats {
        self.timer.stats()
    }

    fn shutdown(&self) -> usize {
        self.timer.shutdown().len()
    }
}
