//! Deadlines by the wall clock, which may be set.
//!
//! A wheel knows only ticks of the timer's clock. The *offset* is the time of the wall clock at the
//! start of tick 0. It gives each deadline by the wall clock a tick. Before a turn expires
//! timeouts, it reads both clocks. If the offset has changed, the turn moves all these timeouts.
//!
//! # Why no timeout is early
//!
//! A *look* reads the timer's clock, the wall clock, and the timer's clock again. So the offset is
//! between `least = wall - after` and `most = wall - before`. The tick of a timeout follows from
//! `least`, so the timeout is late by the duration of a look at most. A turn reads `now`, and then
//! looks. If the offset in use is above `most`, the turn moves the timeouts. So a due timeout has a
//! deadline of at most `now + most`. Since `now <= before`, the wall clock has shown the deadline.
//!
//! # Why no step is missed
//!
//! A thread that schedules first subscribes to notices of steps. Then it looks, inserts the timeout
//! at its place, and registers it. A turn between the look and the registration may have changed
//! the offset. The thread then marks the places as stale, and wakes the reaper.
//!
//! A thread takes this lock before those of shards. It wakes no thread and reads no clock of the
//! user while it holds the lock.

use std::{
    collections::HashMap,
    hash::Hash,
    mem,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use foldhash::quality::FixedState;

use crate::{sync::Mutex, tick::Tick, ticks::Nanos, timer::tick_clock::TickClock};

/// The timeouts of a timer whose deadlines are times of the wall clock, by their keys.
pub(super) struct Walls<K>(Mutex<State<K>>);

struct State<K> {
    /// The offset that gave the timeouts their places, in nanoseconds since 1970.
    offset: i128,
    /// The start of the latest look.
    seen: Nanos,
    /// Whether another offset gave some timeouts their places.
    is_stale: bool,
    /// Deadlines, in nanoseconds since 1970. Some of the timeouts have ended.
    deadlines: HashMap<K, i128, FixedState>,
    /// The number of deadlines at which `keep` removes those of ended timeouts.
    most: usize,
}

/// The place of a deadline in the wheel.
#[derive(Clone, Copy)]
pub(in crate::timer) struct Place {
    deadline: i128,
    offset: i128,
    pub(in crate::timer) tick: Tick,
}

/// Bounds of the offset, from one look at both clocks.
struct Look {
    before: Nanos,
    least: i128,
    most: i128,
}

impl<K: Copy + Eq + Hash> Walls<K> {
    pub(super) fn new() -> Self {
        let (deadlines, offset, seen) = (HashMap::default(), i128::MAX, Nanos::ZERO);
        Self(Mutex::new(State { offset, seen, is_stale: false, deadlines, most: LEAST_KEPT }))
    }

    /// Finds the place of a deadline. After the insert or reset, the caller [keeps](Self::keep) it.
    pub(super) fn place(&self, clock: &TickClock, deadline: SystemTime) -> Place {
        let look = Look::at(clock);
        let mut state = self.0.lock();
        state.follow(&look, clock);
        let (deadline, offset) = (since_1970(deadline), state.offset);
        Place { deadline, offset, tick: tick_of(clock, deadline, offset) }
    }

    /// Registers a timeout that has been placed. Returns whether a turn has to move timeouts.
    pub(super) fn keep(&self, key: K, place: Place, is_pending: impl Fn(K) -> bool) -> bool {
        let mut state = self.0.lock();
        state.is_stale |= state.offset != place.offset;
        state.deadlines.insert(key, place.deadline);
        if state.deadlines.len() >= state.most {
            state.deadlines.retain(|key, _| is_pending(*key));
            state.most = LEAST_KEPT.max(2 * state.deadlines.len());
        }
        state.is_stale
    }

    /// Moves all timeouts by `reset` if the wall clock was set, and forgets those for which it
    /// returns `false`. Call it before due timeouts expire.
    pub(super) fn follow(&self, clock: &TickClock, reset: impl Fn(K, Tick) -> bool) {
        let look = Look::at(clock);
        let mut state = self.0.lock();
        state.follow(&look, clock);
        if mem::take(&mut state.is_stale) {
            let offset = state.offset;
            state.deadlines.retain(|key, deadline| reset(*key, tick_of(clock, *deadline, offset)));
        }
    }

    /// Forgets a timeout, before it gets another deadline.
    #[cold]
    pub(super) fn forget(&self, key: K) {
        self.0.lock().deadlines.remove(&key);
    }

    /// Forgets all timeouts, at the end of the timer.
    pub(super) fn clear(&self) {
        self.0.lock().deadlines = HashMap::default();
    }
}

/// Least number of deadlines at which [`Walls::keep`] removes those of ended timeouts.
const LEAST_KEPT: usize = 16;

impl<K> State<K> {
    /// Adopts the offset of a look if the wall clock went back, or ahead by more than a tick.
    fn follow(&mut self, look: &Look, clock: &TickClock) {
        if look.before < self.seen {
            return;
        }
        self.seen = look.before;
        let is_behind = || self.offset + nanos(clock.ticks.tick()) < look.least;
        if self.offset > look.most || is_behind() {
            self.offset = look.least;
            self.is_stale = !self.deadlines.is_empty();
        }
    }
}

impl Look {
    /// Reads both clocks. Repeats a look of a tick or longer, which the scheduler has interrupted.
    fn at(clock: &TickClock) -> Self {
        let look = || {
            let before = clock.elapsed();
            let wall = since_1970(clock.system_time());
            let [most, least] = [before, clock.elapsed()].map(|at| wall - i128::from(at.get()));
            Self { before, least, most }
        };
        let is_short = |look: &Self| look.most - look.least < nanos(clock.ticks.tick());
        (0..3).map(|_| look()).find(is_short).unwrap_or_else(look)
    }
}

/// Returns the first tick at which the wall clock shows a deadline.
fn tick_of(clock: &TickClock, deadline: i128, offset: i128) -> Tick {
    let since_start = u64::try_from((deadline - offset).max(0)).unwrap_or(u64::MAX);
    clock.ticks.ceil(Nanos::new(since_start))
}

/// Returns the nanoseconds since 1970, which may be negative.
fn since_1970(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => nanos(after),
        Err(before) => -nanos(before.duration()),
    }
}

fn nanos(span: Duration) -> i128 {
    i128::try_from(span.as_nanos()).unwrap_or(i128::MAX)
}
