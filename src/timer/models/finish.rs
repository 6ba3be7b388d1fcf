//! `finish` against the threads that it waits for, and against threads that end timeouts or the timer;
//! receivers of a queue against its end.
//!
//! No deadline comes in here: a finish that misses its end shows as a deadlock.

use std::{
    iter,
    sync::Arc,
    time::{Duration, Instant},
    vec::Vec,
};

use loom::thread;

use super::{DUE, FAR, Log, check, engine_of, insert, silent};
use crate::{
    sync::{AtomicBool, Condvar, Mutex, Ordering, Parker},
    timer::{
        backlog::{Backlog, Missing},
        crew::Crew,
        engine::Engine,
        error::ScheduleError,
        executor::{Delivery, Handler, Passage},
    },
};

/// A timer whose reaper runs callbacks, and has begun; and what has been run.
fn begun() -> (Arc<Engine<u32>>, thread::JoinHandle<()>, Log) {
    let (engine, parker, log) = engine_of(Delivery::Inline);
    drop(engine.take_starter());
    let (member, reaper) = (engine.enlist_reaper(), Arc::clone(&engine));
    (engine, thread::spawn(move || reaper.reap(&parker, member.as_ref())), log)
}

fn finish(engine: &Engine<u32>) -> Vec<u32> {
    engine.finish_by(Instant::now() + Duration::from_secs(3600))
}

#[test]
fn a_finish_ends_when_what_is_due_has_run() {
    check(|| {
        let (engine, reaper, log) = begun();
        insert(&engine.core, 0, DUE, 7);
        assert_eq!(finish(&engine), []);
        assert_eq!(*log.lock(), [7], "a drain that ends early has not run it yet");
        reaper.join().expect("no thread panics");
    });
}

#[test]
fn a_finish_ends_when_the_last_timeout_is_cancelled() {
    check(|| {
        let (engine, reaper, log) = begun();
        let key = insert(&engine.core, 0, FAR, 7);
        let canceller = Arc::clone(&engine);
        let canceller = thread::spawn(move || canceller.core.cancel(key));
        assert_eq!(finish(&engine), []);
        assert_eq!(canceller.join().expect("no thread panics"), Some(7));
        assert_eq!(*log.lock(), []);
        reaper.join().expect("no thread panics");
    });
}

#[test]
fn a_shutdown_ends_a_finish_and_one_of_them_gets_what_is_left() {
    check(|| {
        let (engine, reaper, log) = begun();
        insert(&engine.core, 0, FAR, 7);
        let closer = Arc::clone(&engine);
        let closer = thread::spawn(move || closer.shut_down());
        let mut left = finish(&engine);
        left.append(&mut closer.join().expect("no thread panics"));
        assert_eq!((left, &**log.lock()), (Vec::from([7]), &[][..]));
        reaper.join().expect("no thread panics");
    });
}

#[test]
fn what_is_scheduled_while_a_finish_begins_is_refused_or_run() {
    check(|| {
        let (engine, reaper, log) = begun();
        let inserter = Arc::clone(&engine);
        let inserter = thread::spawn(move || inserter.core.schedule(Duration::ZERO, 7).err());
        let mut ended = finish(&engine);
        assert_eq!(ended, [], "the drain waits for what was taken in");
        let refused = inserter.join().expect("no thread panics");
        ended.extend(refused.map(ScheduleError::into_value));
        ended.append(&mut log.lock());
        assert_eq!(ended, [7]);
        reaper.join().expect("no thread panics");
    });
}

/// Two executors, and what they have run: each runs one value and, if it is told to, waits within
/// that.
fn executors(crew: &Arc<Crew>, drains: [bool; 2]) -> Vec<thread::JoinHandle<()>> {
    let executor = |is_draining| {
        let (crew, member) = (Arc::clone(crew), crew.enlist());
        thread::spawn(move || {
            member.begin();
            let handler = Handler::new(silent(), move |_| {
                if is_draining {
                    crew.wait(|| Duration::MAX);
                }
            });
            handler.call(crate::Expired { deadline: DUE, key: key(), value: () });
        })
    };
    drains.map(executor).into()
}

/// Any key: nobody looks at it.
fn key() -> crate::Key {
    let mut wheel = crate::TimingWheel::new(DUE);
    wheel.insert(DUE, ()).expect("it is empty")
}

#[test]
fn a_finish_waits_for_all_executors() {
    check(|| {
        let crew = Crew::new();
        let executors = executors(&crew, [false, false]);
        crew.wait(|| Duration::MAX);
        for executor in executors {
            executor.join().expect("no thread panics");
        }
    });
}

fn executors_end(drains: [bool; 2]) {
    check(move || {
        for executor in executors(&Crew::new(), drains) {
            executor.join().expect("no thread panics");
        }
    });
}

