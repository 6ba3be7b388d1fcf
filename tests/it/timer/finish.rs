//! `finish` and `finish_by`: due callbacks still run, the others are returned, and no thread waits
//! for a callback that cannot run.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{
    Clock, DelayQueue, MissedTicks, Repeating, ScheduleErrorKind, Timer, TimerBuilder,
};

use super::support::{GENEROUS, Log, MS, SECOND, YEAR, manual, must_return, wait_until};

/// A deadline that no test waits for.
fn far() -> Instant {
    Instant::now() + YEAR
}

/// Every way to run callbacks on the timer's own threads.
fn each_execution(test: impl Fn(Timer)) {
    let ways: [fn(TimerBuilder) -> TimerBuilder; 3] =
        [|builder| builder, |builder| builder.executor_threads(3), TimerBuilder::inline];
    for way in ways {
        test(way(Timer::builder()).build().unwrap());
    }
}

#[test]
fn a_finish_runs_callbacks_that_become_due_and_ends_with_the_last_one() {
    each_execution(|timer| {
        let ran = Arc::new(AtomicUsize::new(0));
        for delay in 0..200 {
            let ran = Arc::clone(&ran);
            let count_late = move || {
                thread::yield_now();
                ran.fetch_add(1, Ordering::Relaxed);
            };
            timer.schedule(delay % 20 * MS, count_late).unwrap();
        }
        assert!(must_return(move || timer.finish_by(far())).is_empty());
        assert_eq!(ran.load(Ordering::Relaxed), 200, "the finish did not wait for all callbacks");
    });
}

#[test]
fn at_its_deadline_a_finish_returns_pending_callbacks_and_does_not_wait_for_a_running_one() {
    each_execution(|timer| {
        let (release, released) = mpsc::channel::<()>();
        let (running, runs) = mpsc::channel();
        timer
            .schedule(Duration::ZERO, move || {
                running.send(()).unwrap();
                let _ = released.recv_timeout(GENEROUS);
            })
            .unwrap();
        for _ in 0..3 {
            timer.schedule(YEAR, || ()).unwrap();
        }
        runs.recv_timeout(GENEROUS).unwrap();
        let deadline = Instant::now() + 20 * MS;
        let left = must_return(move || timer.finish_by(deadline));
        assert_eq!(left.len(), 3);
        assert!(Instant::now() >= deadline, "the finish returned before its deadline");
        drop(release);
    });
}

#[test]
fn a_timer_that_finishes_refuses_new_timeouts_and_keeps_the_pending_ones() {
    let timer = Timer::new();
    let kept = timer.schedule(YEAR, || ()).unwrap();
    let own = timer.clone();
    let finish = thread::spawn(move || own.finish_by(far()));
    wait_until("the timer refuses timeouts", || {
        let refused = timer.schedule(YEAR, || ());
        refused.is_err_and(|error| error.kind() == ScheduleErrorKind::ShutDown)
    });
    assert!(kept.is_pending() && kept.reset(YEAR) && !finish.is_finished());
    // The timeouts that were accepted meanwhile are far ahead as well.
    let left = timer.shutdown();
    let rest = must_return(|| finish.join().unwrap());
    assert!(
        !kept.is_pending() && left.is_empty() != rest.is_empty(),
        "one of the calls returns all of them"
    );
}

#[test]
fn the_cancel_of_the_last_timeout_ends_a_finish() {
    each_execution(|timer| {
        let mut timeouts: Vec<_> = (0..9).map(|_| timer.schedule(YEAR, || ()).unwrap()).collect();
        let (own, before) = (timer.clone(), timer.stats().wakeups);
        let finish = thread::spawn(move || own.finish_by(far()));
        wait_until("the timer refuses timeouts", || {
            let scheduled = timer.schedule(YEAR, || ());
            let is_refused = scheduled.is_err();
            timeouts.extend(scheduled);
            is_refused
        });
        wait_until("the reaper has woken", || timer.stats().wakeups > before);
        assert!(timeouts.iter().all(delaywheel::Timeout::cancel));
        assert!(must_return(|| finish.join().unwrap()).is_empty());
    });
}

#[test]
fn finishes_by_several_threads_return_everything_once_at_the_earliest_deadline() {
    let timer = Timer::builder().shards(3).build().unwrap();
    for _ in 0..50 {
        timer.schedule(YEAR, || ()).unwrap();
    }
    let earliest = Instant::now() + 10 * MS;
    let finishes = [far(), earliest, far(), far()].map(|deadline| {
        let timer = timer.clone();
        thread::spawn(move || timer.finish_by(deadline).len())
    });
    let left = must_return(|| finishes.map(|finish| finish.join().unwrap()));
    assert_eq!(left.iter().sum::<usize>(), 50);
    assert_eq!(timer.finish_by(far()).len(), 0, "a timeout was returned twice");
}

#[test]
fn a_shutdown_ends_a_finish_that_waits_for_a_running_callback() {
    let timer = Timer::new();
    let (running, runs) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let block = move || {
        running.send(()).unwrap();
        let _ = released.recv_timeout(2 * GENEROUS);
    };
    timer.schedule(Duration::ZERO, block).unwrap();
    runs.recv_timeout(GENEROUS).unwrap();
    let own = timer.clone();
    let finish = thread::spawn(move || own.finish_by(far()));
    wait_until("the timer refuses timeouts", || timer.schedule(YEAR, || ()).is_err());
    timer.shutdown();
    must_return(|| finish.join().unwrap());
    drop(release);
}

