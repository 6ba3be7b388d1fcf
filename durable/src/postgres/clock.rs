//! The clock of the database server, as this process knows it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::time::{WallClock, WallTime};

/// A greater difference is a step of the server's clock, not the delay of a message.
const STEP: Duration = Duration::from_secs(1);

/// Shows a time that the server's clock has passed already, by less than a round trip. It runs with
/// the monotonic clock of this process, so this machine's wall clock does not matter.
#[derive(Debug)]
pub(super) struct ServerClock {
    /// An upper bound of the time that the server's clock showed at an instant.
    anchor: Mutex<(Instant, WallTime)>,
}

impl ServerClock {
    /// `shown` is a time of the server that has just arrived.
    pub(super) fn new(shown: WallTime) -> Self {
        Self { anchor: Mutex::new((Instant::now(), shown)) }
    }

    /// Takes a newer reading. One that is a little behind took longer to arrive.
    pub(super) fn adjust(&self, shown: WallTime) {
        let expected = self.now();
        if shown > expected || expected.since(shown) > STEP {
            *self.anchor.lock() = (Instant::now(), shown);
        }
    }
}

impl WallClock for ServerClock {
    fn now(&self) -> WallTime {
        let (instant, shown) = *self.anchor.lock();
        // Rounded down, as any present.
        let passed =
            Duration::from_micros(u64::try_from(instant.elapsed().as_micros()).unwrap_or(0));
        shown.saturating_add(passed)
    }

    fn sleep_limit(&self) -> Option<Duration> {
        None
    }
}