#[test]
fn an_executor_that_finishes_its_own_timer_does_not_wait_for_itself() {
    executors_end([true, false]);
}

#[test]
fn executors_that_finish_their_own_timer_do_not_wait_for_each_other() {
    executors_end([true, true]);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    CancelWakesNobody,
    WakesBeforeItTells,
    NotifiesUnlocked,
}

/// The protocol by hand, with a fault: a timeout that is cancelled, a reaper that ends when there
/// is none, and a drain that waits for it.
fn drain_against_cancel(fault: Fault) {
    let parker = Parker::new();
    let (reaper, canceller) = (parker.unparker().clone(), parker.unparker().clone());
    // Whether it is pending, and whether the shard refuses others.
    let shard = Arc::new(Mutex::new((true, false)));
    let is_draining = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::new((AtomicBool::new(false), Mutex::new(()), Condvar::new()));
    let (own_shard, own_flag, end) =
        (Arc::clone(&shard), Arc::clone(&is_draining), Arc::clone(&has_ended));
    let reaping = thread::spawn(move || {
        while !own_flag.load(Ordering::Acquire) || own_shard.lock().0 {
            parker.park();
        }
        let held = (fault != Fault::NotifiesUnlocked).then(|| end.1.lock());
        end.0.store(true, Ordering::Release);
        drop(held);
        end.2.notify_all();
    });
    let own_shard = Arc::clone(&shard);
    let cancelling = thread::spawn(move || {
        let mut shard = own_shard.lock();
        shard.0 = false;
        if shard.1 && fault != Fault::CancelWakesNobody {
            canceller.unpark();
        }
    });
    shard.lock().1 = true;
    if fault == Fault::WakesBeforeItTells {
        reaper.unpark();
    }
    is_draining.store(true, Ordering::Release);
    if fault != Fault::WakesBeforeItTells {
        reaper.unpark();
    }
    let mut held = has_ended.1.lock();
    while !has_ended.0.load(Ordering::Acquire) {
        held = has_ended.2.wait_for(held, Duration::MAX);
    }
    drop(held);
    for thread in [reaping, cancelling] {
        thread.join().expect("no thread panics");
    }
}

#[test]
fn the_finish_protocol_by_hand_holds() {
    check(|| drain_against_cancel(Fault::None));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_cancel_that_wakes_nobody_leaves_the_finish_waiting() {
    check(|| drain_against_cancel(Fault::CancelWakesNobody));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_finish_that_wakes_the_reaper_before_it_tells_waits_for_ever() {
    check(|| drain_against_cancel(Fault::WakesBeforeItTells));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_member_that_ends_without_the_lock_is_missed() {
    check(|| drain_against_cancel(Fault::NotifiesUnlocked));
}

/// A queue whose reaper has begun.
fn begun_queue() -> (Arc<Engine<u32>>, thread::JoinHandle<()>, Arc<Backlog<u32>>) {
    let backlog = Arc::new(Backlog::new());
    let (engine, parker, _) = engine_of(Delivery::Queue(Passage::new(Arc::clone(&backlog))));
    drop(engine.take_starter());
    let (member, reaper) = (engine.enlist_reaper(), Arc::clone(&engine));
    (engine, thread::spawn(move || reaper.reap(&parker, member.as_ref())), backlog)
}

/// Receives until the end, and checks that no value comes after it.
fn receive_all(backlog: &Backlog<u32>) -> Vec<u32> {
    let values = iter::from_fn(|| backlog.take()).map(|expired| expired.value).collect();
    assert!(matches!(backlog.try_take(), Err(Missing::Closed)), "a value comes after the end");
    values
}

#[test]
fn a_receiver_or_a_shutdown_gets_every_value_and_none_comes_after_the_end() {
    check(|| {
        let (engine, reaper, backlog) = begun_queue();
        insert(&engine.core, 0, DUE, 7);
        let receiver = Arc::clone(&backlog);
        let receiver = thread::spawn(move || receive_all(&receiver));
        let mut got = engine.shut_down();
        let at_the_end = backlog.len();
        got.extend(receiver.join().expect("no thread panics"));
        assert_eq!((got, at_the_end), (Vec::from([7]), 0), "the shutdown left a value behind");
        reaper.join().expect("no thread panics");
        assert_eq!(backlog.len(), 0, "a value comes after the end");
    });
}

#[test]
fn a_finish_of_a_queue_leaves_due_values_to_receivers_and_then_tells_them_the_end() {
    check(|| {
        let (engine, reaper, backlog) = begun_queue();
        insert(&engine.core, 0, DUE, 7);
        let receiver = thread::spawn(move || receive_all(&backlog));
        assert_eq!(finish(&engine), []);
        assert_eq!(receiver.join().expect("no thread panics"), [7]);
        reaper.join().expect("no thread panics");
    });
}
