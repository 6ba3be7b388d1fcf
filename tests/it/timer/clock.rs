//! Clocks with faults: one that stands still, steps back, jumps ahead, or shows only every tenth
//! millisecond.

use std::{
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use delaywheel::{Clock, Timer, ValueTimer, clock::Driven};

use super::support::{Log, MS, SECOND, YEAR, skewed};

/// A clock that the test sets, and that drives its timers when the test calls it.
#[derive(Debug, Clone)]
pub(crate) struct Set(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    origin: Instant,
    since: Mutex<Duration>,
    timers: Mutex<Vec<Weak<dyn Driven>>>,
}

impl Set {
    /// Starts a year after its origin, so that it can step back.
    pub(crate) fn new() -> Self {
        let timers = Mutex::default();
        Self(Arc::new(Shared { origin: Instant::now(), since: Mutex::new(YEAR), timers }))
    }

    /// Sets the time since the start; it may be before the current time.
    pub(crate) fn show(&self, since: Duration) {
        *self.0.since.lock().unwrap() = YEAR + since;
        self.turn();
    }

    pub(crate) fn step_back(&self, by: Duration) {
        *self.0.since.lock().unwrap() -= by;
        self.turn();
    }

    fn turn(&self) {
        let timers: Vec<_> =
            self.0.timers.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        for timer in timers {
            timer.turn();
        }
    }

    fn timer(&self) -> Timer {
        Timer::builder().clock(self.clone()).shards(2).build().unwrap()
    }
}

impl Clock for Set {
    fn now(&self) -> Instant {
        self.0.origin + *self.0.since.lock().unwrap()
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.0.timers.lock().unwrap().push(timer);
        true
    }
}

#[test]
fn a_clock_that_stands_still_expires_due_timeouts_only() {
    let clock = Set::new();
    let timer = clock.timer();
    let log = Log::new();
    timer.schedule(MS, log.note("later")).unwrap();
    timer.schedule(Duration::ZERO, log.note("now")).unwrap();
    for _ in 0..1000 {
        clock.turn();
    }
    assert_eq!(log.take(), ["now"]);
    clock.show(MS);
    assert_eq!(log.take(), ["later"]);
}

#[test]
fn a_clock_that_steps_back_expires_nothing_early() {
    let clock = Set::new();
    let timer = clock.timer();
    let log = Log::new();
    timer.schedule(10 * SECOND, log.note("before")).unwrap();
    clock.show(9 * SECOND);
    clock.step_back(8 * SECOND);
    assert_eq!(log.take(), [""; 0]);
    timer.schedule(5 * SECOND, log.note("after")).unwrap();
    timer.schedule(Duration::ZERO, log.note("at once")).unwrap();
    clock.turn();
    assert_eq!(log.take(), ["at once"], "a step back delays no due timeout");
    clock.show(9_999 * MS);
    assert_eq!(log.take(), [""; 0]);
    clock.show(10 * SECOND);
    assert_eq!(log.take(), ["before"]);
    clock.show(13_999 * MS);
    assert_eq!(
        log.take(),
        [""; 0],
        "the delay counts from the latest time that the timer has read"
    );
    clock.show(14 * SECOND);
    assert_eq!(log.take(), ["after"]);
}

#[test]
fn a_clock_that_steps_back_before_the_origin_stays_at_the_latest_time() {
    let clock = Set::new();
    let timer = clock.timer();
    let log = Log::new();
    clock.show(SECOND);
    clock.step_back(YEAR);
    let timeout = timer.schedule(MS, log.note("a millisecond after the latest")).unwrap();
    assert!(timeout.reset(2 * MS));
    timer.schedule(Duration::ZERO, log.note("at once")).unwrap();
    clock.turn();
    assert_eq!(log.take(), ["at once"]);
    clock.show(SECOND + MS);
    assert_eq!(log.take(), [""; 0]);
    clock.show(SECOND + 2 * MS);
    assert_eq!(log.take(), ["a millisecond after the latest"]);
}

#[test]
fn a_clock_that_jumps_a_year_expires_due_timeouts_in_order() {
    let clock = Set::new();
    let log = Log::new();
    let ran = log.clone();
    let builder = ValueTimer::builder().clock(clock.clone()).shards(1);
    let timer = builder.build_with(move |seconds: u32| ran.push(seconds)).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..10_000 {
        let seconds = u32::try_from(skewed(&mut random, 26)).unwrap();
        timer.schedule(seconds * SECOND, seconds).unwrap();
    }
    clock.show(YEAR);
    let ran = log.take();
    assert!(ran.is_sorted());
    let due = |seconds: &u32| *seconds * SECOND <= YEAR;
    assert!(ran.iter().all(due), "early");
    clock.show(2 * YEAR);
    let later = log.take();
    assert_eq!(ran.len() + later.len(), 10_000);
    assert!(!later.is_empty() && !later.iter().any(due), "late");
}

#[test]
fn a_coarse_clock_expires_at_the_first_step_that_is_not_early() {
    let clock = Set::new();
    let timer = clock.timer();
    let log = Log::new();
    for delay in [1, 9, 10, 11, 20, 21] {
        timer.schedule(delay * MS, log.note(delay)).unwrap();
    }
    let mut ran = Vec::new();
    for step in 0..4 {
        clock.show(10 * step * MS);
        let mut expired = log.take();
        expired.sort_unstable();
        ran.push(expired);
    }
    assert_eq!(ran, [vec![], vec![1, 9, 10], vec![11, 20], vec![21]]);
}

#[test]
fn lateness_is_the_time_that_a_clock_jumped_past_the_deadlines() {
    let clock = Set::new();
    let timer = clock.timer();
    assert_eq!(timer.stats().lateness_percentile(99.0), Duration::ZERO);
    for delay in 1..=100 {
        timer.schedule(delay * MS, || ()).unwrap();
    }
    clock.show(100 * MS);
    let stats = timer.stats();
    assert_eq!((stats.lateness.count(), stats.lateness.max()), (100, 99 * MS));
    assert_eq!(stats.lateness_percentile(100.0), 99 * MS);
    assert_eq!(stats.lateness_percentile(0.0), Duration::ZERO);
    let median = stats.lateness_percentile(50.0);
    assert!(median >= 49 * MS && median <= 56 * MS, "{median:?} is off by more than an eighth");
}

#[test]
fn lateness_counts_from_the_start_of_the_tick_of_the_deadline_to_the_nanosecond() {
    let clock = Set::new();
    let timer = Timer::builder().clock(clock.clone()).tick(10 * MS).build().unwrap();
    timer.schedule(20 * MS, || ()).unwrap();
    clock.show(21 * MS + Duration::from_nanos(17));
    assert_eq!(timer.stats().lateness.max(), MS + Duration::from_nanos(17));
    // 21 ms and a delay of 35 ms are rounded up to 60 ms.
    timer.schedule(35 * MS, || ()).unwrap();
    clock.show(62 * MS);
    let lateness = timer.stats().lateness;
    assert_eq!((lateness.count(), lateness.max()), (2, 2 * MS));
}
