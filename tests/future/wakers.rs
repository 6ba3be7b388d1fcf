//! Wakers: which one is woken, when they are cloned, and what they may do.

use std::{
    panic::panic_any,
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use delaywheel::{Timer, future::SharedDelayMap};
use futures_core::Stream;
use pollster::block_on;

use crate::support::{SECOND, Wakes, begin, poll, poll_with, purgatory, queue, timer};

struct Call<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(call: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Call(call)))
}

#[test]
fn a_poll_by_the_same_task_clones_no_waker() {
    let (timer, _clock) = timer();
    let (woken, waker) = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll_with(&mut sleep, &waker).is_pending());
    let held = Arc::strong_count(&woken);
    for _ in 0..100 {
        assert!(poll_with(&mut sleep, &waker).is_pending());
    }
    assert_eq!((held, Arc::strong_count(&woken)), (3, 3));
    drop(sleep);
    assert_eq!(Arc::strong_count(&woken), 2);
}

#[test]
fn a_waker_that_panics_is_counted_and_stops_no_other() {
    let (timer, clock) = timer();
    let (woken, good) = Wakes::new();
    let bad = waker(|| panic_any("a waker panics"));
    let mut sleeps: Vec<_> = (0..4).map(|_| timer.sleep(SECOND)).collect();
    for (index, sleep) in sleeps.iter_mut().enumerate() {
        assert!(poll_with(sleep, if index % 2 == 0 { &bad } else { &good }).is_pending());
    }
    clock.advance(SECOND);
    assert_eq!((woken.count(), timer.stats().panicked), (2, 2));

    let (timer, _clock) = crate::support::timer();
    for sleep in &mut sleeps {
        *sleep = timer.sleep(SECOND);
        assert!(poll_with(sleep, &bad).is_pending());
    }
    sleeps[3] = timer.sleep(SECOND);
    assert!(poll_with(&mut sleeps[3], &good).is_pending());
    assert!(timer.shutdown().is_empty(), "a panic does not leave the shutdown");
    assert_eq!(woken.count(), 3);
}

#[test]
fn a_waker_of_a_wait_that_panics_stops_no_other() {
    for is_shut_down in [false, true] {
        let (purgatory, _clock) = purgatory();
        let (woken, good) = Wakes::new();
        let bad = waker(|| panic_any("a waker panics"));
        let mut waits = [&bad, &good, &bad].map(|waker| {
            let mut wait = purgatory.wait([3], SECOND);
            assert!(poll_with(&mut wait, waker).is_pending());
            wait
        });
        if is_shut_down {
            drop(purgatory.shutdown());
        } else {
            purgatory.check_and_complete(&3);
        }
        assert!(waits.iter_mut().all(|wait| poll(wait).is_ready()));
        let counted = if is_shut_down { 0 } else { 2 };
        assert_eq!((woken.count(), purgatory.stats().panicked), (1, counted));
    }
}

#[test]
fn a_waker_of_a_wait_may_poll_it_and_drop_another() {
    for is_shut_down in [false, true] {
        let (purgatory, _clock) = purgatory();
        let waits = [3, 4].map(|key| purgatory.wait([key], SECOND));
        let waits = Arc::new(Mutex::new(Vec::from(waits)));
        let (inner, used) = (Arc::clone(&waits), purgatory.clone());
        let (done, dones) = mpsc::channel();
        let reentrant = waker(move || {
            let mut waits = inner.lock().expect("no test panics with it");
            drop(waits.pop());
            let is_ready = poll(&mut waits[0]).is_ready();
            used.check_and_complete(&3);
            done.send((is_ready, used.stats().panicked)).expect("the test waits");
        });
        let mut held = waits.lock().expect("no test panics with it");
        let polls = [poll_with(&mut held[0], &reentrant), poll(&mut held[1])];
        assert!(polls.iter().all(Poll::is_pending));
        drop(held);
        if is_shut_down {
            drop(purgatory.shutdown());
        } else {
            purgatory.check_and_complete(&3);
        }
        assert_eq!(dones.try_recv(), Ok((true, 0)));
        assert_eq!((purgatory.stats().delayed, purgatory.stats().timer.pending), (0, 0));
    }
}

