//! The sleep of the driver: until a time, a wake-up by another thread, or a step of the clock.

use std::{
    mem,
    sync::{Arc, LazyLock, Weak},
    time::{Duration, Instant},
};

use delaywheel::{BootClock, Clock, StepListener, watch_steps};
use parking_lot::{Condvar, Mutex};

/// Returns the time since the first call, suspensions included.
pub(crate) fn monotonic() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(|| BootClock.now());
    let start = *START;
    BootClock.now().saturating_duration_since(start)
}

/// A sleep that other threads and steps of the system's clock interrupt.
#[derive(Debug)]
pub(crate) struct Alarm {
    bell: Arc<Bell>,
    /// How often to end a sleep, if the system does not tell of steps.
    recheck: Option<Duration>,
}

#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<Rung>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    is_rung: bool,
    has_stepped: bool,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        let bell = Arc::<Bell>::default();
        let listener: Weak<Bell> = Arc::downgrade(&bell);
        Self { bell, recheck: watch_steps(listener) }
    }

    /// Ends the present sleep, or the next one if no thread sleeps.
    pub(crate) fn ring(&self) {
        self.bell.rung.lock().is_rung = true;
        self.bell.wake.notify_one();
    }

    /// Sleeps for at most `limit`. Returns whether the clock has been set, or a suspension ended.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> bool {
        let mut rung = self.bell.rung.lock();
        if !rung.is_rung && !rung.has_stepped {
            match limit {
                None => self.bell.wake.wait(&mut rung),
                Some(limit) => {
                    let limit = limit.min(self.recheck.unwrap_or(Duration::MAX));
                    self.bell.wake.wait_for(&mut rung, limit);
                }
            }
        }
        mem::take(&mut *rung).has_stepped
    }
}

impl StepListener for Bell {
    fn clock_has_stepped(&self) {
        self.rung.lock().has_stepped = true;
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_and_a_step_each_end_one_sleep() {
        let alarm = Alarm::new();
        alarm.ring();
        assert!(!alarm.sleep(None), "the clock was not set");
        alarm.bell.clock_has_stepped();
        alarm.ring();
        assert!(alarm.sleep(None), "the clock was set");
        assert!(!alarm.sleep(Some(Duration::ZERO)), "it was set once");
    }
}
