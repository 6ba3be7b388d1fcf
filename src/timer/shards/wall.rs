//! Deadlines by the wall clock, which may be set.
//!
//! A wheel knows only ticks of the timer's clock. The *offset* is the time of the wall clock at the
//! start of tick 0. The offset gives each deadline by the wall clock a tick. A thread that
//! schedules such a timeout looks at both clocks, and so does a turn before it expires timeouts. If
//! the offset has changed, the thread moves all timeouts by the wall clock. Each shard keeps the
//! deadlines by the wall clock of its own timeouts.
//!
//! # Why no timeout is early
//!
//! A *look* reads the timer's clock (`before`), the wall clock (`wall`), and the timer's clock
//! again (`after`). So the offset is between `least = wall - after` and `most = wall - before`. The
//! tick of a timeout follows from `least`, or from up to half a tick less. A turn reads `now`, and
//! then looks. If the offset in use is above `most`, the turn moves the timeouts. The turn expires
//! timeouts with ticks up to `now`, even if an insert has moved the wheel further. Their deadlines
//! are at most `now + most`. Since `now <= before`, the wall clock has shown these deadlines. A
//! timeout whose time has passed at the call is due at once, and does not follow the wall clock.
//!
//! # Why no step is missed
//!
//! A thread that schedules first subscribes to notices of steps. Then it looks. If another thread
//! is still subscribing, that thread wakes the reaper afterwards, so a turn looks. Then the
//! scheduling thread, in one hold of the shard's lock, reads the offset, places the timeout by it,
//! and registers the timeout. A thread that has changed the offset then locks each shard. If it
//! locks the shard after that hold, it finds the timeout there and moves it. If it locked the shard
//! before, the timeout has its place by the new offset.
//!
//! A thread that looks while another thread moves the timeouts moves them as well. So after a look,
//! each timeout has its place by an offset that was valid at the look or later. The latest look is
//! the one that began last. A thread whose look is older leaves the offset as it is.
//!
//! The lock of the offset comes after the locks of the shards. A thread that holds one of these
//! locks reads no clock of the user.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use foldhash::quality::FixedState;

use crate::{
    clock::TickClock,
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
    /// The number of looks that have begun. It orders looks, which clocks that step back cannot do.
    looks: AtomicU64,
}

struct WallState {
    /// In nanoseconds since 1970.
    offset: i128,
    /// The number of the latest look.
    seen: u64,
    /// The number of the look that gave the offset.
    changed: u64,
    /// Every timeout is placed by the offset of the look with this number, or of a later one.
    moved: u64,
}

/// Bounds of the offset, from one look at both clocks.
struct Look {
    number: u64,
    least: i128,
    most: i128,
}

impl Wall {
    pub(super) fn new() -> Self {
        let state = WallState { offset: i128::MAX, seen: 0, changed: 0, moved: 0 };
        Self { state: Mutex::new(state), looks: AtomicU64::new(0) }
    }

    /// Looks at both clocks. Calls `move_all` if timeouts may have their places by an older offset.
    pub(super) fn look(&self, clock: &TickClock, move_all: impl FnOnce()) {
        let look = Look::at(clock, self.looks.fetch_add(1, Ordering::AcqRel) + 1);
        let tick = nanos(clock.ticks.tick());
        // Outside Linux, the two clocks of the system run apart by some millionths. If the wall
        // clock is the slower one, each look would find a step back without the slack. Another
        // clock may have a resolution of a tick, and would find steps because of the slack.
        let slack = if clock.is_system { tick / 2 } else { 0 };
        let mut state = self.state.lock();
        state.follow(&look, tick, slack);
        let (changed, is_stale) = (state.changed, state.changed > state.moved);
        drop(state);
        if is_stale {
            move_all();
            let mut state = self.state.lock();
            state.moved = state.moved.max(changed);
        }
    }

    /// Returns the first tick at which the wall clock shows a deadline. The caller holds the lock
    /// of the timeout's shard.
    pub(super) fn tick_of(&self, clock: &TickClock, deadline: i128) -> Tick {
        let since_start = (deadline - self.state.lock().offset).max(0);
        clock.ticks.ceil(Nanos::new(u64::try_from(since_start).unwrap_or(u64::MAX)))
    }
}

impl WallState {
    /// Adopts the offset of a look if the wall clock went back, or ahead by a tick or more. If it
    /// went back by less than a tick, it can go back by `slack` more before this changes the offset
    /// again.
    fn follow(&mut self, look: &Look, tick: i128, slack: i128) {
        if look.number > self.seen {
            self.seen = look.number;
            let excess = self.offset.saturating_sub(look.most);
            if excess > 0 || self.offset + tick <= look.least {
                let slack = if (1..tick).contains(&excess) { slack } else { 0 };
                (self.offset, self.changed) = (look.least - slack, look.number);
            }
        }
    }
}

impl Look {
    /// Reads both clocks. Repeats a look of a tick or longer, which the scheduler has interrupted.
    fn at(clock: &TickClock, number: u64) -> Self {
        let look = || {
            let before = clock.elapsed();
            let wall = since_1970(clock.source.system_time());
            let [most, least] = [before, clock.elapsed()].map(|at| wall - i128::from(at.get()));
            Self { number, least, most }
        };
        let is_short = |look: &Self| look.most - look.least < nanos(clock.ticks.tick());
        (0..3).map(|_| look()).find(is_short).unwrap_or_else(look)
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
    fn a_newer_look_counts_if_the_wall_clock_went_back_or_ahead_by_a_tick() {
        let tick = 1_000_000;
        for (number, step, is_followed) in
            [(6, 0, false), (6, tick - 1, false), (6, tick, true), (6, -1, true), (5, -1, false)]
        {
            let mut state = WallState { offset: 9, seen: 5, changed: 4, moved: 4 };
            let look = Look { number, least: 9 + step, most: 9 + step };
            state.follow(&look, tick, 0);
            let expected = if is_followed { (9 + step, 6) } else { (9, 4) };
            assert_eq!((state.offset, state.changed), expected, "{number}, {step}");
        }
    }

    /// The clocks run apart by 100 millionths.
    #[test]
    fn hardly_a_look_finds_a_step_if_the_wall_clock_is_the_slower_or_the_faster_one() {
        let tick = 1_000_000;
        for drift in [-100, 100] {
            let mut state = WallState { offset: i128::MAX, seen: 0, changed: 0, moved: 0 };
            let (mut offsets, mut steps) = (0, 0);
            for number in 1..=100_000 {
                offsets += drift;
                let look = Look { number, least: offsets, most: offsets + 50 };
                state.follow(&look, tick, tick / 2);
                steps += u32::from(state.changed == number);
                assert!((offsets - tick..=look.most).contains(&state.offset), "early, or late");
            }
            // 10 ms of drift.
            assert!((10..=21).contains(&steps), "{steps} steps");
        }
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
            wall.look(&clock, || steps += 1);
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
        // The deadlines of ended timeouts are forgotten without a shrink.
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
