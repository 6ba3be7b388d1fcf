//! What the contestants are given: deadlines and victims from a seed, drawn before anything is
//! timed.

use fastrand::Rng;

/// Ticks of a second; a tick is a millisecond.
pub const SECOND: u64 = 1_000;

/// Ticks of a day.
pub const DAY: u64 = 86_400 * SECOND;

/// How far ahead deadlines lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Uniform in 1 ms to 60 s.
    Minute,
    /// Log-uniform in 1 ms to 30 days.
    Month,
    /// Log-uniform in 1 s to 1 year.
    Year,
}

impl Spread {
    /// What it is called in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "uniform",
            Self::Month => "log-uniform",
            Self::Year => "sparse",
        }
    }

    fn delay(self, rng: &mut Rng) -> u64 {
        match self {
            Self::Minute => rng.u64(1..=60 * SECOND),
            Self::Month => log_uniform(rng, 1, 30 * DAY),
            Self::Year => log_uniform(rng, SECOND, 365 * DAY),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "between 1 and a year of ticks, which f64 counts exactly"
)]
fn log_uniform(rng: &mut Rng, least: u64, greatest: u64) -> u64 {
    let (least, greatest) = ((least as f64).ln(), (greatest as f64).ln());
    (least + rng.f64() * (greatest - least)).exp() as u64
}

/// A timeout to cancel or reset, and the deadline that is inserted in its stead, or that it moves
/// to.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// Which of the pending timeouts it is.
    pub victim: u32,
    /// The new deadline.
    pub deadline: u64,
}

/// A source of deadlines and victims. Two of the same seed yield the same.
#[derive(Debug, Clone)]
pub struct Workload {
    spread: Spread,
    rng: Rng,
}

impl Workload {
    /// Makes a source.
    #[must_use]
    pub fn new(spread: Spread, seed: u64) -> Self {
        Self { spread, rng: Rng::with_seed(seed) }
    }

    /// Draws deadlines as seen from tick 0.
    pub fn deadlines(&mut self, count: u32) -> Vec<u64> {
        (0..count).map(|_| self.spread.delay(&mut self.rng)).collect()
    }

    /// Draws pairs over this many pending timeouts, their deadlines as seen from tick 0.
    pub fn pairs(&mut self, pending: u32, count: u32) -> Vec<Pair> {
        let Self { spread, rng } = self;
        let pair = |_| Pair { victim: rng.u32(0..pending), deadline: spread.delay(rng) };
        (0..count).map(pair).collect()
    }

    /// Draws an order of this many timeouts.
    pub fn order(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<_> = (0..count).collect();
        self.rng.shuffle(&mut order);
        order
    }

    /// Draws victims among this many pending timeouts.
    pub fn victims(&mut self, pending: u32, count: u32) -> Vec<u32> {
        (0..count).map(|_| self.rng.u32(0..pending)).collect()
    }
}
