//! The crate `nexus-timer`: a hierarchical wheel over a slab, which rebalances as it is polled.
//!
//! Its poll collects due timeouts and moves others to finer levels. Its handles cannot be copied
//! and must be returned, so a slot map keeps them.
//!
//! It rounds deadlines and the present down to a tick, by a multiplication that is one tick short
//! at whole ticks. A caller that wakes at exactly a whole tick is woken in vain, and at once again.
//! Callers in real time hardly ever do, so the caller's ticks begin half a tick after its own here.
//! The rows `seen/` show how early it is: there the caller counts tenths of a tick, from the same
//! origin.

use nexus_timer::TimerHandle;

use super::handles::{Handles, Payload};
use crate::prelude::*;

/// Entries that its slab grows by; that of its documentation.
const CHUNK: usize = 4096;

/// Microseconds of its tick.
const MICROS: u64 = 1_000;

/// Five centuries, of the five and a half that 64 bits of nanoseconds count.
const MAX_DELAY: u64 = 500 * 365 * 86_400_000;

/// [`nexus_timer::Wheel`] of ticks of a millisecond.
pub struct NexusTimer {
    wheel: nexus_timer::Wheel<Payload>,
    handles: Handles<TimerHandle<Payload>>,
    /// The instant of tick 0.
    start: Instant,
    /// Length of the caller's tick.
    micros: u64,
    collected: Vec<Payload>,
}

impl Default for NexusTimer {
    fn default() -> Self {
        Self::with_origin(Duration::from_micros(500), 1)
    }
}

impl NexusTimer {
    /// Makes one whose ticks begin `offset` before ours; one of its own is `parts` of ours.
    fn with_origin(offset: Duration, parts: u64) -> Self {
        let epoch = Instant::now();
        Self {
            wheel: nexus_timer::Wheel::unbounded(CHUNK, epoch),
            handles: Handles::default(),
            start: epoch + offset,
            micros: MICROS / parts,
            collected: Vec::new(),
        }
    }

    fn instant(&self, tick: u64) -> Instant {
        self.start + Duration::from_micros(tick * self.micros)
    }
}

impl Drop for NexusTimer {
    /// Returns the handles, as the wheel requires.
    fn drop(&mut self) {
        for handle in self.handles.drain() {
            self.wheel.free(handle);
        }
    }
}

impl Timers for NexusTimer {
    type Key = DefaultKey;

    const PROMISES: Promises = Promises {
        name: "nexus_timer",
        max_delay: Some(MAX_DELAY),
        earliness: 1,
        ordered: false,
        ..Promises::STRICT
    };

    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let instant = self.instant(deadline);
        self.handles.keep(payload, |payload| self.wheel.schedule(instant, payload))
    }

    fn cancel(&mut self, key: DefaultKey) -> Option<u64> {
        self.wheel.cancel(self.handles.take(key)?).map(|timeout| timeout.payload)
    }

    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        let instant = self.instant(deadline);
        let by = |handle| self.wheel.reschedule(handle, instant);
        self.handles.replace(key, by).map(|()| key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        let delay = self.wheel.next_deadline()?.saturating_duration_since(self.start);
        let ticks = delay.as_nanos().div_ceil(1_000 * u128::from(self.micros));
        Some(u64::try_from(ticks).expect("deadlines were ticks of 64 bits"))
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        let instant = self.instant(now);
        self.wheel.poll_and_rebalance(instant, &mut self.collected);
        for Payload { key, payload } in self.collected.drain(..) {
            if let Some(handle) = self.handles.take(key) {
                self.wheel.free(handle);
            }
            expired(payload);
        }
    }

    fn len(&self) -> usize {
        self.wheel.len()
    }

    fn in_tenths() -> impl Timers {
        Self::with_origin(Duration::ZERO, TENTHS)
    }
}
