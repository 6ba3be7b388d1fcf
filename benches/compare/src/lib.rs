//! Compares delaywheel with other timers: contestants, workloads, one runner and one report.
//!
//! `src/main.rs` is the runner. A contestant of [`timers`] runs in virtual time, with ticks of one
//! millisecond: the caller passes the time to it. A contestant of [`shared`] has threads and reads
//! the clock itself. The timed loops are one source for all contestants, and every loop asserts its
//! result.

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod bench;
pub mod figures;
pub mod measure;
pub mod os;
mod prelude;
pub mod purgatory;
pub mod report;
pub mod rows;
pub mod shared;
pub mod timers;
pub mod workload;

/// A set of timeouts, each with a payload of eight bytes and a deadline in ticks.
pub trait Timers {
    /// Names a timeout, to cancel or move it.
    type Key: Copy;

    const PROMISES: Promises;

    const NAME: &'static str = Self::PROMISES.name;

    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key;

    /// Removes a timeout. Returns its payload, or `None` if it was not pending.
    fn cancel(&mut self, key: Self::Key) -> Option<u64>;

    /// Moves a timeout, which may change its key. Returns `None` if it was not pending.
    fn reset(&mut self, key: Self::Key, deadline: u64) -> Option<Self::Key> {
        let payload = self.cancel(key)?;
        Some(self.insert(deadline, payload))
    }

    /// The tick at which to call [`advance`](Self::advance) next; `None` if nothing is pending.
    fn next_expiration(&mut self) -> Option<u64>;

    /// Lets time pass until `now` and hands out the payloads of due timeouts.
    fn advance(&mut self, now: u64, expired: impl FnMut(u64));

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a contestant whose caller counts tenths of its tick, which shows how it rounds.
    fn in_tenths() -> impl Timers
    where
        Self: Default,
    {
        Self::default()
    }
}

/// Limits of a contestant. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    pub name: &'static str,
    /// The longest delay; `None` if there is no limit below a thousand years.
    pub max_delay: Option<u64>,
    /// By how much a timeout may expire before its deadline.
    pub earliness: u64,
    /// By how much a timeout may expire after its deadline, by design.
    pub lateness: u64,
    /// Whether one advance hands out timeouts in the order of deadlines.
    pub ordered: bool,
    /// Whether the key of an ended timeout is recognised. If not, it may panic or name another
    /// timeout.
    pub safe_keys: bool,
    /// When it asks to be woken.
    pub wakes: Wakes,
    /// The greatest number of pending timeouts that is worth measuring, since more take minutes.
    pub largest: u32,
}

/// When a contestant asks to be woken while something is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakes {
    /// When it has something to do.
    WhenBusy,
    /// Also for cancelled timeouts, even if nothing is pending.
    ForCancelled,
    /// At least once in this many ticks. A year of that is estimated from a part.
    Every(u64),
}

impl Promises {
    /// No limits: any delay, any number, never early, never late, in order.
    pub const STRICT: Self = Self {
        name: "",
        max_delay: None,
        earliness: 0,
        lateness: 0,
        ordered: true,
        safe_keys: true,
        wakes: Wakes::WhenBusy,
        largest: u32::MAX,
    };

    /// Whether it accepts this many timeouts with delays of up to `max_delay`.
    pub fn admits(&self, pending: u32, max_delay: u64) -> bool {
        pending <= self.largest && self.max_delay.is_none_or(|longest| max_delay <= longest)
    }
}
