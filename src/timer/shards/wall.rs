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
//! A thread that schedules first subscribes to notices of steps. Then it looks. In one hold of the
//! lock, it places, inserts and registers the timeout, by the offset of the latest look of any
//! thread. So no turn finds a timeout at the place of an offset that has passed. If the thread
//! itself has noticed a step, it wakes the reaper.
//!
//! The latest look is the last that has begun. A turn whose look is older also uses that offset,
//! which was valid later than the `now` of the turn.
//!
//! A thread takes this lock before those of shards. It wakes the reaper after the release, and
//! reads no clock of the user while it holds the lock.

use std::{
    collections::HashMap,
    hash::Hash,
    mem,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use foldhash::quality::FixedState;

use crate::{
    sync::{AtomicU64, Mutex, Ordering},
    tick::Tick,
    ticks::Nanos,
    timer::tick_clock::TickClock,
};

/// The timeouts of a timer whose deadlines are times of the wall clock, by their keys.
pub(super) struct Walls<K> {
    state: Mutex<State<K>>,
    /// The number of looks that have begun. Clocks that step back do not tell their order.
    looks: AtomicU64,
}

struct State<K> {
    /// The offset that gave the timeouts their places, in nanoseconds since 1970.
    offset: i128,
    /// The number of the latest look.
    seen: u64,
    /// Whether another offset gave some timeouts their places.
    is_stale: bool,
    /// Deadlines, in nanoseconds since 1970. Some of the timeouts have ended.
    deadlines: HashMap<K, i128, FixedState>,
    /// The number of deadlines at which `keep` removes those of ended timeouts.
    most: usize,
}

/// Bounds of the offset, from one look at both clocks.
struct Look {
    number: u64,
    least: i128,
    most: i128,
}

impl<K: Copy + Eq + Hash> Walls<K> {
    pub(super) fn new() -> Self {
        let (deadlines, offset) = (HashMap::default(), i128::MAX);
        let state = State { offset, seen: 0, is_stale: false, deadlines, most: LEAST_KEPT };
        Self { state: Mutex::new(state), looks: AtomicU64::new(0) }
    }

    /// Looks at both clocks.
    fn look(&self, clock: &TickClock) -> Look {
        Look::at(clock, self.looks.fetch_add(1, Ordering::AcqRel))
    }

    /// Lets `put` insert or move a timeout at the place of its deadline, and registers it. Returns
    /// the result of `put`, and whether a turn has to move timeouts.
    pub(super) fn put<E>(
        &self,
        clock: &TickClock,
        deadline: SystemTime,
        is_pending: impl Fn(K) -> bool,
        put: impl FnOnce(Tick) -> Result<K, E>,
    ) -> (Result<K, E>, bool) {
        let look = self.look(clock);
        let mut state = self.state.lock();
        state.follow(&look, clock);
        let deadline = since_1970(deadline);
        let put = put(tick_of(clock, deadline, state.offset));
        if let Ok(key) = &put {
            state.deadlines.insert(*key, deadline);
            if state.deadlines.len() >= state.most {
                state.forget_ended(is_pending);
            }
        }
        (put, state.is_stale)
    }

    /// Moves all timeouts by `reset` if the wall clock was set, and forgets those for which it
    /// returns `false`. Call it before due timeouts expire.
    pub(super) fn follow(&self, clock: &TickClock, mut reset: impl FnMut(K, Tick) -> bool) {
        let look = self.look(clock);
        let mut state = self.state.lock();
        state.follow(&look, clock);
        if mem::take(&mut state.is_stale) {
            let offset = state.offset;
            state.deadlines.retain(|key, deadline| reset(*key, tick_of(clock, *deadline, offset)));
        }
    }

    /// Lets `put` move a timeout. Forgets the timeout if `put` returns `true` as well.
    #[cold]
    pub(super) fn leave<R>(&self, key: K, put: impl FnOnce() -> (R, bool)) -> R {
        let mut state = self.state.lock();
        let (result, leaves) = put();
        if leaves {
            state.deadlines.remove(&key);
        }
        result
    }

    /// Frees the memory of timeouts that have ended.
    pub(super) fn shrink(&self, is_pending: impl Fn(K) -> bool) {
        let mut state = self.state.lock();
        state.forget_ended(is_pending);
        state.deadlines.shrink_to_fit();
    }

    /// Forgets all timeouts, at the end of the timer.
    pub(super) fn clear(&self) {
        self.state.lock().deadlines = HashMap::default();
    }
}

/// Least number of deadlines at which [`Walls::put`] removes those of ended timeouts.
const LEAST_KEPT: usize = 16;

impl<K: Copy> State<K> {
    fn forget_ended(&mut self, is_pending: impl Fn(K) -> bool) {
        self.deadlines.retain(|key, _| is_pending(*key));
        self.most = LEAST_KEPT.max(2 * self.deadlines.len());
    }

    /// Adopts the offset of a look if the wall clock went back, or ahead by more than a tick.
    fn follow(&mut self, look: &Look, clock: &TickClock) {
        if look.number < self.seen {
            return;
        }
        self.seen = look.number;
        let is_behind = || self.offset + nanos(clock.ticks.tick()) < look.least;
        if self.offset > look.most || is_behind() {
            self.offset = look.least;
            self.is_stale = !self.deadlines.is_empty();
        }
    }
}

impl Look {
    /// Reads both clocks. Repeats a look of a tick or longer, which the scheduler has interrupted.
    fn at(clock: &TickClock, number: u64) -> Self {
        let look = || {
            let before = clock.elapsed();
            let wall = since_1970(clock.system_time());
            let [most, least] = [before, clock.elapsed()].map(|at| wall - i128::from(at.get()));
            Self { number, least, most }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        clock::{Clock, ManualClock},
        timer::{Timer, ValueTimer},
    };

    #[test]
    fn a_newer_look_counts_if_the_wall_clock_went_back_or_ahead_by_more_than_a_tick() {
        let clock = TickClock::new(Some(Arc::new(ManualClock::new())), Duration::from_millis(1));
        let tick = 1_000_000;
        for (number, step, is_followed) in
            [(5, 0, false), (5, tick, false), (5, tick + 1, true), (5, -1, true), (4, -1, false)]
        {
            let deadlines = [(1, 1)].into_iter().collect();
            let mut state = State { offset: 9, seen: 5, is_stale: false, deadlines, most: 2 };
            state.follow(&Look { number, least: 9 + step, most: 9 + step }, &clock);
            let offset = if is_followed { 9 + step } else { 9 };
            assert_eq!((state.offset, state.is_stale), (offset, is_followed), "{number}, {step}");
        }
    }

    #[test]
    fn a_shrink_frees_the_memory_of_times_that_have_passed() {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build_with(drop);
        let timer: ValueTimer<u32> = timer.expect("the settings are valid");
        let (now, second) = (clock.system_time(), Duration::from_secs(1));
        for value in 0..10_000 {
            timer.schedule_at_time(now + second, value).expect("the timer runs");
        }
        let state = || timer.shards().walls.get().expect("it has such deadlines").state.lock();
        assert!((10_001..=20_000).contains(&state().most), "{}", state().most);
        let last = timer.schedule_at_time(now + 2 * second, 0).expect("the timer runs");
        clock.advance(second);
        timer.shrink();
        assert!(state().deadlines.contains_key(&last));
        let capacity = state().deadlines.capacity();
        assert!(capacity < 2 * LEAST_KEPT, "{capacity}");
        // Those that have ended are forgotten without a shrink.
        for value in 0..1000 {
            let key = timer.schedule_at_time(now + 3 * second, value).expect("the timer runs");
            timer.cancel(key);
        }
        let len = state().deadlines.len();
        assert!((1..LEAST_KEPT).contains(&len), "{len}");
        timer.shutdown();
        assert_eq!(state().deadlines.capacity(), 0);
    }
}
