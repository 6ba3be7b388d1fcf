//! The reaper in real time, with clocks of the user: one that jumps ahead, and one that panics.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{
    Clock, Completion, Debounce, ManualClock, Purgatory, Reaper, ScheduleErrorKind, Throttle,
    Timer, TimerBuilder, ValueTimer,
};

use super::support::{
    GENEROUS, HOUR, HookedClock, Log, MS, SECOND, Set, WAYS, YEAR, block, must_return, timer_on,
    wait_until,
};
use crate::{clock::Deadly, purgatory::support::Op};

/// Moves the clock two hours ahead, past a timeout of one hour, and calls `notice`, after which the
/// reaper must expire the timeout; three times.
fn assert_noticed(shards: usize, notice: impl Fn(&Timer)) {
    let (clock, timer) = timer_on(Set::quiet(), |builder| builder.shards(shards));
    let log = Log::new();
    for _ in 0..3 {
        // Once this has run, the reaper falls asleep.
        timer.schedule(Duration::ZERO, log.note("at once")).unwrap();
        wait_until("the due callback runs", || log.take() == ["at once"]);
        timer.schedule(HOUR, log.note("in an hour")).unwrap();
        thread::yield_now();
        clock.pass(2 * HOUR);
        notice(&timer);
        wait_until("the callback before the new time runs", || log.take() == ["in an hour"]);
    }
}

#[test]
fn every_call_after_the_clock_has_jumped_wakes_the_reaper() {
    for shards in [1, 3] {
        assert_noticed(shards, |timer| drop(timer.schedule(YEAR, || ()).unwrap()));
    }
    // The shards of these inserts have no expiration before the next wake-up of the reaper.
    assert_noticed(3, |timer| {
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| timer.schedule(YEAR, || ()).unwrap());
            }
        });
    });
    let put_off = Mutex::new(None);
    assert_noticed(1, |timer| {
        let mut put_off = put_off.lock().unwrap();
        let timeout = put_off.get_or_insert_with(|| {
            let other = Timer::builder().clock(ManualClock::new()).build().unwrap();
            other.schedule(YEAR, || ()).unwrap()
        });
        if !timeout.reset(YEAR) {
            *timeout = timer.schedule(YEAR, || ()).unwrap();
        }
        assert!(timeout.reset(YEAR));
    });
    assert_noticed(1, Timer::wake);
}

/// A clock, settings with it and with a reaper that a callback blocks, and what ends that.
fn late() -> (Arc<Set>, TimerBuilder, mpsc::Sender<()>) {
    let (reaper, clock) = (Reaper::new("dw-late"), Set::quiet());
    let release = block(&Timer::builder().reaper(&reaper).inline().build().unwrap());
    let settings = Timer::builder().reaper(&reaper).clock(clock.clone()).shards(1);
    (clock, settings, release)
}

#[test]
fn a_thread_that_schedules_hands_off_timeouts_of_a_late_reaper() {
    let (clock, settings, release) = late();
    let (handled, values) = mpsc::channel();
    let timer = settings.build_with(move |value| handled.send(value).unwrap()).unwrap();
    for value in 0..40_u32 {
        timer.schedule(HOUR + value * 60 * SECOND, value).unwrap();
    }
    // The jump does not move the wall clock.
    let by_wall_clock = timer.schedule_at_time(clock.system_time() + HOUR, 97).unwrap();
    clock.pass(2 * HOUR);
    assert_eq!(timer.stats().expired, 0, "no reaper runs");
    let far = timer.schedule(YEAR, 99).unwrap();
    let stats = timer.stats();
    assert!((1..=32).contains(&stats.expired), "{} in one hold", stats.expired);
    assert_eq!(stats.lateness.count(), stats.expired, "each has a lateness");
    assert_eq!(stats.pending, 42 - stats.expired);
    while timer.stats().expired < 40 {
        assert_eq!(timer.cancel(timer.schedule(YEAR, 98).unwrap()), Some(98));
    }
    let mut got: Vec<_> = (0..40).map(|_| values.recv_timeout(GENEROUS).unwrap()).collect();
    got.sort_unstable();
    assert!(got.into_iter().eq(0..40), "each once");
    assert_eq!(timer.cancel(far), Some(99));
    assert_eq!(timer.cancel(by_wall_clock), Some(97), "it looks at the wall clock");
    drop(release);
}

