//! The delay queue.

use std::{
    sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError},
    time::Duration,
};

use delaywheel::{DelayQueue, ManualClock, Timer};

use super::{DELAYS, instants};
use crate::timer::support::{MS, must_return};

#[test]
fn a_queue_accepts_every_delay_and_instant() {
    let clock = ManualClock::new();
    let queue = Timer::builder().clock(clock.clone()).build_queue().unwrap();
    let queue = queue.clone();
    let mut keys: Vec<_> = DELAYS.iter().map(|&delay| queue.insert(delay, 1).unwrap()).collect();
    keys.extend(instants().into_iter().map(|instant| queue.insert_at(instant, 2).unwrap()));
    clock.advance(MS);
    assert_eq!(queue.len(), keys.len(), "due values are still in the queue");
    assert!(!queue.is_empty());
    queue.timer().wake();
    queue.timer().check_invariants();
    assert!(!queue.timer().is_reaper_dead());
    assert!(queue.recv().is_ok() && queue.try_recv().is_ok());
    assert!(DELAYS[..3].iter().all(|&delay| queue.recv_timeout(delay).is_ok()));
    while queue.try_recv().is_ok() {}
    let timed_out = |&delay| queue.recv_timeout(delay) == Err(RecvTimeoutError::Timeout);
    assert!(DELAYS[..4].iter().all(timed_out));
    queue.insert(Duration::ZERO, 3).unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(queue.recv_timeout(Duration::MAX), Ok(3));
    for key in keys {
        assert_eq!(queue.timer().remaining(key).is_some(), queue.timer().is_pending(key));
        assert!(queue.timer().is_pending(key) || queue.timer().deadline(key).is_none());
        let is_there = instants().into_iter().rev().all(|at| queue.timer().reset_at(key, at));
        assert_eq!(queue.timer().remaining(key).is_some(), is_there);
        assert!(DELAYS.into_iter().rev().all(|delay| queue.reset(key, delay) == is_there));
        assert_eq!(queue.cancel(key).is_some(), is_there);
        assert!(!queue.reset(key, Duration::ZERO) && queue.cancel(key).is_none());
    }
    assert!(queue.is_empty() && queue.timer().stats().panicked == 0);
}

#[test]
fn a_queue_that_has_ended_refuses_values_and_receivers_get_an_error() {
    for instant in instants() {
        let queue = DelayQueue::default();
        queue.insert(Duration::MAX, 1).unwrap();
        assert_eq!(queue.finish(Duration::ZERO), [1]);
        assert!(queue.shutdown().is_empty());
        assert!(DELAYS.into_iter().all(|delay| queue.finish(delay).is_empty()));
        assert!(queue.insert(Duration::ZERO, 2).is_err() && queue.insert_at(instant, 2).is_err());
        let ended = must_return(move || {
            let timed = DELAYS.map(|delay| queue.recv_timeout(delay));
            (queue.recv(), queue.try_recv(), timed)
        });
        let timed = [Err(RecvTimeoutError::Disconnected); 10];
        assert_eq!(ended, (Err(RecvError), Err(TryRecvError::Disconnected), timed));
    }
}
