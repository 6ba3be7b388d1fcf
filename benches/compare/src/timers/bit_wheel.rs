//! The crate `bitwheel`: wheels of arrays for programs that prefer speed to exact times.
//!
//! A timeout expires from the slot where it was put, however coarse; so it is early by up to the
//! span of a slot. If its slot is full, it goes into one of the next seven, and then is late; if
//! these are full too, into a tree that is checked every 32 ticks. A delay beyond the range wraps
//! round.
//!
//! The variant is the one that its authors call precise, with ticks of a millisecond, and with the
//! tree, so that it refuses nothing. Its handles cannot be copied, so a slot map keeps them.

use bitwheel::timer::{PreciseWheelWithFailover, Timer, TimerHandle};

use super::handles::{Handles, Payload};
use crate::prelude::*;

/// Ticks of the three wheels of 64 slots.
const RANGE: u64 = 1 << 18;

/// Ticks of a slot of the last wheel.
const COARSEST: u64 = 1 << 12;

/// Slots that are searched for room.
const PROBES: u64 = 8;

/// [`PreciseWheelWithFailover`].
pub struct BitWheel {
    wheel: Box<PreciseWheelWithFailover<Expiring>>,
    handles: Handles<TimerHandle>,
    /// The instant of tick 0.
    start: Instant,
    now: u64,
    /// Counted here, since the wheel's own count does not go down when a timeout fires.
    len: usize,
    collected: Vec<Payload>,
}

/// A timeout that appends its payload to the context of the poll.
struct Expiring(Payload);

impl Timer for Expiring {
    type Context = Vec<Payload>;

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

impl BitWheel {
    fn instant(&self, tick: u64) -> Instant {
        self.start + Duration::from_millis(tick)
    }
}

impl Timers for BitWheel {
    type Key = DefaultKey;

    const PROMISES: Promises = Promises {
        name: "bitwheel",
        max_delay: Some(RANGE - 1),
        earliness: COARSEST - 1,
        lateness: (PROBES - 1) * COARSEST,
        ordered: false,
        wakes: Wakes::ForCancelled,
        ..Promises::STRICT
    };

    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let instant = self.instant(deadline);
        self.len += 1;
        self.handles.keep(payload, |payload| self.wheel.insert(instant, Expiring(payload)))
    }

    /// Does not remove a timeout whose deadline has passed, though it may be pending.
    fn cancel(&mut self, key: DefaultKey) -> Option<u64> {
        let timer = self.wheel.cancel(self.handles.take(key)?)?;
        self.len -= 1;
        Some(timer.0.payload)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        let delay = self.wheel.peek_next_fire()?.duration_since(self.start).as_millis();
        Some(u64::try_from(delay).expect("deadlines were ticks of 64 bits").max(self.now))
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        self.now = now;
        let instant = self.instant(now);
        self.len -= self.wheel.poll(instant, &mut self.collected);
        for Payload { key, payload } in self.collected.drain(..) {
            self.handles.take(key);
            expired(payload);
        }
    }

    fn len(&self) -> usize {
        self.len
    }
}
