//! [`ValueTimer`], with values of eight bytes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use delaywheel::{TimeoutKey, TimerBuilder, TimerStats, ValueTimer};

use super::{Accountable, SharedTimer};

/// A value that stands for that of a user; nobody looks at it.
const VALUE: u64 = 7;

/// [`ValueTimer`], whose handler counts.
#[derive(Debug, Clone)]
pub struct Typed {
    timer: ValueTimer<u64>,
    ran: Arc<AtomicU64>,
}

impl Typed {
    /// Makes one with these settings.
    ///
    /// # Panics
    ///
    /// If the settings are refused.
    #[must_use]
    pub fn new(settings: TimerBuilder) -> Self {
        let ran = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&ran);
        let handler = move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        Self { timer: settings.build_with(handler).expect("the settings are valid"), ran }
    }
}

impl SharedTimer for Typed {
    type Timeout = TimeoutKey;

    const NAME: &'static str = "typed";

    #[inline]
    fn schedule(&self, delay: Duration) -> TimeoutKey {
        self.timer.schedule(delay, VALUE).expect("the timer takes 2^32 timeouts")
    }

    #[inline]
    fn replace(&self, timeout: &mut TimeoutKey, delay: Duration) -> bool {
        let was_pending = self.timer.cancel(*timeout).is_some();
        *timeout = self.schedule(delay);
        was_pending
    }
}

impl Accountable for Typed {
    #[inline]
    fn reset(&self, timeout: &TimeoutKey, delay: Duration) -> bool {
        self.timer.reset(*timeout, delay)
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
