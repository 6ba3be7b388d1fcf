//! Deadlines by the wall clock, which may be set.
//!
//! A wheel knows only ticks of the timer's clock. The *offset* is the time of the wall clock at the
//! start of tick 0. It gives each deadline by the wall clock a tick. A thread that schedules such a
//! timeout looks at both clocks, and so does a turn before it expires timeouts. If the offset has
//! changed, the thread moves all these timeouts. Each shard has their deadlines.
//!
//! # Why no timeout is early
//!
//! A *look* reads the timer's clock, the wall clock, and the timer's clock again. So the offset is
//! between `least = wall - after` and `most = wall - before`. The tick of a timeout follows from
//! `least`, so the timeout is late by the duration of a look at most. A turn reads `now`, and then
//! looks. If the offset in use is above `most`, the turn moves the timeouts. It expires those with
//! ticks up to `now`, also if an insert has moved the wheel on, and these have deadlines of at most
//! `now + most`. Since `now <= before`, the wall clock has shown the deadlines. A deadline up to
//! `wall`, which is `before + most`, is due at once, also within a tick, if it has passed by the
//! offset in use too. If it has not, the wall clock has stepped by less than a tick. This otherwise
//! has no effect, but now all timeouts move. They also move if a look that begins later has an
//! earlier `before`.
//!
//! # Why no step is missed
//!
//! A thread that schedules first subscribes to notices of steps. Then it looks. If another thread
//! is about to subscribe, that one wakes the reaper once it has, and so a turn looks. In one hold
//! of the shard's lock, it reads the offset, places the timeout by it, and registers the timeout. A
//! thread that has changed the offset then locks each shard. If it locks the shard later, it finds
//! the timeout there and moves it. If it has done so before, the timeout has its place by the new
//! offset.
//!
//! A thread that looks while another one moves the timeouts moves them as well. So after a look,
//! each timeout has its place by an offset that was valid then or later. The latest look is the
//! last that has begun. A thread whose look is older leaves the offset as it is.
//!
//! The lock of the offset comes after those of the shards. A thread that holds one of these locks
//! reads no clock of the user.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use foldhash::quality::FixedState;

use crate::{
    clock::{Reading, TickClock},
    sync::{AtomicU64, Mutex, Ordering},
    tick::Tick,
    ticks::Nanos,
    wheel::Key,
};

/// Deadlines by the wall clock in a shard, in nanoseconds since 1970. Some of the timeouts have
/// ended.
pub(super) type WallDeadlines = HashMap<Key, i128, FixedState>;

/// The offset of a timer.
pub(super) struct Wall {
    state: Mutex<WallState>,
    /// The number of looks that have begun. Clocks that step back do not tell their order.
    looks: AtomicU64,
}

struct WallState {
    /// In nanoseconds since 1970.
    offset: i128,
    /// The number of the latest look.
    seen: u64,
    /// The greatest time at which a look began, and the number of looks that had begun when that
    /// look ended. A clock may step back within a tick, and the wall clock with it.
    begun: (Nanos, u64),
    /// The number of the look that gave the offset.
    changed: u64,
    /// Every timeout is placed by the offset of the look with this number, or of a later one.
    moved: u64,
}

/// One look at both clocks.
pub(super) struct Look {
    number: u64,
    before: Reading,
    /// In nanoseconds since 1970.
    wall: i128,
    after: Nanos,
}

impl Wall {
    pub(super) fn new() -> Self {
        let state =
            WallState { offset: i128::MAX, seen: 0, begun: (Nanos::ZERO, 0), changed: 0, moved: 0 };
        Self { state: Mutex::new(state), looks: AtomicU64::new(0) }
    }

    /// Looks at both clocks, for a deadline. Calls `move_all` if timeouts may have their places by
    /// another offset.
    pub(super) fn look(
        &self,
        clock: &TickClock,
        deadline: i128,
        move_all: impl FnOnce(&Look),
    ) -> Look {
        let look = Look::at(clock, self.looks.fetch_add(1, Ordering::AcqRel) + 1);
        let mut state = self.state.lock();
        state.follow(&look, deadline, clock.ticks.tick(), self.looks.load(Ordering::Acquire));
        let (changed, is_stale) = (state.changed, state.changed > state.moved);
        drop(state);
        if is_stale {
            move_all(&look);
            let mut state = self.state.lock();
            state.moved = state.moved.max(changed);
        }
        look
    }

    /// Returns the first tick at which the wall clock shows a deadline; that of the look if the
    /// deadline had passed. The shard of the timeout is locked.
    pub(super) fn tick_of(&self, clock: &TickClock, look: &Look, deadline: i128) -> Tick {
        let since_start = (deadline - self.state.lock().offset).max(0);
        let time = Nanos::new(u64::try_from(since_start).unwrap_or(u64::MAX));
        // The offset may be that of another look, by which the deadline only seems to have passed.
        let has_passed = deadline <= look.wall;
        if has_passed { clock.due(look.before, time) } else { clock.ticks.ceil(time) }
    }
}

impl WallState {
    /// Adopts the offset of a look if a clock went back, or the wall clock ahead by a tick or more,
    /// or past a deadline that is ahead by the present offset.
    fn follow(&mut self, look: &Look, deadline: i128, tick: Duration, looks: u64) {
        let begun = look.before.elapsed;
        // Of two looks at the same time, either one may read the clock first.
        let was_earlier = begun < self.begun.0 && look.number > self.begun.1;
        if was_earlier || begun >= self.begun.0 {
            self.begun = (begun, looks);
        }
        if look.number > self.seen {
            self.seen = look.number;
            let [most, least] = [begun, look.after].map(|at| look.offset(at));
            let passes_by = deadline - i128::from(begun.get());
            let went_past = passes_by <= most && self.offset < passes_by.min(least);
            let went_back = was_earlier || self.offset > most;
            if went_back || went_past || self.offset + nanos(tick) <= least {
                (self.offset, self.changed) = (least, look.number);
            }
        }
    }
}