#[test]
fn a_waker_of_a_receiver_that_panics_stops_no_other() {
    let (queue, clock) = queue();
    let (woken, good) = Wakes::new();
    let bad = waker(|| panic_any("a waker panics"));
    let insert = |value| queue.insert(SECOND, value).expect("the queue is open");
    let (mut early, mut late) = (queue.recv_async(), queue.recv_async());
    assert!(poll_with(&mut early, &good).is_pending() && poll_with(&mut late, &bad).is_pending());
    insert(1);
    clock.advance(SECOND);
    assert_eq!(woken.count(), 1);
    drop(early);
    assert_eq!(poll(&mut late), Poll::Ready(Ok(1)), "a panic does not leave the drop");
    assert_eq!(queue.timer().stats().panicked, 0, "a drop counts none");

    let mut receivers = [&bad, &good].map(|waker| {
        let mut receiver = queue.recv_async();
        assert!(poll_with(&mut receiver, waker).is_pending());
        receiver
    });
    insert(2);
    insert(3);
    clock.advance(SECOND);
    assert_eq!((woken.count(), queue.timer().stats().panicked), (2, 1));
    assert!(receivers.iter_mut().all(|receiver| poll(receiver).is_ready()));
    assert!(poll_with(&mut receivers[0], &bad).is_pending());
    assert!(poll_with(&mut receivers[1], &good).is_pending());
    queue.shutdown();
    assert_eq!((woken.count(), queue.timer().stats().panicked), (3, 1), "an end counts none");
}

#[test]
fn a_value_is_not_left_to_a_task_whose_waker_panics() {
    let (queue, clock) = queue();
    let (woken, good) = Wakes::new();
    let bad = waker(|| panic_any("a waker panics"));
    let [_first, second, _third, mut last] = [&bad, &good, &bad, &good].map(|waker| {
        let mut receiver = queue.recv_async();
        assert!(poll_with(&mut receiver, waker).is_pending());
        receiver
    });
    queue.insert(SECOND, 1).expect("the queue is open");
    clock.advance(SECOND);
    assert_eq!((woken.count(), queue.timer().stats().panicked), (1, 1));
    drop(second);
    assert_eq!(woken.count(), 2, "the drop has woken no other");
    assert_eq!(poll(&mut last), Poll::Ready(Ok(1)));
}

/// The waker of a task that panics when its last clone is dropped.
struct Bad;

