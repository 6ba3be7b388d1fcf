//! Deadlines, delays and victims from a seed.

use crate::prelude::*;

/// Ticks of a second; a tick is a millisecond.
pub const SECOND: u64 = 1_000;

pub const DAY: u64 = 86_400 * SECOND;

pub const MICRO: Duration = Duration::from_micros(1);

pub const MILLI: Duration = Duration::from_millis(1);

/// Distribution of delays, in ticks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Uniform in 1 ms to 60 s.
    Minute,
    /// Log-uniform in 1 ms to 30 days.
    Month,
    /// Log-uniform in 1 s to 1 year.
    Year,
    /// Always the same.
    Fixed(u64),
}

impl Spread {
    /// Name in a path of the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "uniform",
            Self::Month => "log-uniform",
            Self::Year => "sparse",
            Self::Fixed(_) => "fixed",
        }
    }

    /// The longest delay.
    pub const fn max(self) -> u64 {
        match self {
            Self::Minute => 60 * SECOND,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
            Self::Fixed(delay) => delay,
        }
    }

    pub fn draw(self, rng: &mut Rng) -> u64 {
        match self {
            Self::Minute => rng.u64(1..=self.max()),
            Self::Month => log_uniform(rng, 1, self.max()),
            Self::Year => log_uniform(rng, SECOND, self.max()),
            Self::Fixed(delay) => delay,
        }
    }

    pub fn delays(self, rng: &mut Rng, count: u32) -> Vec<u64> {
        (0..count).map(|_| self.draw(rng)).collect()
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

/// Victims, each with the delay of its successor, drawn as they are used.
///
/// Victims that repeat would let the memory of timeouts settle into the order of the victims, which
/// makes some contestants two or three times as fast as they are in a program.
pub struct Draws<V, D> {
    draw: D,
    drawn: Vec<V>,
}

impl<V, D: FnMut() -> V> Draws<V, D> {
    pub fn new(draw: D) -> Self {
        Self { draw, drawn: Vec::new() }
    }

    /// The next values.
    pub fn chunk(&mut self, count: usize) -> &[V] {
        self.drawn.clear();
        self.drawn.extend((0..count).map(|_| (self.draw)()));
        &self.drawn
    }
}

/// A timeout to cancel or move, and the delay of its successor.
#[derive(Clone, Copy)]
pub struct Pair {
    pub victim: u32,
    /// The new delay in ticks.
    pub delay: u64,
}

/// The same for timers with a clock of their own.
#[derive(Clone, Copy)]
pub struct Victim {
    pub index: u32,
    pub delay: Duration,
}

impl Victim {
    /// Draws one of this many pending timeouts, and a delay of 1 to 60 s.
    pub fn draw(rng: &mut Rng, pending: u32) -> Self {
        Self { index: rng.u32(0..pending), delay: delay(rng) }
    }
}

/// Draws delays of 1 to 60 s.
pub fn delays(rng: &mut Rng, count: u32) -> Vec<Duration> {
    (0..count).map(|_| delay(rng)).collect()
}

fn delay(rng: &mut Rng) -> Duration {
    Duration::from_nanos(rng.u64(1_000_000_000..=60_000_000_000))
}

/// Draws instants in a span of time, in nanoseconds.
pub fn instants(rng: &mut Rng, count: u32, start: Duration, span: Duration) -> Vec<u64> {
    let (start, end) = (nanos(start), nanos(start + span));
    (0..count).map(|_| rng.u64(start..end)).collect()
}

pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a benchmark ends within centuries")
}

#[expect(clippy::cast_precision_loss, reason = "nothing here is counted up to 2^53")]
pub fn count(number: u64) -> f64 {
    number as f64
}

/// A number of timeouts as it stands in a path: `1e6`.
pub fn size(number: u32) -> String {
    let power = number.max(1).ilog10();
    if number == 10_u32.pow(power) { format!("1e{power}") } else { number.to_string() }
}
