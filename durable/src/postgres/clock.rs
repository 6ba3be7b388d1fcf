//! The clock of the database server, as this process knows it.

use std::time::{Duration, Instant, SystemTime};

use delaywheel::Clock;
use parking_lot::Mutex;

use crate::time::WallTime;

/// The least step that is noted. Less may be the delay of an earlier answer, or clocks that do not
/// run alike.
const STEP: Duration = Duration::from_millis(100);

/// Time for which a step hides shorter ones. A lease that is longer than this is rare.
const LONG: Duration = Duration::from_secs(3_600);

/// Shows a time that the server's clock has passed already, by less than a round trip. It may be
/// ahead by less than [`STEP`], and stands still until it is not. It runs with the monotonic clock
/// of this process, so this machine's wall clock does not matter.
#[derive(Debug)]
pub(super) struct ServerClock {
    /// An upper bound of the time that the server's clock showed at an instant. If the instant is
    /// yet to come, this clock was ahead, and stands still until then.
    anchor: Mutex<(Instant, WallTime)>,
    /// When a step forward was found, and its length: the latest, or a longer one before it.
    step: Mutex<Option<(Instant, Duration)>>,
}

impl ServerClock {
    /// `shown` is a time of the server that has just arrived.
    pub(super) fn new(shown: WallTime) -> Self {
        Self { anchor: Mutex::new((Instant::now(), shown)), step: Mutex::default() }
    }

    fn time(&self) -> WallTime {
        Self::since(*self.anchor.lock())
    }

    fn since((instant, shown): (Instant, WallTime)) -> WallTime {
        // Rounded down, as the present always is.
        let passed =
            Duration::from_micros(u64::try_from(instant.elapsed().as_micros()).unwrap_or(0));
        shown.saturating_add(passed)
    }

    /// Takes the answer to a request that was sent at an instant. One that is behind by less than
    /// it took may have arrived late.
    pub(super) fn adjust(&self, sent: Instant, shown: WallTime) {
        let mut anchor = self.anchor.lock();
        let expected = Self::since(*anchor);
        let by = shown.since(expected);
        if by >= STEP {
            // Before the clock shows it. A shorter one makes no longer one look new.
            let mut step = self.step.lock();
            let longer = step.filter(|(found, old)| *old > by && found.elapsed() < LONG);
            *step = longer.or_else(|| Some((Instant::now(), by)));
        }
        let ahead = expected.since(shown);
        if shown > expected || ahead > sent.elapsed() {
            let wait = if ahead < STEP { ahead } else { Duration::ZERO };
            *anchor = (Instant::now() + wait, shown.saturating_add(wait));
        }
    }

    /// Returns whether a lease that seems to have ended may be valid for its worker: the clock was
    /// found to have stepped forward, and the worker has had no time to renew it.
    pub(super) fn may_mislead(&self, lease: Duration) -> bool {
        let step = *self.step.lock();
        step.is_some_and(|(found, by)| by > lease / 10 && found.elapsed() < lease)
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn system_time(&self) -> SystemTime {
        self.time().to_system_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_after_a_step_is_no_step_of_that_length() {
        let start = WallTime::from_micros(1 << 50).expect("valid");
        let (clock, lease) = (ServerClock::new(start), Duration::from_secs(30));
        let shown = start.saturating_add(lease);
        clock.adjust(Instant::now(), shown);
        assert!(clock.may_mislead(lease));
        let earlier = |found: Instant| found.checked_sub(lease).expect("an instant");
        let step = clock.step.lock().take();
        *clock.step.lock() = step.map(|(found, by)| (earlier(found), by));
        clock.adjust(Instant::now(), shown.saturating_add(2 * STEP));
        assert!(!clock.may_mislead(lease));
    }

    /// This machine's clock runs faster than that of the server.
    #[test]
    fn a_small_correction_is_no_step_back() {
        let start = WallTime::from_micros(1 << 50).expect("valid");
        let clock = ServerClock::new(start);
        for _ in 0..2 {
            // It stands still, so no delay of this test moves it.
            *clock.anchor.lock() = (Instant::now() + LONG, start);
            let sent = Instant::now();
            clock.adjust(sent, start.saturating_sub(STEP / 2));
            let (right, shown) = *clock.anchor.lock();
            assert_eq!(shown, start);
            assert!((sent + STEP / 2..=Instant::now() + STEP / 2).contains(&right));
        }
    }

    #[test]
    fn a_clock_that_is_ahead_follows_a_reading_that_took_less_time() {
        let start = WallTime::from_micros(1 << 50).expect("valid");
        let clock = ServerClock::new(start);
        let shown = start.saturating_sub(Duration::from_millis(500));
        let sent = Instant::now().checked_sub(Duration::from_secs(1)).expect("an instant");
        clock.adjust(sent, shown);
        assert!(clock.time() >= start, "it may have taken that long to arrive");
        clock.adjust(Instant::now(), shown);
        assert!(clock.time() < start);
    }
}
