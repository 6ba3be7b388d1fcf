//! Deadlines by the wall clock, and notices of its steps.

use std::{
    collections::BTreeSet,
    panic::catch_unwind,
    sync::mpsc,
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{Clock, Timer};

use super::support::{GENEROUS, HOUR, Log, MS, Set, manual};

#[test]
fn a_step_of_the_wall_clock_is_noticed_without_an_insert() {
    for recheck in [None, Some(MS)] {
        let clock = Set::reporting(false, recheck);
        let (ran, runs) = mpsc::channel();
        let timer = Timer::builder().clock(clock.clone()).inline();
        let timer = timer.build_with(move |hour| ran.send(hour).unwrap()).unwrap();
        let start = clock.system_time();
        timer.schedule(HOUR, 9).unwrap();
        assert_eq!(clock.listeners(), 0, "a timer without deadlines by the wall clock listens");
        for hour in [3, 1, 2] {
            timer.schedule_at_time(start + hour * HOUR, hour).unwrap();
        }
        assert_eq!(clock.listeners(), usize::from(recheck.is_none()));
        clock.step(2 * HOUR);
        let ran: BTreeSet<_> = (0..2).map(|_| runs.recv_timeout(GENEROUS).unwrap()).collect();
        assert_eq!(ran, BTreeSet::from([1, 2]), "{recheck:?}");
        assert_eq!(timer.stats().pending, 2, "a timeout by the other clock stays");
        timer.shutdown();
    }
}

#[test]
fn a_timeout_by_the_clock_of_the_system_is_not_early() {
    let (timer, (ran, runs)) = (Timer::new(), mpsc::channel());
    let due = SystemTime::now() + 5 * MS;
    timer.schedule_at_time(due, move || ran.send(SystemTime::now()).unwrap()).unwrap();
    assert!(runs.recv_timeout(GENEROUS).unwrap() >= due);
}

#[test]
fn a_timeout_that_was_moved_off_the_wall_clock_does_not_follow_it() {
    let moves: [fn(&delaywheel::TimeoutHandle) -> bool; 2] =
        [|timeout| timeout.reset(2 * HOUR), |timeout| timeout.postpone(2 * HOUR)];
    for move_off in moves {
        let (clock, timer) = manual();
        let log = Log::new();
        let start = clock.system_time();
        let timeout = timer.schedule_at_time(start + HOUR, log.note("moved")).unwrap();
        let noon = timer.schedule_at_time(start + HOUR, log.note("noon")).unwrap();
        assert!(noon.postpone(MS), "it is pending, but does not move");
        assert!(move_off(&timeout));
        clock.set_system_time(start + HOUR);
        assert_eq!(log.take(), ["noon"]);
        assert!(timeout.reset_at_time(start + 3 * HOUR));
        clock.set_system_time(start + 3 * HOUR);
        assert_eq!(log.take(), ["moved"]);
        clock.set_system_time(start);
        clock.advance(9 * HOUR);
        assert_eq!(log.take(), [""; 0], "the time comes twice, and the timeout once");
    }
}

#[test]
fn a_step_to_a_time_makes_it_run_within_a_tick_and_a_time_that_has_passed_runs_at_once() {
    for begun in [0, 1] {
        let (clock, timer) = manual();
        clock.advance(begun * MS / 2);
        let (log, noon) = (Log::new(), clock.system_time() + MS);
        timer.schedule_at_time(noon, log.note("noon")).unwrap();
        clock.set_system_time(noon);
        clock.advance(begun * MS / 2);
        assert_eq!(log.take(), ["noon"]);
        clock.advance(MS / 2);
        clock.set_system_time(noon + MS / 2);
        timer.schedule_at_time(noon + MS / 4, log.note("passed")).unwrap();
        clock.set_system_time(noon);
        assert_eq!(log.take(), ["passed"], "a later step does not move it");
    }
}

/// A clock whose wall clock panics.
#[derive(Debug)]
struct WithoutWall;

impl Clock for WithoutWall {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn system_time(&self) -> SystemTime {
        panic!("the clock panics")
    }
}

#[test]
fn a_wall_clock_that_panics_in_a_call_ends_no_timer() {
    let (timer, (ran, runs)) =
        (Timer::builder().clock(WithoutWall).build().unwrap(), mpsc::channel());
    let later = timer.schedule(50 * MS, move || ran.send(()).unwrap()).unwrap();
    assert!(catch_unwind(|| timer.schedule_at_time(SystemTime::now(), || ()).is_ok()).is_err());
    assert!(catch_unwind(|| later.reset_at_time(SystemTime::now() + HOUR)).is_err());
    assert_eq!(runs.recv_timeout(GENEROUS), Ok(()));
    assert!(!timer.is_reaper_dead());
}

#[test]
fn times_that_no_clock_shows_are_due_at_once_or_never() {
    let (clock, timer) = manual();
    let log = Log::new();
    let start = clock.system_time();
    for (name, time) in [
        ("past", SystemTime::UNIX_EPOCH - 100 * 365 * 24 * HOUR),
        ("never", start + 600 * 365 * 24 * HOUR),
    ] {
        timer.schedule_at_time(time, log.note(name)).unwrap();
    }
    clock.advance(Duration::ZERO);
    assert_eq!(log.take(), ["past"]);
    assert!(clock.run_until_idle(99) && log.take().is_empty());
}
