//! A driver in place of the reaper of the sleeps, in virtual time.

use std::{
    sync::{Arc, Mutex, mpsc},
    task::{Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{
    Clock, ManualClock, ScheduleErrorKind, Timer,
    future::{Driver, Sleep},
};

use crate::support::{SECOND, Set, Wakes, poll, poll_with, timer};

/// The time of a [`ManualClock`], which does not run the timers of this clock.
#[derive(Debug, Clone)]
struct View(ManualClock);

impl Clock for View {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

type Delays = Arc<Mutex<Vec<Duration>>>;

/// A timer with a driver, whose sleeps are those of a second timer, and the clock of both.
fn driven() -> (Timer, impl Future<Output = ()> + Unpin, ManualClock, Delays) {
    driven_by(|clock| View(clock.clone()))
}

/// The same with a clock for the first timer, which may be that of the second one.
fn driven_by<C: Clock>(
    own: impl FnOnce(&ManualClock) -> C,
) -> (Timer, impl Future<Output = ()> + Unpin, ManualClock, Delays) {
    let (outer, clock) = timer();
    let delays = Delays::default();
    let asked = Arc::clone(&delays);
    let builder = Timer::builder().clock(own(&clock));
    let make_sleep = move |delay| {
        asked.lock().expect("no test panics").push(delay);
        outer.sleep(delay)
    };
    let (timer, driver) = builder.build_with_driver(make_sleep).expect("the settings are valid");
    (timer, driver, clock, delays)
}

fn taken(delays: &Delays) -> Vec<u64> {
    delays.lock().expect("no test panics").drain(..).map(|delay| delay.as_secs()).collect()
}

#[test]
fn a_driver_sleeps_until_the_next_deadline_and_is_woken_for_an_earlier_one() {
    let (timer, mut driver, clock, delays) = driven();
    let (turns, waker) = Wakes::new();
    let (woken, task) = Wakes::new();
    assert!(poll_with(&mut driver, &waker).is_pending());
    assert_eq!(taken(&delays), [], "nothing is pending");

    let mut sleeps = [9, 20, 4, 5].map(|seconds| timer.sleep(seconds * SECOND));
    for (sleep, wakes) in sleeps.iter_mut().zip([1, 1, 2, 2]) {
        assert!(poll_with(sleep, &task).is_pending());
        assert_eq!(turns.count(), wakes, "only an earlier deadline wakes the driver");
        assert!(poll_with(&mut driver, &waker).is_pending());
    }
    assert_eq!(taken(&delays), [9, 9, 4, 4]);

    for (seconds, count, next) in [(4, 1, [1]), (1, 2, [4]), (4, 3, [11])] {
        clock.advance(seconds * SECOND);
        assert_eq!(woken.count(), count - 1, "the driver has not been polled");
        assert!(poll_with(&mut driver, &waker).is_pending());
        assert_eq!((woken.count(), taken(&delays)), (count, next.into()));
    }
    let ended = sleeps.each_mut().map(|sleep| poll(sleep).is_ready());
    assert_eq!(ended, [true, false, true, true]);
}

#[test]
fn the_drop_of_a_driver_ends_the_sleeps_with_an_error() {
    let (timer, mut driver, _clock, _) = driven();
    let (woken, waker) = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll_with(&mut sleep, &waker).is_pending());
    assert!(poll(&mut driver).is_pending());
    drop(driver);
    assert_eq!(woken.count(), 1);
    for mut sleep in [sleep, timer.sleep(SECOND)] {
        let Poll::Ready(Err(error)) = poll(&mut sleep) else { panic!("there is no driver") };
        assert_eq!(error.kind(), ScheduleErrorKind::ShutDown);
    }
    assert!(timer.schedule(SECOND, || ()).is_ok(), "callbacks have threads of their own");
}

#[test]
fn a_driver_ends_with_its_timer() {
    let ends: [fn(Timer); 3] = [
        |timer| drop(timer),
        |timer| drop(timer.shutdown()),
        |timer| drop(timer.finish(Duration::MAX)),
    ];
    for end in ends {
        let (timer, mut driver, _clock, _) = driven();
        let (turns, waker) = Wakes::new();
        let mut sleep = timer.sleep(SECOND);
        assert!(poll(&mut sleep).is_pending());
        assert!(poll_with(&mut driver, &waker).is_pending());
        end(timer);
        assert_eq!(turns.count(), 1);
        assert!(matches!(poll(&mut sleep), Poll::Ready(Err(_))));
        assert!(poll(&mut driver).is_ready());
        assert!(poll(&mut driver).is_ready(), "it stays ready");
    }
}

#[test]
fn sleeps_of_the_runtime_that_end_early_end_no_sleep_early() {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(View(clock.clone()));
    let (timer, mut driver) =
        builder.build_with_driver(|_| std::future::ready(())).expect("the settings are valid");
    let (turns, waker) = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll(&mut sleep).is_pending());
    for count in 1..100 {
        assert!(poll_with(&mut driver, &waker).is_pending());
        assert_eq!(turns.count(), count, "the driver lets other tasks run");
        assert!(poll(&mut sleep).is_pending());
    }
    clock.advance(SECOND);
    assert!(poll_with(&mut driver, &waker).is_pending());
    assert!(matches!(poll(&mut sleep), Poll::Ready(Ok(()))));
}

#[test]
fn a_driver_wakes_a_bounded_number_of_tasks_in_a_poll() {
    const SLEEPS: u64 = 10_000;
    let (timer, mut driver, clock, _) = driven();
    let (woken, waker) = Wakes::new();
    let mut sleeps: Vec<_> = (0..SLEEPS).map(|_| timer.sleep(SECOND)).collect();
    assert!(sleeps.iter_mut().all(|sleep| poll_with(sleep, &waker).is_pending()));
    clock.advance(SECOND);
    let mut polls = 0;
    while woken.count() < SLEEPS {
        let before = woken.count();
        assert!(poll(&mut driver).is_pending());
        assert!(woken.count() - before <= 64, "a timer that is on time takes 64 steps a hold");
        polls += 1;
    }
    assert!(polls >= SLEEPS / 64);
}

struct Sleeping(Timer, ManualClock);

impl Wake for Sleeping {
    fn wake(self: Arc<Self>) {
        assert!(poll(&mut self.0.sleep_until_time(self.1.system_time() + SECOND)).is_pending());
    }
}

#[test]
fn the_waker_of_a_driver_may_use_the_timer_when_the_wall_clock_is_set() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let (timer, mut driver, clock, _) = driven_by(ManualClock::clone);
        let noon = clock.system_time() + 3600 * SECOND;
        let mut sleep = timer.sleep_until_time(noon);
        assert!(poll(&mut sleep).is_pending());
        let waker = Waker::from(Arc::new(Sleeping(timer.clone(), clock.clone())));
        assert!(poll_with(&mut driver, &waker).is_pending());
        clock.set_system_time(noon - SECOND);
        done.send(timer.stats().pending)
    });
    assert!(is_done.recv_timeout(60 * SECOND).is_ok(), "a lock is held over the waker");
}