impl Look {
    /// Reads both clocks. Repeats a look of a tick or longer, which the scheduler has interrupted.
    fn at(clock: &TickClock, number: u64) -> Self {
        let look = || {
            let before = clock.read();
            let wall = since_1970(clock.source.system_time());
            Self { number, before, wall, after: clock.elapsed() }
        };
        let tick = clock.ticks.tick().into();
        let is_short = |look: &Self| look.after.saturating_sub(look.before.elapsed) < tick;
        (0..3).map(|_| look()).find(is_short).unwrap_or_else(look)
    }

    /// Returns the offset if the wall clock showed its time `at` this time after the start.
    fn offset(&self, at: Nanos) -> i128 {
        self.wall - i128::from(at.get())
    }
}

/// Returns the nanoseconds since 1970, which may be negative.
pub(super) fn since_1970(time: SystemTime) -> i128 {
    time.duration_since(UNIX_EPOCH).map_or_else(|before| -nanos(before.duration()), nanos)
}

fn nanos(span: Duration) -> i128 {
    i128::try_from(span.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::Arc, time::Instant};

    use super::*;
    use crate::{
        clock::{Clock, ManualClock},
        timer::{Timer, ValueTimer},
    };

    #[test]
    fn a_newer_look_counts_if_a_clock_went_back_or_the_wall_clock_ahead_by_a_tick() {
        let (tick, first) = (1_000_000, (Nanos::ZERO, 5));
        let [later, beside] = [5, 6].map(|looks| (Nanos::new(1), looks));
        for (number, step, deadline, begun, is_followed) in [
            (6, 0, i128::MAX, first, false),
            (6, 0, 9, first, false),
            (6, tick - 1, i128::MAX, first, false),
            (6, tick - 1, 9, first, false),
            (6, tick - 1, 10, first, true),
            (6, tick - 1, 9 + tick, first, false),
            (6, tick, i128::MAX, first, true),
            (6, -1, i128::MAX, first, true),
            (5, -1, i128::MAX, first, false),
            (6, 0, i128::MAX, later, true),
            (6, 0, i128::MAX, beside, false),
        ] {
            let mut state = WallState { offset: 9, seen: 5, begun, changed: 4, moved: 4 };
            let before = Reading { elapsed: Nanos::ZERO, now: Tick::ZERO };
            let look = Look { number, before, wall: 9 + step, after: Nanos::ZERO };
            state.follow(&look, deadline, Duration::from_millis(1), number);
            let expected = if is_followed { (9 + step, 6) } else { (9, 4) };
            assert_eq!((state.offset, state.changed), expected, "{number}, {step}, {begun:?}");
        }
    }

    #[test]
    fn a_clock_went_back_also_if_a_later_look_ended_before_that_which_saw_it_ahead() {
        let mut state =
            WallState { offset: 9, seen: 0, begun: (Nanos::ZERO, 0), changed: 0, moved: 0 };
        for (number, begun, looks) in [(2, 0, 2), (1, 5, 2), (3, 3, 3)] {
            let before = Reading { elapsed: Nanos::new(begun), now: Tick::ZERO };
            let wall = 9 + i128::from(begun);
            let look = Look { number, before, wall, after: before.elapsed };
            state.follow(&look, i128::MAX, Duration::from_millis(1), looks);
        }
        assert_eq!(state.changed, 3);
    }

    /// A clock with a resolution of 10 ms, and an exact wall clock.
    #[derive(Debug)]
    struct Coarse(Instant, AtomicU64);

    impl Coarse {
        fn micros(&self) -> u64 {
            self.1.load(Ordering::Relaxed)
        }
    }

    impl Clock for Coarse {
        fn now(&self) -> Instant {
            self.0 + Duration::from_millis(self.micros() / 10_000 * 10)
        }

        fn system_time(&self) -> SystemTime {
            UNIX_EPOCH + Duration::from_micros(self.micros())
        }
    }

    #[test]
    fn with_ticks_as_long_as_the_resolution_of_the_clock_hardly_a_look_finds_a_step() {
        let source = Arc::new(Coarse(Instant::now(), AtomicU64::new(0)));
        let clock = TickClock::new(Some(Arc::clone(&source) as _), Duration::from_millis(10));
        let (wall, mut steps) = (Wall::new(), 0);
        for _ in 0..10_000 {
            source.1.fetch_add(3_703, Ordering::Relaxed);
            wall.look(&clock, i128::MAX, |_| steps += 1);
        }
        assert!((1..100).contains(&steps), "{steps} steps");
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
        let last = timer.schedule_at_time(now + 2 * second, 0).expect("the timer runs");
        let shard = || timer.shared().shards.lock(last.shard);
        assert!((10_001..=40_000).contains(&shard().wall_deadlines().capacity()));
        clock.advance(second);
        timer.shrink();
        assert!(shard().wall_deadlines().contains_key(&last.key));
        let capacity = shard().wall_deadlines().capacity();
        assert!(capacity < 8, "{capacity}");
        // Those that have ended are forgotten without a shrink.
        for value in 0..1000 {
            let key = timer.schedule_at_time(now + 3 * second, value).expect("the timer runs");
            timer.cancel(key);
        }
        let len = shard().wall_deadlines().len();
        assert!((1..8).contains(&len), "{len}");
        timer.shutdown();
        assert_eq!(shard().wall_deadlines().capacity(), 0);
    }
}
