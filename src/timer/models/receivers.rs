//! Tasks and threads that take from a backlog, against puts, drops and the end.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    vec::Vec,
};

use loom::thread;

use super::{check, expired, join, waker};
use crate::{
    sync::Parker,
    timer::delivery::{Backlog, Receiver},
    wheel::Expired,
};

/// Puts batches and then wakes receivers, as the reaper does in one turn.
fn put_all<const BATCHES: usize>(backlog: &Backlog<u32>, batches: [Vec<Expired<u32>>; BATCHES]) {
    let handed = batches.into_iter().map(|mut batch| backlog.put(&mut batch)).sum();
    backlog.wake(handed, |task| {
        task.wake();
        true
    });
}

fn put(backlog: &Backlog<u32>, value: u32) {
    put_all(backlog, [expired([value])]);
}

fn close(backlog: &Backlog<u32>) {
    backlog.close().into_iter().for_each(Waker::wake);
}

/// Receives a value in a task; `None` at the end.
fn receive(backlog: &Arc<Backlog<u32>>) -> Option<u32> {
    let parker = Parker::new();
    let waker = waker(&parker);
    let mut receiver = Receiver::new(Arc::clone(backlog));
    loop {
        match receiver.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value.ok(),
            Poll::Pending => parker.park(),
        }
    }
}

/// Receives a value on a thread, as an executor does.
fn take(backlog: &Arc<Backlog<u32>>) -> Option<u32> {
    backlog.take_by(None).ok().map(|expired| expired.value)
}

/// Two threads receive by `takers`, beside `act`.
fn two(
    is_queue: bool,
    takers: [fn(&Arc<Backlog<u32>>) -> Option<u32>; 2],
    act: fn(&Backlog<u32>),
    want: [Option<u32>; 2],
) {
    check(move || {
        let backlog = Arc::new(Backlog::new(is_queue));
        let threads = takers.map(|take| {
            let backlog = Arc::clone(&backlog);
            thread::spawn(move || take(&backlog))
        });
        act(&backlog);
        let mut taken = threads.map(join);
        taken.sort_unstable();
        assert_eq!(taken, want);
    });
}

fn put_two(backlog: &Backlog<u32>) {
    put(backlog, 1);
    put(backlog, 2);
}

/// No later batch comes that could wake an executor.
#[test]
fn each_timeout_of_a_turn_wakes_an_executor() {
    let in_one = |backlog: &Backlog<u32>| put_all(backlog, [expired([1, 2])]);
    let in_two = |backlog: &Backlog<u32>| put_all(backlog, [expired([1]), expired([2])]);
    two(false, [take, take], in_one, [Some(1), Some(2)]);
    two(false, [take, take], in_two, [Some(1), Some(2)]);
}

#[test]
fn each_value_wakes_a_task() {
    two(true, [receive, receive], put_two, [Some(1), Some(2)]);
}

#[test]
fn a_task_and_a_thread_both_get_a_value() {
    two(true, [receive, take], put_two, [Some(1), Some(2)]);
}

#[test]
fn the_end_wakes_every_task() {
    let put_and_close = |backlog: &Backlog<u32>| {
        put(backlog, 1);
        close(backlog);
    };
    two(true, [receive, receive], put_and_close, [None, Some(1)]);
}

/// A task that polls once, and drops its receiver.
fn impatient(backlog: &Arc<Backlog<u32>>) -> Option<u32> {
    let mut receiver = Receiver::new(Arc::clone(backlog));
    let polled = receiver.poll(&mut Context::from_waker(Waker::noop()));
    drop(receiver);
    if let Poll::Ready(value) = polled { value.ok() } else { None }
}

/// The value goes to the patient task, if the impatient task has not taken it.
#[test]
fn a_woken_task_that_drops_its_receiver_wakes_the_next() {
    check(|| {
        let backlog = Arc::new(Backlog::new(true));
        let threads = [impatient, receive].map(|take| {
            let backlog = Arc::clone(&backlog);
            thread::spawn(move || take(&backlog))
        });
        put(&backlog, 1);
        let [first, second] = threads;
        if join(first).is_some() {
            put(&backlog, 1);
        }
        assert_eq!(join(second), Some(1));
    });
}
