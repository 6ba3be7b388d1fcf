//! `finish` beside the threads that it waits for, a cancel, an insert and a shutdown; receivers of
//! a queue beside its end.
//!
//! No deadline passes here: a finish that misses its end shows as a deadlock.

use std::{
    iter,
    sync::{Arc, mpsc::TryRecvError},
    time::Duration,
    vec::Vec,
};

use loom::thread;

use super::{
    DUE, FAR, Log, beside, check, check_of_three, end, expired, insert, join, new_timer, serve,
    serve_by, silent, try_insert,
};
use crate::{
    timer::{
        delivery::{Backlog, Delivery, Handler},
        error::ScheduleError,
        lifecycle::CallbackThreads,
        value::SharedTimer,
    },
    wheel::TimingWheel,
};

/// Returns a timer that runs callbacks on its reaper, the reaper, and the values that the handler
/// gets.
fn started() -> (Arc<SharedTimer<TimingWheel<u32>>>, thread::JoinHandle<()>, Log) {
    let (timer, reaper, log) = new_timer(Delivery::Inline);
    let reaper = serve(&reaper, &timer).expect("its thread does not run yet");
    (timer, reaper, log)
}

pub(super) fn finish(timer: &SharedTimer<TimingWheel<u32>>) -> Vec<u32> {
    timer.finish_by(timer.shards.clock.elapsed_after(Duration::from_secs(3600)))
}

#[test]
fn a_finish_ends_when_the_last_timeout_is_cancelled() {
    check_of_three(|| {
        let (timer, reaper, log) = started();
        let key = insert(&timer.shards, 0, FAR, 7);
        let canceller = beside(&timer, move |timer| timer.shards.cancel(key));
        assert_eq!(finish(&timer), []);
        assert_eq!(join(canceller), Some(7));
        assert_eq!(*log.lock(), []);
        join(reaper);
    });
}

#[test]
fn a_shutdown_ends_a_finish_and_one_of_them_returns_the_timeout() {
    check(|| {
        let (timer, reaper, log) = new_timer(Delivery::Inline);
        insert(&timer.shards, 0, FAR, 7);
        // The thread of the reaper only shuts down, so its end cannot end the finish.
        let closer = Arc::clone(&timer);
        let closer = serve_by(&reaper, &timer, move || closer.shut_down());
        let mut left = finish(&timer);
        left.append(&mut join(closer.expect("its thread does not run yet")));
        assert_eq!((left, &**log.lock()), (Vec::from([7]), &[][..]));
        timer.shards.check_invariants();
    });
}

#[test]
fn a_timeout_inserted_when_a_finish_begins_is_refused_or_run() {
    check(|| {
        let (timer, reaper, log) = started();
        let inserter = beside(&timer, |timer| try_insert(&timer.shards, 0, DUE, DUE, 7).err());
        let mut ended = finish(&timer);
        assert_eq!(ended, [], "the finish waits for an accepted timeout");
        ended.extend(join(inserter).map(ScheduleError::into_value));
        ended.append(&mut log.lock());
        assert_eq!(ended, [7]);
        join(reaper);
        timer.check_invariants();
    });
}

/// Two executors. Each runs one callback, which waits for the end of all callback threads if
/// `finishes` says so.
fn executors(threads: &Arc<CallbackThreads>, finishes: [bool; 2]) -> Vec<thread::JoinHandle<()>> {
    let executor = |finishes| {
        let waiting = Arc::clone(threads);
        let handler = Handler::new(silent(), move |_| {
            if finishes {
                waiting.wait_for_end(|| Duration::MAX);
            }
        });
        let (ending, mut started) = (Arc::clone(threads), None);
        let spawn = || {
            let thread = thread::spawn(move || {
                expired([0]).into_iter().for_each(|expired| handler.call(expired));
                ending.leave();
            });
            let id = thread.thread().id();
            started = Some(thread);
            Ok(id)
        };
        threads.add(spawn).expect("the thread starts");
        started.expect("the thread has started")
    };
    finishes.map(executor).into()
}

#[test]
fn a_finish_waits_for_all_executors() {
    check(|| {
        let threads = Arc::<CallbackThreads>::default();
        let executors = executors(&threads, [false, false]);
        threads.wait_for_end(|| Duration::MAX);
        end(executors);
    });
}

#[test]
fn executors_that_finish_their_own_timer_do_not_wait_for_themselves_or_each_other() {
    for finishes in [[true, false], [true, true]] {
        check(move || end(executors(&Arc::default(), finishes)));
    }
}

/// Returns a queue with a due value, its reaper, and a thread that receives.
fn started_queue()
-> (Arc<SharedTimer<TimingWheel<u32>>>, thread::JoinHandle<()>, thread::JoinHandle<Vec<u32>>) {
    let backlog = Arc::new(Backlog::new(true));
    let (timer, reaper, _) = new_timer(Delivery::Backlog(Arc::clone(&backlog)));
    let reaper = serve(&reaper, &timer).expect("its thread does not run yet");
    insert(&timer.shards, 0, DUE, 7);
    (timer, reaper, beside(&backlog, receive_all))
}

/// Receives until the end, and checks that no value comes after it.
fn receive_all(backlog: &Backlog<u32>) -> Vec<u32> {
    let values =
        iter::from_fn(|| backlog.take_by(None).ok()).map(|expired| expired.value).collect();
    assert!(matches!(backlog.try_take(), Err(TryRecvError::Disconnected)), "after the end");
    values
}

#[test]
fn a_receiver_or_a_shutdown_gets_every_value_and_none_comes_after_the_end() {
    check_of_three(|| {
        let (timer, reaper, receiver) = started_queue();
        let mut got = timer.shut_down();
        let at_the_end = timer.len();
        got.extend(join(receiver));
        assert_eq!((got, at_the_end), (Vec::from([7]), 0), "the shutdown left a value behind");
        join(reaper);
        assert_eq!(timer.len(), 0, "a value comes after the end");
    });
}

#[test]
fn receivers_get_the_due_values_of_a_finished_queue_and_then_its_end() {
    check_of_three(|| {
        let (timer, reaper, receiver) = started_queue();
        assert_eq!(finish(&timer), []);
        assert_eq!(join(receiver), [7]);
        join(reaper);
    });
}