#[test]
fn a_thread_that_watches_or_schedules_by_the_wall_clock_helps_a_late_reaper_as_well() {
    let (clock, settings, release) = late();
    let timer = settings.clone().build().unwrap();
    let purgatory = Purgatory::<u32, _>::builder().timer(settings).build().unwrap();
    let (ended, ends) = mpsc::channel();
    let expires = ended.clone();
    timer.schedule(HOUR, move || ended.send("timeout").unwrap()).unwrap();
    let op = Op::new().end(move |_| expires.send("operation").unwrap());
    assert!(purgatory.watch(op, [1], HOUR).is_ok());
    clock.pass(2 * HOUR);
    timer.schedule_at_time(clock.system_time() + YEAR, || ()).unwrap();
    assert_eq!(ends.recv_timeout(GENEROUS), Ok("timeout"));
    assert!(purgatory.watch(Op::new(), [1], YEAR).is_ok());
    assert_eq!(ends.recv_timeout(GENEROUS), Ok("operation"));
    drop(release);
}

/// A clock whose wall clock panics once the test asks for it.
#[derive(Debug, Clone)]
struct Faulty(Arc<Set>, Arc<AtomicBool>);

impl Clock for Faulty {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn system_time(&self) -> SystemTime {
        assert!(!self.1.load(Ordering::SeqCst), "the clock panics");
        self.0.system_time()
    }
}

#[test]
fn a_thread_gets_its_key_if_the_clock_panics_while_it_helps_a_late_reaper() {
    let (clock, settings, release) = late();
    let fails = Arc::new(AtomicBool::new(false));
    let faulty = Faulty(clock.clone(), Arc::clone(&fails));
    let timer = settings.clock(faulty).build().unwrap();
    timer.schedule(HOUR, || ()).unwrap();
    timer.schedule_at_time(clock.system_time() + YEAR, || ()).unwrap();
    clock.pass(2 * HOUR);
    fails.store(true, Ordering::SeqCst);
    assert!(timer.schedule(YEAR, || ()).unwrap().cancel());
    let stats = timer.stats();
    assert_eq!((stats.pending, stats.panicked), (2, 1), "the reaper looks again");
    fails.store(false, Ordering::SeqCst);
    drop(release);
}

#[test]
fn a_thread_that_inserts_wakes_no_task_of_a_late_queue() {
    let (clock, settings, release) = late();
    let queue = settings.build_queue().unwrap();
    queue.insert(HOUR, 1_u32).unwrap();
    clock.pass(2 * HOUR);
    queue.insert(YEAR, 2).unwrap();
    // The waker of a task that receives may take a lock that the inserter holds.
    assert_eq!(queue.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(release);
    assert_eq!(queue.recv_timeout(GENEROUS), Ok(1));
}

#[test]
fn a_thread_that_schedules_runs_no_callback_of_a_late_reaper() {
    let (clock, settings, release) = late();
    let [threads, inline] = [settings.clone(), settings.inline()].map(|one| one.build().unwrap());
    let (ran, runs) = mpsc::channel();
    for timer in [&threads, &inline] {
        let ran = ran.clone();
        timer.schedule(HOUR, move || ran.send(thread::current().id()).unwrap()).unwrap();
    }
    clock.pass(2 * HOUR);
    for timer in [&threads, &inline] {
        timer.schedule(YEAR, || ()).unwrap();
    }
    let thread = runs.recv_timeout(GENEROUS).expect("an executor thread runs it");
    assert_ne!(thread, thread::current().id());
    assert_eq!(inline.stats().expired, 0, "a callback on the reaper waits for it");
    drop(release);
    runs.recv_timeout(GENEROUS).expect("the reaper runs it");
}

/// Schedules timeouts of a second or more on several shards and cancels them. Returns whether all
/// were still pending.
fn cancel_all(timer: &Timer) -> bool {
    let start = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..6_u32)
            .map(|thread| {
                let delay = move |index: u32| SECOND / 2 + (50 * index + 7 * thread) * MS;
                scope.spawn(move || {
                    let timeouts: Vec<_> =
                        (0..6).map(|index| timer.schedule(delay(index), || ()).unwrap()).collect();
                    timeouts.iter().filter(|timeout| timeout.cancel()).count()
                })
            })
            .collect();
        let cancelled: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        cancelled == 36 && start.elapsed() < SECOND / 2
    })
}

#[test]
fn an_idle_reaper_wakes_at_most_once_for_all_cancelled_timeouts() {
    let timer = Timer::builder().shards(6).build().unwrap();
    let wakeups = loop {
        // If the machine stops for half a second, some have run.
        if cancel_all(&timer) {
            break timer.stats().wakeups;
        }
    };
    let (ran, runs) = mpsc::channel();
    timer.schedule(SECOND + SECOND / 10, move || ran.send(()).unwrap()).unwrap();
    runs.recv_timeout(GENEROUS).unwrap();
    let wakeups = timer.stats().wakeups - wakeups;
    // One wake-up for all cancelled timeouts, one for the timeout that runs, and perhaps one that
    // an insert caused before. With one for each shard there would be seven.
    assert!(wakeups <= 3, "{wakeups} wake-ups");
}

