//! What these timers are given: delays and victims from a seed, drawn before anything is timed.

use std::time::Duration;

use fastrand::Rng;

/// A timeout to cancel, and the delay of the one that is scheduled in its stead.
#[derive(Debug, Clone, Copy)]
pub struct Victim {
    /// Which of the pending timeouts it is.
    pub index: u32,
    /// The delay of the next.
    pub delay: Duration,
}

/// A source of delays of 1 to 60 s. Two of the same seed yield the same.
#[derive(Debug, Clone)]
pub struct Load(Rng);

impl Load {
    /// Makes a source.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Draws delays.
    pub fn delays(&mut self, count: u32) -> Vec<Duration> {
        (0..count).map(|_| self.delay()).collect()
    }

    /// Draws victims among this many pending timeouts.
    pub fn victims(&mut self, pending: u32, count: u32) -> Vec<Victim> {
        (0..count).map(|_| Victim { index: self.0.u32(0..pending), delay: self.delay() }).collect()
    }

    fn delay(&mut self) -> Duration {
        Duration::from_nanos(self.0.u64(1_000_000_000..=60_000_000_000))
    }
}
