//! The delay queue: threads receive values when these are due.

use std::{thread, time::Duration};

use delaywheel::{DelayQueue, RecvTimeoutError};

use crate::timer::clock::Set;

const MS: Duration = Duration::from_millis(1);

/// Longer than any test here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

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