#[test]
fn a_driver_that_sleeps_begins_to_read_clocks_that_do_not_tell_of_steps() {
    let clock = Set::reporting(false, Some(SECOND));
    let shown = clock.system_time();
    let (timer, mut driver, _clock, delays) = driven_by(|_| clock);
    let (woken, waker) = Wakes::new();
    let mut first = timer.sleep(60 * SECOND);
    assert!(poll(&mut first).is_pending() && poll_with(&mut driver, &waker).is_pending());
    assert_eq!((taken(&delays), woken.count()), (vec![60], 0));
    let mut sleep = timer.sleep_until_time(shown + 7200 * SECOND);
    assert!(poll(&mut sleep).is_pending());
    assert_eq!(woken.count(), 1, "it would notice a step after a minute");
    assert!(poll_with(&mut driver, &waker).is_pending());
    assert_eq!(taken(&delays), [1]);
}

/// A driver can be spawned on a runtime with several threads.
const _: () = {
    const fn is_task<F: Send + 'static>() {}
    is_task::<Driver<fn(Duration) -> Sleep, Sleep>>();
};

/// The waker of a driver whose executor lets time pass when a task is woken.
struct Advances(ManualClock);

impl Wake for Advances {
    fn wake(self: Arc<Self>) {
        self.0.advance(SECOND);
    }
}

/// The first shard that a shutdown closes wakes the driver, before the other shards are closed.
#[test]
fn a_waker_of_a_driver_may_advance_the_clock_during_a_shutdown() {
    let (ended, ends) = mpsc::channel();
    thread::spawn(move || {
        let clock = ManualClock::new();
        let builder = Timer::builder().clock(clock.clone()).shards(2);
        let built = builder.build_with_driver(|_| std::future::pending::<()>());
        let (timer, mut driver) = built.expect("the settings are valid");
        // Threads use the shards in turn.
        let threads: Vec<_> = (0..32)
            .map(|_| {
                let mut sleep = timer.sleep(SECOND);
                thread::spawn(move || (poll(&mut sleep).is_pending(), sleep))
            })
            .collect();
        let sleeps: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(sleeps.iter().all(|(is_pending, _)| *is_pending));
        let waker = Waker::from(Arc::new(Advances(clock)));
        assert!(poll_with(&mut driver, &waker).is_pending());
        timer.shutdown();
        ended.send(()).unwrap();
    });
    assert_eq!(ends.recv_timeout(Duration::from_secs(20)), Ok(()), "the shutdown never returns");
}
