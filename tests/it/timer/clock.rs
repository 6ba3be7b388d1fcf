//! A clock that the test sets, and the lateness of timeouts on it.

use std::{
    sync::{Arc, Mutex, Weak, mpsc},
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{Clock, Driven, ManualClock, Purgatory, Throttle, Timer, time::DelayMap};

use super::support::{Log, MS, SECOND, YEAR};
use crate::purgatory::support::Op;

/// A clock that the test sets, and that drives its timers when the test calls it.
#[derive(Debug, Clone)]
pub(crate) struct Set(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    origin: Instant,
    since: Mutex<Duration>,
    pub(crate) wall: Mutex<SystemTime>,
    timers: Mutex<Vec<Weak<dyn Driven>>>,
}

impl Set {
    /// Starts a year after its origin, so that it can step back.
    pub(crate) fn new() -> Self {
        let (since, wall, timers) =
            (Mutex::new(YEAR), Mutex::new(SystemTime::UNIX_EPOCH + YEAR), Mutex::default());
        Self(Arc::new(Shared { origin: Instant::now(), since, wall, timers }))
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

    pub(crate) fn turn(&self) {
        let timers: Vec<_> =
            self.0.timers.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        for timer in timers {
            timer.turn();
        }
    }
}

impl Clock for Set {
    fn now(&self) -> Instant {
        self.0.origin + *self.0.since.lock().unwrap()
    }

    fn system_time(&self) -> SystemTime {
        *self.0.wall.lock().unwrap()
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.0.timers.lock().unwrap().push(timer);
        true
    }
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

#[test]
fn a_delay_of_zero_and_a_passed_instant_are_due_at_once_within_a_tick() {
    let clock = ManualClock::new();
    let builder = || Timer::builder().clock(clock.clone()).tick(SECOND);
    let (timer, log) = (builder().build().unwrap(), Log::new());
    clock.advance(SECOND / 2);
    let (now, passed) = (clock.now(), clock.now().checked_sub(SECOND / 4).unwrap());
    let far: [_; 3] =
        std::array::from_fn(|number| timer.schedule(60 * SECOND, log.note(number)).unwrap());
    assert!(far[0].reset(Duration::ZERO) && far[1].reset_at(now) && far[2].reset_at(passed));
    timer.schedule(Duration::ZERO, log.note(3)).unwrap();
    timer.schedule_at(now, log.note(4)).unwrap();
    timer.schedule_at(passed, log.note(5)).unwrap();
    let values = log.clone();
    let values = builder().build_with(move |value| values.push(value)).unwrap();
    values.schedule(Duration::ZERO, 6).unwrap();
    let runs = log.clone();
    Throttle::new(&timer, SECOND, move || runs.push(7)).call().unwrap();
    let mut map = DelayMap::on(&timer);
    map.insert(8, (), Duration::ZERO).unwrap();
    map.insert_at(9, (), passed).unwrap();
    assert!(map.pop_expired().is_some() && map.pop_expired().is_some(), "in the map");
    let operations = Purgatory::builder().timer(builder()).build().unwrap();
    let (ends, end) = (log.clone(), Duration::ZERO);
    operations.watch(Op::new().end(move |_| ends.push(10)), [1], end).unwrap();
    clock.advance(Duration::from_nanos(1));
    let mut ended = log.take();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3, 4, 5, 6, 7, 10]);
}

#[test]
fn a_manual_clock_reaches_deadlines_beyond_2_to_the_64_ns() {
    let (clock, (ran, runs)) = (ManualClock::new(), mpsc::channel());
    let half = 300 * YEAR;
    clock.advance(half);
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    timer.schedule(half, move || ran.send("after 600 years").unwrap()).unwrap();
    clock.advance(half.saturating_sub(MS));
    assert!(runs.try_recv().is_err(), "early");
    clock.advance(MS);
    assert_eq!(runs.try_recv(), Ok("after 600 years"));
}
