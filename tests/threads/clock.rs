//! A clock with faults: it stands still, steps back and jumps ahead.
//!
//! No timeout may run before the library has read a time at or after its deadline. So the clock
//! keeps the latest time that the library read. Reads of the load do not count.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use delaywheel::Clock;
use parking_lot::{RwLock, RwLockReadGuard};

/// A faulty clock around that of the system.
#[derive(Debug)]
pub(crate) struct FaultyClock {
    begun: Instant,
    /// Nanoseconds ahead of the system's clock.
    ahead: AtomicI64,
    /// The time while the clock stands still; 0 otherwise.
    stopped: AtomicU64,
    /// The latest time that the library read.
    shown: AtomicU64,
    faults: AtomicU64,
    /// Read-locked from a look of the load to the look of the library, so that the first is not
    /// later than the second; write-locked for a fault.
    weather: RwLock<()>,
}

impl FaultyClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            ahead: AtomicI64::new(0),
            stopped: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            weather: RwLock::new(()),
        })
    }

    /// Prevents faults while the load schedules. A call that runs within another one of the thread
    /// has the guard of that one.
    pub(crate) fn calm(&self) -> Calm<'_> {
        let is_outer = !IS_CALM.replace(true);
        Calm(is_outer.then(|| self.weather.read()))
    }

    /// The present, in nanoseconds since the clock was made.
    pub(crate) fn look(&self) -> u64 {
        match self.stopped.load(SeqCst) {
            0 => nanos(self.begun.elapsed()).saturating_add_signed(self.ahead.load(SeqCst)),
            stopped => stopped,
        }
    }

    pub(crate) fn instant(&self, at: u64) -> Option<Instant> {
        self.begun.checked_add(Duration::from_nanos(at))
    }

    /// The latest time that the library read.
    pub(crate) fn shown(&self) -> u64 {
        self.shown.load(SeqCst)
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(SeqCst)
    }

    /// Makes a fault, or ends a standstill.
    pub(crate) fn fail(&self, random: &mut fastrand::Rng) {
        let _alone = self.weather.write();
        self.faults.fetch_add(1, SeqCst);
        let far = i64::from(random.u32(..500_000_000));
        match random.u32(..8) {
            _ if self.stopped.load(SeqCst) > 0 => self.stopped.store(0, SeqCst),
            0..3 => self.stopped.store(self.look().max(1), SeqCst),
            // A time before the start shows as the start.
            3..6 => drop(self.ahead.fetch_sub(far / 4, SeqCst)),
            _ => drop(self.ahead.fetch_add(far, SeqCst)),
        }
    }

    pub(crate) fn go_on(&self) {
        self.stopped.store(0, SeqCst);
    }
}

thread_local! {
    /// Whether this thread has a guard against faults. A second one could wait for a fault that
    /// waits for the first.
    static IS_CALM: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct Calm<'a>(Option<RwLockReadGuard<'a, ()>>);

impl Drop for Calm<'_> {
    fn drop(&mut self) {
        if self.0.is_some() {
            IS_CALM.set(false);
        }
    }
}

impl Clock for FaultyClock {
    fn now(&self) -> Instant {
        let now = self.look();
        self.shown.fetch_max(now, SeqCst);
        self.begun + Duration::from_nanos(now)
    }
}

/// Nanoseconds of a duration, at most `u64::MAX`.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
