//! Deadlines by the wall clock: notices of steps, and calls between two readings.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{Clock, Timer};

use super::{
    clock::Set,
    jumps::{HOUR, Jumping},
    support::{GENEROUS, Log, MS, manual},
};

#[test]
fn a_step_of_the_wall_clock_is_noticed_without_an_insert() {
    for recheck in [None, Some(MS)] {
        let clock = Jumping::new(false, recheck);
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
fn a_time_of_jiff_is_a_time_of_the_wall_clock() {
    let (clock, timer) = manual();
    let log = Log::new();
    let time = jiff::Timestamp::from_second(946_684_801).unwrap();
    timer.schedule_at_time(time, log.note("timestamp")).unwrap();
    timer.schedule_at_time(time.to_zoned(jiff::tz::TimeZone::UTC), log.note("zoned")).unwrap();
    clock.advance(999 * MS);
    assert_eq!(log.take(), [""; 0]);
    clock.advance(MS);
    assert_eq!(log.take().len(), 2);
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

/// A clock without notices, at whose next reading but some the test does something.
#[derive(Clone)]
struct Interrupted(Set, Arc<Mutex<(usize, Option<Interrupt>)>>);

type Interrupt = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Clock for Interrupted {
    fn now(&self) -> Instant {
        let mut next = self.1.lock().unwrap();
        let due = if next.0 == 0 { next.1.take() } else { None };
        next.0 = next.0.saturating_sub(1);
        drop(next);
        if let Some(interrupt) = due {
            interrupt();
        }
        self.0.now()
    }

    fn system_time(&self) -> SystemTime {
        self.0.system_time()
    }
}

/// The thread that schedules stops after it has looked at the clocks. Meanwhile the wall clock is
/// set back, another thread notices that, and the place of the timeout passes.
#[test]
fn a_step_back_while_a_timeout_is_scheduled_does_not_make_it_early() {
    for readings in 0..4 {
        let clock = Interrupted(Set::new(), Arc::default());
        let timer = Timer::builder().clock(clock.clone()).shards(1).build().unwrap();
        let (ran, runs) = mpsc::channel();
        timer.schedule(HOUR, move || ran.send(()).unwrap()).unwrap();
        let ended = timer.schedule(9 * HOUR, || ()).unwrap();
        ended.cancel();
        let (set, shown) = (clock.0.clone(), clock.system_time());
        let interrupt = move || {
            *set.0.wall.lock().unwrap() -= HOUR;
            set.show(2 * HOUR);
            // It looks at the clocks, and wakes no thread.
            assert!(!ended.reset_at_time(shown));
        };
        *clock.1.lock().unwrap() = (readings, Some(Box::new(interrupt)));
        let late = timer.schedule_at_time(shown + HOUR + HOUR / 2, || ()).unwrap();
        runs.recv_timeout(GENEROUS).unwrap();
        assert!(late.is_pending(), "it is early if interrupted after {readings} readings");
    }
}
