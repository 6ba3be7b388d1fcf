//! [`ValueTimer`], with values of eight bytes.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use delaywheel::{TimeoutKey, TimerBuilder, TimerStats, ValueTimer};

use super::{Accountable, Expectation, Expiries, SharedTimer};
use crate::Promises;

/// A value that stands for that of a user. Others are where a timeout is to be taken down.
const VALUE: u64 = u64::MAX;

/// [`ValueTimer`], whose handler counts.
#[derive(Debug, Clone)]
pub struct Typed {
    timer: ValueTimer<u64>,
    ran: Arc<AtomicU64>,
    /// Where the handler takes down timeouts that are expected; unset until one is.
    expiries: Arc<OnceLock<Arc<Expiries>>>,
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
        let expiries = Arc::new(OnceLock::<Arc<Expiries>>::new());
        let (counter, expected) = (Arc::clone(&ran), Arc::clone(&expiries));
        let handler = move |value| {
            counter.fetch_add(1, Ordering::Relaxed);
            if let (Ok(index), Some(expiries)) = (u32::try_from(value), expected.get()) {
                expiries.take_down(index);
            }
        };
        let timer = settings.build_with(handler).expect("the settings are valid");
        Self { timer, ran, expiries }
    }
}

impl SharedTimer for Typed {
    type Timeout = TimeoutKey;

    const NAME: &'static str = "typed";

    const PROMISES: Promises =
        Promises { scheme: "our timer, with a value for each timeout", ..Promises::STRICT };

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

    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        let (expiries, index) = expectation.into_parts();
        let place = self.expiries.get_or_init(|| Arc::clone(&expiries));
        assert!(Arc::ptr_eq(place, &expiries), "a typed timer expects timeouts in one place");
        let timeout = self.timer.schedule(delay, u64::from(index));
        timeout.expect("the timer takes 2^32 timeouts");
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