#[test]
fn a_first_call_out_of_which_the_clock_panics_starts_no_reaper_that_would_die() {
    let calls: [fn(&Timer) -> bool; 4] = [
        |timer| timer.schedule(YEAR, || ()).is_ok(),
        |timer| timer.schedule_at_time(SystemTime::now() + YEAR, || ()).is_ok(),
        |timer| Debounce::new(timer, YEAR, || ()).call().is_ok(),
        |timer| Throttle::new(timer, YEAR, || ()).call().is_ok(),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let (clock, timer) = timer_on(Set::reporting(true, None), |builder| builder);
        clock.panic(true);
        assert!(catch_unwind(AssertUnwindSafe(|| call(&timer))).is_err());
        assert_eq!(clock.listeners(), 0, "call {number} has started a reaper");
        clock.panic(false);
        assert!(call(&timer));
        assert!(clock.listeners() > 0, "call {number} has started none");
    }
}

#[test]
fn a_call_out_of_which_the_clock_panics_has_no_effect() {
    for reads in 0.. {
        let (clock, timer) = timer_on(HookedClock::new(), |builder| builder);
        clock.panic_after(reads);
        let time = SystemTime::now() + HOUR;
        let call = catch_unwind(AssertUnwindSafe(|| timer.schedule_at_time(time, || ())));
        if call.is_ok() {
            assert!(reads > 2, "{reads} reads");
            break;
        }
        assert_eq!(timer.stats().pending, 0, "after {reads} reads");
    }
}

fn kill(clock: &Deadly, mut schedule: impl FnMut(Duration) -> bool) {
    clock.kill();
    // This is due before the next wake-up of the reaper, so it wakes now.
    wait_until("the reaper is dead", || !schedule(Duration::ZERO));
}

fn mortal() -> (Deadly, TimerBuilder) {
    let clock = Deadly::of("mortal-reaper");
    let builder = Timer::builder().clock(clock.clone()).name("mortal");
    (clock, builder)
}

#[test]
fn a_timer_that_reports_a_dead_reaper_refuses_timeouts_from_then_on() {
    let (clock, builder) = mortal();
    let timer = builder.build_with(|_: u32| ()).unwrap();
    clock.kill();
    // This starts the reaper, whose clock panics.
    timer.schedule(YEAR, 1).unwrap();
    wait_until("the reaper is dead", || timer.is_reaper_dead());
    let refused = timer.schedule(YEAR, 2).unwrap_err();
    assert_eq!((refused.kind(), refused.into_value()), (ScheduleErrorKind::ShutDown, 2));
    assert_eq!(timer.shutdown(), [1]);
}

#[test]
fn a_finish_of_a_timer_with_a_dead_reaper_returns_at_once() {
    for way in WAYS {
        let (clock, builder) = mortal();
        let timer: ValueTimer<u32> = way(builder).build_with(|_| ()).unwrap();
        timer.schedule(YEAR, 1).unwrap();
        assert!(!timer.is_reaper_dead());
        kill(&clock, |delay| timer.schedule(delay, 2).is_ok());
        let own = timer.clone();
        let left = must_return(move || own.finish(YEAR));
        assert!(left.contains(&1), "a shutdown returns the pending value");
        assert!(timer.is_reaper_dead());
    }
}

#[test]
fn receivers_of_a_queue_with_a_dead_reaper_get_an_error() {
    let (clock, builder) = mortal();
    let queue = builder.build_queue().unwrap();
    queue.insert(YEAR, 1_u32).unwrap();
    let queue = Arc::new(queue);
    let own = Arc::clone(&queue);
    let receiver = thread::spawn(move || while own.recv().is_ok() {});
    assert!(!queue.timer().is_reaper_dead());
    kill(&clock, |delay| queue.insert(delay, 2).is_ok());
    must_return(|| receiver.join().unwrap());
    assert!(queue.timer().is_reaper_dead());
    assert!(queue.shutdown().contains(&1), "a shutdown returns the pending value");
}

#[test]
fn operations_of_a_purgatory_with_a_dead_reaper_end() {
    let (clock, builder) = mortal();
    let purgatory = Purgatory::<u32, Op>::builder().timer(builder).build().unwrap();
    let (ended, ends) = mpsc::channel();
    purgatory.watch(Op::new().end(move |end| ended.send(end).unwrap()), [1], YEAR).unwrap();
    kill(&clock, |delay| purgatory.watch(Op::new(), [1], delay).is_ok());
    assert_eq!(ends.recv_timeout(GENEROUS), Ok(Completion::ShutDown));
}