impl Wake for Bad {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Bad {
    fn drop(&mut self) {
        panic_any("a waker panics");
    }
}

#[test]
fn a_value_is_not_lost_if_the_drop_of_a_waker_panics() {
    let (queue, clock) = queue();
    let (mut early, mut late) = (queue.recv_async(), queue.recv_async());
    assert!(poll(&mut early).is_pending());
    assert!(poll_with(&mut late, &Waker::from(Arc::new(Bad))).is_pending());
    queue.insert(SECOND, 1).expect("the queue is open");
    clock.advance(SECOND);
    assert_eq!(poll(&mut late), Poll::Ready(Ok(1)));

    let (timer, clock) = timer();
    for delay in [SECOND, 2 * SECOND] {
        let map = SharedDelayMap::on(&timer);
        let mut next = Box::pin(map.next());
        map.lock().insert('a', 1, delay).expect("the map has room");
        assert!(poll_with(&mut next, &Waker::from(Arc::new(Bad))).is_pending());
        // The sleep of the task has ended, or is pending.
        map.lock().insert('b', 2, SECOND).expect("the map has room");
        clock.advance(SECOND);
        let first = if delay == SECOND { ('a', 1) } else { ('b', 2) };
        assert_eq!(poll(&mut next).map(Result::ok), Poll::Ready(Some(first)));
    }
}

#[test]
fn a_waker_of_a_receiver_may_use_its_queue() {
    let (queue, clock) = queue();
    let streams = Arc::new(Mutex::new(vec![queue.stream(), queue.stream()]));
    let (inner, used) = (Arc::clone(&streams), queue.clone());
    let (received, results) = mpsc::channel();
    let reentrant = waker(move || {
        let mut streams = inner.lock().expect("no test panics with it");
        drop(streams.pop());
        let first = Pin::new(&mut streams[0]).poll_next(&mut Context::from_waker(Waker::noop()));
        received.send((first, used.try_recv().ok(), used.len())).expect("the test waits");
    });
    let (woken, good) = Wakes::new();
    let mut early = queue.recv_async();
    assert!(poll_with(&mut early, &good).is_pending());
    let mut held = streams.lock().expect("no test panics with it");
    for (stream, waker) in held.iter_mut().zip([&reentrant, Waker::noop()]) {
        assert!(Pin::new(stream).poll_next(&mut Context::from_waker(waker)).is_pending());
    }
    drop(held);
    queue.insert(SECOND, 7).expect("the queue is open");
    clock.advance(SECOND);
    assert_eq!((woken.count(), results.try_recv().is_ok()), (1, false));
    drop(early);
    assert_eq!(results.try_recv(), Ok((Poll::Ready(Some(7)), None, 0)));
}

#[test]
fn a_waker_is_cloned_woken_and_dropped_without_a_lock() {
    /// Uses the timer of the test when it is woken and dropped.
    struct Nosy(Timer);
    impl Wake for Nosy {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.stats().pending, 0);
        }
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            // This takes the lock of every shard.
            let _ = self.0.stats();
        }
    }
    let (timer, clock) = timer();
    let nosy = || Waker::from(Arc::new(Nosy(timer.clone())));
    let mut sleep = timer.sleep(SECOND);
    assert!(poll_with(&mut sleep, &nosy()).is_pending());
    assert!(poll_with(&mut sleep, &nosy()).is_pending(), "drops the first one");
    drop(sleep);
    let mut sleep = timer.sleep(SECOND);
    assert!(poll_with(&mut sleep, &nosy()).is_pending());
    clock.advance(SECOND);
    assert!(poll_with(&mut sleep, &nosy()).is_ready());
    let map = SharedDelayMap::on(&timer);
    let (used, own, (looked, looks)) = (map.clone(), timer.clone(), mpsc::channel());
    let looking = waker(move || looked.send((used.lock().len(), own.stats().pending)).unwrap());
    let (mut next, mut sleep) = (Box::pin(map.next()), timer.sleep(SECOND));
    assert!(poll_with(&mut next, &looking).is_pending());
    assert!(poll_with(&mut sleep, &looking).is_pending());
    map.lock().insert(1, 2, SECOND).expect("the map has room");
    timer.finish(Duration::ZERO);
    assert!(looks.try_iter().eq([(1, 1); 2]));
    let mut sleep = timer.sleep(SECOND);
    assert!(poll_with(&mut sleep, &nosy()).is_ready(), "refuses and drops it");
}

#[test]
fn a_waker_may_drop_the_last_handle_of_its_timer() {
    let (timer, handle) = (Timer::new(), Arc::new(Mutex::new(None)));
    let (inner, (done, dones)) = (Arc::clone(&handle), mpsc::channel());
    let last = waker(move || {
        drop(inner.lock().expect("no test panics with it").take());
        done.send(()).expect("the test waits");
    });
    let mut held = handle.lock().expect("no test panics with it");
    let mut near = timer.sleep(Duration::from_millis(1));
    begin(&mut near, Duration::from_millis(1), &last);
    let (woken, waker) = Wakes::new();
    let mut far = timer.sleep(Duration::from_secs(3600));
    assert!(poll_with(&mut far, &waker).is_pending());
    *held = Some(timer);
    drop(held);
    dones.recv().expect("the drop returns on the thread of the reaper");
    assert_eq!(woken.count(), 1);
    assert!(block_on(far).is_err());
}

#[test]
fn a_waker_that_blocks_delays_no_callback() {
    let timer = Timer::new();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (entered, enters) = mpsc::channel();
    let blocking = waker(move || {
        entered.send(()).expect("the test waits");
        let _ = released.lock().expect("only this one locks").recv();
    });
    let mut sleep = timer.sleep(Duration::from_millis(1));
    begin(&mut sleep, Duration::from_millis(1), &blocking);
    enters.recv().expect("the waker is woken");
    let (ran, runs) = mpsc::channel();
    timer.schedule(Duration::ZERO, move || ran.send(()).expect("the test waits")).expect("it runs");
    runs.recv().expect("the callback runs beside the waker");
    drop(release);
    block_on(timer.sleep(Duration::from_millis(1))).expect("sleeps go on");
}
