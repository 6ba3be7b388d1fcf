//! The crate `bitwheel`: wheels of arrays, for programs that accept inexact deadlines to avoid
//! waits.
//!
//! A timeout expires from the slot where it was put, however coarse; so it is early by up to the
//! span of a slot. If its slot is full, it goes into one of the next seven, and then is late; if
//! these are full too, into a tree that it checks every 32 ticks. Delays beyond its range wrap
//! around.
//!
//! The variant is the one that its authors call precise, with ticks of a millisecond, and with the
//! tree behind it, so that nothing is refused. Its handles may not be copied, so a slot map keeps
//! them.

use std::{
    fmt::{self, Debug, Formatter},
    time::{Duration, Instant},
};

use bitwheel::timer::{PreciseWheelWithFailover, Timer, TimerHandle};
use slotmap::DefaultKey;

use super::handles::{Handles, Payload};
use crate::{Promises, Timers, Wakes};

/// Ticks of the three wheels of 64 slots.
const RANGE: u64 = 1 << 18;

/// Ticks of a slot of the last wheel.
const COARSEST: u64 = 1 << 12;

/// Slots that it tries.
const PROBES: u64 = 8;

/// [`PreciseWheelWithFailover`].
pub struct BitWheel {
    wheel: Box<PreciseWheelWithFailover<Expiring>>,
    handles: Handles<TimerHandle>,
    /// The instant of tick 0.
    start: Instant,
    now: u64,
    /// Counted here, as the wheel's own count does not go down when a timeout fires.
    len: usize,
    collected: Vec<Payload>,
}

/// A timeout that appends its payload to the output of the poll.
struct Expiring(Payload);

impl Timer for Expiring {
    type Context = Vec<Payload>;

    #[inline]
    fn fire(&mut self, collected: &mut Vec<Payload>) {
        collected.push(self.0);
    }
}

impl Default for BitWheel {
    fn default() -> Self {
        let start = Instant::now();
        Self {
            wheel: PreciseWheelWithFailover::boxed_with_epoch(start),
            handles: Handles::default(),
            start,
            now: 0,
            len: 0,
            collected: Vec::new(),
        }
    }
}

impl Debug for BitWheel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("BitWheel").field("len", &self.len).finish_non_exhaustive()
    }
}

impl BitWheel {
    #[inline]
    fn instant(&self, tick: u64) -> Instant {
        self.start + Duration::from_millis(tick)
    }

    #[inline]
    fn take(&mut self, key: DefaultKey) -> Option<u64> {
        let timer = self.wheel.cancel(self.handles.take(key)?)?;
        self.len -= 1;
        Some(timer.0.payload)
    }
}

impl Timers for BitWheel {
    type Key = DefaultKey;

    const NAME: &'static str = "bitwheel";

    const PROMISES: Promises = Promises {
        scheme: "hierarchical wheel that never cascades, bitwheel",
        describes: "early by up to 4 s and late by up to 29 s, by the slot it finds; beyond 4 \
                    minutes it wraps round and is earlier still",
        max_delay: Some(RANGE - 1),
        earliness: COARSEST - 1,
        lateness: (PROBES - 1) * COARSEST,
        ordered: false,
        wakes: Wakes::ForCancelled,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let instant = self.instant(deadline);
        self.len += 1;
        self.handles.keep(payload, |payload| self.wheel.insert(instant, Expiring(payload)))
    }

    /// Takes out a timeout, unless its deadline is past: then it is left, though it may be pending.
    #[inline]
    fn cancel(&mut self, key: DefaultKey) -> bool {
        self.take(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        self.take(key).map(|payload| self.insert(deadline, payload))
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        let delay = self.wheel.peek_next_fire()?.duration_since(self.start).as_millis();
        Some(u64::try_from(delay).expect("deadlines were ticks of 64 bits").max(self.now))
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        self.now = now;
        let instant = self.instant(now);
        let count = self.wheel.poll(instant, &mut self.collected);
        self.len -= count;
        for Payload { key, payload } in self.collected.drain(..) {
            self.handles.take(key);
            expired(payload);
        }
        count
    }

    fn len(&self) -> usize {
        self.len
    }
}
