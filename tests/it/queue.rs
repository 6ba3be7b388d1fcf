//! The delay queue: threads receive values when these are due.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use delaywheel::{
    DelayQueue, ManualClock, RecvError, RecvTimeoutError, ScheduleErrorKind, TryRecvError,
};

use crate::timer::clock::Set;

const MS: Duration = Duration::from_millis(1);

/// Longer than any test here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn queue() -> (ManualClock, DelayQueue<u32>) {
    let clock = ManualClock::new();
    let queue = DelayQueue::builder().clock(clock.clone()).build_queue().unwrap();
    (clock, queue)
}

#[test]
fn a_shutdown_returns_due_and_pending_values_and_receivers_get_an_error() {
    let (clock, queue) = queue();
    queue.insert(MS, 1).unwrap();
    queue.insert(LONG, 2).unwrap();
    clock.advance(MS);
    let mut values = queue.shutdown();
    values.sort_unstable();
    assert_eq!(values, [1, 2]);
    assert!(queue.shutdown().is_empty());
    let error = queue.insert(MS, 3).unwrap_err();
    assert_eq!((error.kind(), error.into_value()), (ScheduleErrorKind::ShutDown, 3));
    assert_eq!(queue.recv(), Err(RecvError));
    assert_eq!(queue.recv_timeout(LONG), Err(RecvTimeoutError::ShutDown));
    assert_eq!(queue.try_recv(), Err(TryRecvError::ShutDown));
}

#[test]
fn receivers_on_threads_get_every_value_and_then_the_end() {
    let queue = DelayQueue::new();
    let received = Arc::new(AtomicUsize::new(0));
    let receivers = [0; 2].map(|_| {
        let (queue, received) = (queue.clone(), Arc::clone(&received));
        thread::spawn(move || {
            for _ in &queue {
                received.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for value in 0..100 {
        queue.insert(MS * (value % 10), value).unwrap();
    }
    while received.load(Ordering::Relaxed) < 100 {
        thread::yield_now();
    }
    assert!(queue.shutdown().is_empty());
    for receiver in receivers {
        receiver.join().unwrap();
    }
    assert_eq!(received.load(Ordering::Relaxed), 100);
}

#[test]
fn a_receive_with_a_timeout_of_zero_does_not_wait() {
    let queue = DelayQueue::new();
    queue.insert(LONG, 'a').unwrap();
    assert_eq!(queue.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
    let key = queue.insert(LONG, 'b').unwrap();
    assert!(queue.reset(key, Duration::ZERO));
    assert_eq!(queue.recv_timeout(LONG), Ok('b'));
}

#[test]
fn values_inserted_by_many_threads_are_received_in_the_order_of_their_deadlines() {
    let clock = Set::new();
    let queue = DelayQueue::builder().clock(clock.clone()).build_queue().unwrap();
    for thread in 0..8 {
        let insert = || {
            for delay in 0..300 {
                queue.insert((delay * 8 + thread) * MS, delay * 8 + thread).unwrap();
            }
        };
        thread::scope(|scope| drop(scope.spawn(insert)));
    }
    clock.show(LONG);
    let received: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    assert!(received.into_iter().eq(0..8 * 300));
}
