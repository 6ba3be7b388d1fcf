//! `finish`: due callbacks still run, the others are returned, and no thread waits
//! for a callback that cannot run.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Instant,
};

use delaywheel::{MissedTicks, Repeating, Timer, TimerBuilder};

use super::support::{GENEROUS, Log, MS, WAYS, YEAR, block, must_return, wait_until};

fn each_execution(test: impl Fn(Timer)) {
    for way in WAYS {
        test(way(Timer::builder()).build().unwrap());
    }
}

#[test]
fn a_finish_runs_callbacks_that_become_due_and_ends_with_the_last_one() {
    each_execution(|timer| {
        let ran = Log::new();
        for delay in 0..200 {
            let ran = ran.clone();
            let count_late = move || {
                thread::yield_now();
                ran.push(());
            };
            timer.schedule(delay % 20 * MS, count_late).unwrap();
        }
        assert!(must_return(move || timer.finish(YEAR)).is_empty());
        assert_eq!(ran.take().len(), 200, "the finish did not wait for all callbacks");
    });
}

#[test]
fn at_its_deadline_a_finish_returns_pending_callbacks_and_does_not_wait_for_a_running_one() {
    each_execution(|timer| {
        let release = block(&timer);
        for _ in 0..3 {
            timer.schedule(YEAR, || ()).unwrap();
        }
        let deadline = Instant::now() + 20 * MS;
        let left = must_return(move || timer.finish(20 * MS));
        assert_eq!(left.len(), 3);
        assert!(Instant::now() >= deadline, "the finish returned before its deadline");
        drop(release);
    });
}

#[test]
fn a_shutdown_ends_a_finish_that_waits_for_a_running_callback() {
    let timer = Timer::new();
    let release = block(&timer);
    let own = timer.clone();
    let finish = thread::spawn(move || own.finish(YEAR));
    wait_until("the timer refuses timeouts", || timer.schedule(YEAR, || ()).is_err());
    timer.shutdown();
    must_return(|| finish.join().unwrap());
    drop(release);
}

#[test]
fn a_callback_that_finishes_its_timer_returns_the_callbacks_of_its_own_thread() {
    for way in [TimerBuilder::inline, |builder| builder] {
        let timer = way(Timer::builder()).build().unwrap();
        let (send, received) = mpsc::channel();
        let own = timer.clone();
        timer.schedule(YEAR, || ()).unwrap();
        let finish = move || send.send(own.finish(YEAR).len()).unwrap();
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
    let finish = move || send.send((own.finish(YEAR).len(), ran.take())).unwrap();
    // The other way round, the finish could refuse it.
    timer.schedule(10 * MS, log.note("by the other")).unwrap();
    timer.schedule(5 * MS, finish).unwrap();
    assert_eq!(received.recv_timeout(GENEROUS), Ok((0, vec!["by the other"])));
}

#[test]
fn a_repetition_ends_with_the_first_occurrence_that_a_finish_refuses() {
    let timer = Timer::new();
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let count_up = move |_: &Repeating| *counted.lock().unwrap() += 1;
    let beat = timer.repeat(5 * MS).at_fixed_rate(MissedTicks::Skip, count_up).unwrap();
    assert!(must_return(move || timer.finish(YEAR)).is_empty());
    assert!(!beat.is_running());
    assert!(*count.lock().unwrap() >= 1, "the pending occurrence ran");
}
