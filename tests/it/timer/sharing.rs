//! One reaper thread that serves several timers, queues and purgatories.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
    time::Duration,
};

use delaywheel::{Completion, Purgatory, Reaper, Timer, TimerBuilder, ValueTimer};

use super::{
    support::{GENEROUS, MS, YEAR, must_return, wait_until},
    threads::has_threads,
};
use crate::purgatory::support::{Op, Shared};

fn served(reaper: &Reaper) -> TimerBuilder {
    Timer::builder().reaper(reaper).inline().name("served")
}

fn await_callback(timer: &Timer) {
    let (ran, runs) = mpsc::channel();
    timer.schedule(MS, move || ran.send(thread::current().id()).unwrap()).unwrap();
    runs.recv_timeout(GENEROUS).unwrap();
}

#[test]
fn two_purgatories_a_timer_and_a_queue_share_a_thread_that_ends_with_the_last_of_them() {
    let reaper = Reaper::new("for-all");
    for _ in 0..2 {
        let timer = served(&reaper).build().unwrap();
        let purgatories = [(); 2]
            .map(|()| -> Shared { Purgatory::builder().timer(served(&reaper)).build().unwrap() });
        let queue = Timer::builder().reaper(&reaper).build_queue().unwrap();
        assert!(has_threads("for-all", 0), "the first timeout starts the thread");

        await_callback(&timer);
        for purgatory in &purgatories {
            let (ended, ends) = mpsc::channel();
            let op = Op::new().end(move |end| ended.send(end).unwrap());
            purgatory.watch(op, [1], MS).unwrap();
            assert_eq!(ends.recv_timeout(GENEROUS), Ok(Completion::Expired));
        }
        queue.insert(MS, 7_u32).unwrap();
        assert_eq!(queue.recv_timeout(GENEROUS), Ok(7));
        assert!(has_threads("for-all", 1) && has_threads("served", 0));

        drop((timer, purgatories));
        queue.insert(MS, 8).unwrap();
        assert_eq!(queue.recv_timeout(GENEROUS), Ok(8), "the reaper ended too soon");
        drop(queue);
        wait_until("the thread ends", || has_threads("for-all", 0));
    }
}

#[test]
fn a_finish_waits_for_its_own_timeouts_and_not_for_those_of_others() {
    let reaper = Reaper::new("finishes");
    let [timer, other] = [(); 2].map(|()| served(&reaper).build().unwrap());
    other.schedule(YEAR, || ()).unwrap();
    timer.schedule(5 * MS, || ()).unwrap();
    assert!(must_return(move || timer.finish(YEAR)).is_empty());
    assert_eq!(other.shutdown().len(), 1);
}

#[test]
fn a_callback_on_the_reaper_that_finishes_another_timer_does_not_wait_for_the_reaper() {
    let reaper = Reaper::new("finisher");
    let timer = served(&reaper).build().unwrap();
    // Its executor would wait for the end of a reaper that runs this callback.
    let other: ValueTimer<u32> = Timer::builder().reaper(&reaper).build_with(|_| ()).unwrap();
    other.schedule(YEAR, 1).unwrap();
    let (finished, left) = mpsc::channel();
    timer.schedule(Duration::ZERO, move || finished.send(other.finish(YEAR)).unwrap()).unwrap();
    assert_eq!(left.recv_timeout(GENEROUS), Ok(vec![1]));
}

struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        panic!("the drop of a handler");
    }
}

#[test]
fn a_handler_whose_drop_panics_stops_no_other_timer() {
    let reaper = Reaper::new("explosive");
    let other = served(&reaper).build().unwrap();
    for _ in 0..20 {
        let explosive = Explosive;
        let handle = move |_: u32| _ = &explosive;
        let timer = served(&reaper).build_with(handle).unwrap();
        timer.schedule(YEAR, 1).unwrap();
        // This thread or the reaper drops the handler.
        _ = catch_unwind(AssertUnwindSafe(|| drop(timer)));
        await_callback(&other);
    }
}