#[test]
fn a_callback_that_finishes_its_timer_does_not_wait_for_itself() {
    each_execution(|timer| {
        let (send, received) = mpsc::channel();
        let own = timer.clone();
        // The deadline is a year ahead, so a wait for this very callback would not end.
        let finish = move || send.send(own.finish_by(far()).len()).unwrap();
        timer.schedule(MS, finish).unwrap();
        assert_eq!(received.recv_timeout(GENEROUS), Ok(0));
    });
}

#[test]
fn a_callback_that_finishes_its_timer_returns_the_callbacks_of_its_own_thread() {
    for way in [TimerBuilder::inline, |builder| builder] {
        let timer = way(Timer::builder()).build().unwrap();
        let (send, received) = mpsc::channel();
        let own = timer.clone();
        timer.schedule(YEAR, || ()).unwrap();
        let finish = move || send.send(own.finish_by(far()).len()).unwrap();
        timer.schedule(MS, finish).unwrap();
        assert_eq!(received.recv_timeout(GENEROUS), Ok(1));
    }
}

#[test]
fn a_callback_that_finishes_its_timer_waits_for_other_threads() {
    let timer = Timer::builder().executor_threads(2).build().unwrap();
    let (send, received) = mpsc::channel();
    let (own, log) = (timer.clone(), Log::new());
    let ran = log.clone();
    let finish = move || send.send((own.finish_by(far()).len(), ran.take())).unwrap();
    timer.schedule(5 * MS, finish).unwrap();
    timer.schedule(10 * MS, log.note("by the other")).unwrap();
    assert_eq!(received.recv_timeout(GENEROUS), Ok((0, vec!["by the other"])));
}

#[test]
fn callbacks_that_all_finish_their_timer_do_not_wait_for_each_other() {
    let timer = Timer::builder().executor_threads(2).build().unwrap();
    let (send, received) = mpsc::channel();
    timer.schedule(YEAR, || ()).unwrap();
    for _ in 0..2 {
        let (own, send) = (timer.clone(), send.clone());
        timer.schedule(MS, move || send.send(own.finish_by(far()).len()).unwrap()).unwrap();
    }
    let left = [(); 2].map(|()| received.recv_timeout(GENEROUS).unwrap());
    assert!(left.iter().sum::<usize>() <= 2, "at most one callback ran too late");
    assert!(left.contains(&0));
}

#[test]
fn a_finish_waits_until_the_pool_has_every_callback() {
    let timer = Timer::builder().executor(|task| drop(thread::spawn(task))).build().unwrap();
    let (send, received) = mpsc::channel();
    for delay in 0..20 {
        let send = send.clone();
        timer.schedule(delay * MS, move || send.send(()).unwrap()).unwrap();
    }
    drop(send);
    assert!(must_return(move || timer.finish_by(far())).is_empty());
    assert_eq!(received.iter().count(), 20);
}

#[test]
fn a_repetition_ends_with_the_first_occurrence_that_a_finish_refuses() {
    let timer = Timer::new();
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let count_up = move |_: &Repeating| *counted.lock().unwrap() += 1;
    let beat = timer.schedule_at_fixed_rate(5 * MS, MissedTicks::Skip, count_up).unwrap();
    assert!(must_return(move || timer.finish_by(far())).is_empty());
    assert!(!beat.is_running());
    assert!(*count.lock().unwrap() >= 1, "the pending occurrence ran");
}

#[test]
fn in_virtual_time_a_finish_whose_deadline_has_passed_runs_nothing() {
    let (clock, timer) = manual();
    clock.advance(SECOND);
    timer.schedule(Duration::ZERO, || panic!("it was returned")).unwrap();
    assert_eq!(timer.finish_by(clock.now().checked_sub(MS).unwrap()).len(), 1);
}

#[test]
fn threads_end_after_a_finish() {
    let timer = Timer::builder().name("dw-finish").executor_threads(2).build().unwrap();
    timer.schedule(MS, || ()).unwrap();
    timer.finish_by(far());
    wait_until("no threads", || super::threads::threads("dw-finish") == 0);
}

#[test]
fn receivers_get_the_due_values_of_a_queue_that_finishes_and_it_returns_the_others() {
    let queue = DelayQueue::new();
    for delay in 0..20 {
        queue.insert(delay * MS, delay).unwrap();
    }
    let late = queue.insert(YEAR, 99).unwrap();
    let receivers = [(); 3].map(|()| {
        let queue = queue.clone();
        thread::spawn(move || queue.iter().collect::<Vec<_>>())
    });
    let own = queue.clone();
    let finish = thread::spawn(move || own.finish_by(far()));
    wait_until("only the last is pending", || queue.stats().pending == 1);
    wait_until("the timer refuses timeouts", || {
        queue.insert(YEAR, 100).map(|key| queue.cancel(key)).is_err()
    });
    assert_eq!(queue.cancel(late), Some(99));
    assert_eq!(must_return(|| finish.join().unwrap()), []);
    let received = must_return(|| receivers.map(|receiver| receiver.join().unwrap()));
    let mut all = received.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..20), "receivers get all values, and then an error");
}
