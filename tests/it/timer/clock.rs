//! Clocks that jump, and the lateness of timeouts on them.

use std::{
    sync::{Arc, Mutex, Weak, mpsc},
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{
    Clock, Driven, JumpListener, ManualClock, Purgatory, Reaper, Throttle, Timer, time::DelayMap,
};

use super::support::{GENEROUS, HOUR, Log, MS, SECOND, Set, must_return, timer_on};
use crate::purgatory::support::{Op, Shared};

#[test]
fn after_a_resume_what_is_due_runs_at_once_and_in_order() {
    let reaper = Reaper::new("shared");
    for recheck in [None, Some(MS)] {
        let clock = Set::reporting(true, recheck);
        let builder = Timer::builder().clock(clock.clone()).inline();
        for builder in [builder.clone(), builder.reaper(&reaper)] {
            let (ran, runs) = mpsc::channel();
            let timer = builder.build_with(move |hour| ran.send(hour).unwrap()).unwrap();
            let unused = clock.listeners();
            for hour in [4, 2, 3, 1] {
                timer.schedule(hour * HOUR, hour).unwrap();
            }
            let listens = usize::from(recheck.is_none());
            assert_eq!(clock.listeners(), unused + listens, "only once, and not before its use");
            clock.pass(3 * HOUR);
            clock.step(3 * HOUR);
            for hour in 1..=3 {
                assert_eq!(runs.recv_timeout(GENEROUS), Ok(hour), "{recheck:?}");
            }
            assert_eq!((timer.stats().pending, timer.shutdown()), (1, vec![4]));
        }
    }
}

/// A clock that schedules on its timer, once, when the timer begins to watch it.
#[derive(Debug, Clone, Default)]
struct Scheduling(Arc<Mutex<Option<Scheduled>>>);

type Scheduled = (Timer, mpsc::Sender<()>);

impl Clock for Scheduling {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn may_jump(&self) -> bool {
        true
    }

    fn watch(&self, _: Weak<dyn JumpListener>) -> Option<Duration> {
        let (timer, ran) = self.0.lock().unwrap().take()?;
        let again = ran.clone();
        timer.schedule(Duration::ZERO, move || ran.send(()).unwrap()).unwrap();
        timer.schedule_at_time(SystemTime::UNIX_EPOCH, move || again.send(()).unwrap()).unwrap();
        None
    }
}

#[test]
fn a_clock_may_use_its_timer_while_that_begins_to_watch_it() {
    let runs = must_return(|| {
        let (clock, timer) = timer_on(Scheduling::default(), |builder| builder);
        let (ran, runs) = mpsc::channel();
        *clock.0.lock().unwrap() = Some((timer.clone(), ran.clone()));
        timer.schedule(Duration::ZERO, move || ran.send(()).unwrap()).unwrap();
        (0..3).map(|_| runs.recv_timeout(GENEROUS)).collect::<Vec<_>>()
    });
    assert_eq!(runs, [Ok(()); 3]);
}

/// A clock that in one reading, which has taken the time, steps back by a second and schedules.
#[derive(Debug, Clone)]
struct Interrupted(Arc<Set>, Arc<Mutex<Option<Scheduled>>>);

impl Clock for Interrupted {
    fn now(&self) -> Instant {
        let (taken, interrupted) = (self.0.now(), self.1.lock().unwrap().take());
        if let Some((timer, ran)) = interrupted {
            self.0.step_back(SECOND);
            timer.schedule(MS, move || ran.send(()).unwrap()).unwrap();
        }
        taken
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.0.adopt(timer)
    }
}

#[test]
fn a_reading_that_ends_after_a_step_back_counts_as_a_jump_ahead() {
    let (clock, timer) = timer_on(Interrupted(Set::new(), Arc::default()), |builder| builder);
    let (start, (ran, runs)) = (timer.now(), mpsc::channel());
    *clock.1.lock().unwrap() = Some((timer.clone(), ran));
    clock.0.show(SECOND);
    assert_eq!((runs.try_recv(), clock.now()), (Ok(()), start));
    assert_eq!(timer.now(), start + SECOND, "the callback was early by the clock of the timer");
}

#[test]
fn lateness_counts_from_the_start_of_the_tick_of_the_deadline_to_the_nanosecond() {
    let (clock, timer) = timer_on(Set::new(), |builder| builder.tick(10 * MS));
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
    let far = [0, 1, 2_u32].map(|number| timer.schedule(60 * SECOND, log.note(number)).unwrap());
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
    let operations: Shared = Purgatory::builder().timer(builder()).build().unwrap();
    let (ends, end) = (log.clone(), Duration::ZERO);
    operations.watch(Op::new().end(move |_| ends.push(10)), [1], end).unwrap();
    let shown = clock.system_time();
    timer.schedule_at_time(shown, log.note(11)).unwrap();
    timer.schedule_at_time(shown - SECOND / 4, log.note(12)).unwrap();
    clock.advance(Duration::from_nanos(1));
    let mut ended = log.take();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12]);
}
