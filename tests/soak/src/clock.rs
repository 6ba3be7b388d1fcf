//! A clock that goes wrong: it stands still, steps back and jumps ahead, when it is told to.
//!
//! Nothing may run before the clock has shown its deadline to the library. What it has shown at
//! most is therefore kept, and looks of the load at the clock do not count.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use delaywheel::Clock;
use parking_lot::{RwLock, RwLockReadGuard};

/// A faulty clock around that of the system; clones are the same clock.
#[derive(Debug, Clone)]
pub(crate) struct FaultyClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    begun: Instant,
    /// Nanoseconds by which it is ahead of the system's.
    ahead: AtomicI64,
    /// What it shows while it stands still; 0 if it does not.
    stopped: AtomicU64,
    /// The latest time that the library was shown.
    shown: AtomicU64,
    /// How often it went wrong.
    faults: AtomicU64,
    /// Held for reading between a look at the clock and what the library makes of its own, so that
    /// the first is not after the second; for writing where the clock goes wrong.
    weather: RwLock<()>,
}

impl FaultyClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            begun: Instant::now(),
            ahead: AtomicI64::new(0),
            stopped: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            weather: RwLock::new(()),
        }))
    }

    /// Keeps the clock from going wrong, for what is to have a deadline from now. Not to be called
    /// twice by a thread.
    pub(crate) fn calm(&self) -> RwLockReadGuard<'_, ()> {
        self.0.weather.read()
    }

    /// The present, in nanoseconds since the clock was made.
    pub(crate) fn look(&self) -> u64 {
        match self.0.stopped.load(SeqCst) {
            0 => nanos(self.0.begun.elapsed()).saturating_add_signed(self.0.ahead.load(SeqCst)),
            stopped => stopped,
        }
    }

    /// The instant that it shows at so many nanoseconds.
    pub(crate) fn instant(&self, at: u64) -> Option<Instant> {
        self.0.begun.checked_add(Duration::from_nanos(at))
    }

    /// The latest time that the library was shown.
    pub(crate) fn shown(&self) -> u64 {
        self.0.shown.load(SeqCst)
    }

    /// How often it went wrong.
    pub(crate) fn faults(&self) -> u64 {
        self.0.faults.load(SeqCst)
    }

    /// Goes wrong, or on if it stood still.
    pub(crate) fn fail(&self, random: &mut fastrand::Rng) {
        let _alone = self.0.weather.write();
        self.0.faults.fetch_add(1, SeqCst);
        let far = i64::from(random.u32(..500_000_000));
        match random.u32(..8) {
            _ if self.0.stopped.load(SeqCst) > 0 => self.0.stopped.store(0, SeqCst),
            0..3 => self.0.stopped.store(self.look().max(1), SeqCst),
            // Where it would be before its beginning it shows that.
            3..6 => drop(self.0.ahead.fetch_sub(far / 4, SeqCst)),
            _ => drop(self.0.ahead.fetch_add(far, SeqCst)),
        }
    }

    /// Goes on, if it stood still, and goes wrong no more.
    pub(crate) fn go_on(&self) {
        self.0.stopped.store(0, SeqCst);
    }
}

impl Clock for FaultyClock {
    fn now(&self) -> Instant {
        let now = self.look();
        self.0.shown.fetch_max(now, SeqCst);
        self.0.begun + Duration::from_nanos(now)
    }
}

/// Nanoseconds of a duration, as far as they go.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
