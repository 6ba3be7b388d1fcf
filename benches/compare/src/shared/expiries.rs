//! When timeouts were due and when they came, of timers that need not be exact.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::delivered::nanos;

/// Takes down when each of a number of timeouts comes. All times are nanoseconds since the origin.
///
/// Unlike [`Delivered`](crate::delivered::Delivered) it bears timers that are early, lose timeouts
/// or double them, and tells which.
#[derive(Debug)]
pub struct Expiries {
    origin: Instant,
    entries: Box<[Entry]>,
}

#[derive(Debug, Default)]
struct Entry {
    due: AtomicU64,
    /// When it came the latest time.
    at: AtomicU64,
    /// How often it came.
    times: AtomicU32,
}

impl Expiries {
    /// Makes room for as many, and sets the origin to the present.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Arc<Self> {
        let entries = (0..capacity).map(|_| Entry::default()).collect();
        Arc::new(Self { origin: Instant::now(), entries })
    }

    /// Takes down that a timeout is due when this delay is over from now, so it is to be scheduled
    /// at once.
    ///
    /// # Panics
    ///
    /// If there is no room for an entry of this index.
    #[must_use]
    pub fn expect(self: &Arc<Self>, index: u32, delay: Duration) -> Expectation {
        let due = nanos(self.origin.elapsed() + delay);
        self.entries[index as usize].due.store(due, Ordering::Relaxed);
        Expectation { expiries: Arc::clone(self), index }
    }

    /// Takes down that a timeout has come.
    ///
    /// # Panics
    ///
    /// If there is no entry of this index.
    #[inline]
    pub fn take_down(&self, index: u32) {
        let at = nanos(self.origin.elapsed());
        let entry = &self.entries[index as usize];
        entry.at.store(at, Ordering::Relaxed);
        entry.times.fetch_add(1, Ordering::Release);
    }

    /// Waits until each timeout has come, or until this much time has passed since the last was
    /// due. Returns what befell each.
    pub fn settle(&self, patience: Duration) -> Vec<Expiry> {
        let last = self.entries.iter().map(|entry| entry.due.load(Ordering::Relaxed)).max();
        let end = self.origin + Duration::from_nanos(last.unwrap_or(0)) + patience;
        let has_come = |entry: &Entry| entry.times.load(Ordering::Acquire) > 0;
        while !self.entries.iter().all(has_come) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        self.entries.iter().map(Entry::outcome).collect()
    }
}

impl Entry {
    fn outcome(&self) -> Expiry {
        let times = self.times.load(Ordering::Acquire);
        let (due, at) = (self.due.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
        match times {
            0 => Expiry::Lost,
            1 if at < due => Expiry::Early(due - at),
            1 => Expiry::Late(at - due),
            _ => Expiry::Doubled,
        }
    }
}

/// What befell a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// It came so many nanoseconds before it was due.
    Early(u64),
    /// It came so many nanoseconds after it was due, or just then.
    Late(u64),
    /// It never came.
    Lost,
    /// It came more than once.
    Doubled,
}

/// A timeout that is to be taken down when it comes.
#[derive(Debug)]
pub struct Expectation {
    expiries: Arc<Expiries>,
    index: u32,
}

impl Expectation {
    /// Takes down that the timeout has come.
    #[inline]
    pub fn meet(&self) {
        self.expiries.take_down(self.index);
    }

    /// Where it is to be taken down, and as which.
    #[must_use]
    pub fn into_parts(self) -> (Arc<Expiries>, u32) {
        (self.expiries, self.index)
    }
}
