//! Queues whose values tasks receive.

use std::{
    pin::Pin,
    sync::{Arc, mpsc::RecvError},
    task::{Context, Poll, Waker},
};

use delaywheel::DelayQueue;
use futures_core::Stream;
use pollster::block_on;

use crate::support::{SECOND, Wakes, poll, poll_with, queue};

fn insert(queue: &DelayQueue<u32>, seconds: u32, value: u32) {
    queue.insert(seconds * SECOND, value).expect("the queue is open");
}

#[test]
fn empty_closed_and_ended_are_different_answers() {
    let (queue, clock) = queue();
    let mut context = Context::from_waker(Waker::noop());
    let mut stream = queue.stream();
    assert!(Pin::new(&mut stream).poll_next(&mut context).is_pending(), "empty");
    insert(&queue, 1, 1);
    insert(&queue, 1, 2);
    insert(&queue, 9, 3);
    assert!(poll(&mut queue.recv_async()).is_pending(), "not due");
    clock.advance(SECOND);
    assert_eq!(poll(&mut queue.recv_async()), Poll::Ready(Ok(1)));
    queue.finish(SECOND);
    assert_eq!(Pin::new(&mut stream).poll_next(&mut context), Poll::Ready(Some(2)), "closed");
    assert_eq!(Pin::new(&mut stream).poll_next(&mut context), Poll::Ready(None), "ended");
    assert_eq!(poll(&mut queue.recv_async()), Poll::Ready(Err(RecvError)));
}

#[test]
fn a_future_of_a_queue_can_be_spawned() {
    let spawn = |future| std::thread::spawn(move || block_on(future));
    let queue = DelayQueue::new();
    let task = spawn(queue.recv_async());
    insert(&queue, 0, 1);
    assert_eq!(task.join().expect("the task runs"), Ok(1));
    let mut last = queue.recv_async();
    drop(queue);
    assert_eq!(poll(&mut last), Poll::Ready(Err(RecvError)), "it keeps no queue open");
}

#[test]
fn tasks_are_woken_in_the_order_in_which_they_began_to_wait() {
    let (queue, clock) = queue();
    let tasks: Vec<_> = (0..5).map(|_| Wakes::new()).collect();
    let mut receivers: Vec<_> = tasks.iter().map(|_| queue.recv_async()).collect();
    for (receiver, (_, waker)) in receivers.iter_mut().zip(&tasks) {
        assert!(poll_with(receiver, waker).is_pending());
    }
    for value in 0..5 {
        insert(&queue, 1, value);
        clock.advance(SECOND);
        let woken: Vec<_> = tasks.iter().map(|(woken, _)| woken.count()).collect();
        let expected: Vec<_> = (0..5).map(|task| u64::from(task <= value)).collect();
        assert_eq!(woken, expected);
        let index = usize::try_from(value).expect("it is small");
        assert_eq!(poll_with(&mut receivers[index], &tasks[index].1), Poll::Ready(Ok(value)));
    }
}

#[test]
fn a_woken_task_whose_value_was_taken_keeps_its_turn() {
    let (queue, clock) = queue();
    let ((first, one), (second, two)) = (Wakes::new(), Wakes::new());
    let (mut early, mut late) = (queue.recv_async(), queue.recv_async());
    assert!(poll_with(&mut early, &one).is_pending() && poll_with(&mut late, &two).is_pending());
    insert(&queue, 1, 1);
    clock.advance(SECOND);
    assert_eq!((first.count(), second.count()), (1, 0));
    assert_eq!(queue.try_recv(), Ok(1), "a thread is faster");
    assert!(poll_with(&mut early, &one).is_pending());
    insert(&queue, 1, 2);
    clock.advance(SECOND);
    assert_eq!((first.count(), second.count()), (2, 0));
    assert_eq!(poll_with(&mut early, &one), Poll::Ready(Ok(2)));
    assert!(poll_with(&mut early, &one).is_pending(), "after its end, it waits for the next");
    insert(&queue, 1, 3);
    clock.advance(SECOND);
    assert_eq!((first.count(), second.count()), (2, 1), "behind the other");
    assert_eq!(poll_with(&mut early, &one), Poll::Ready(Ok(3)));
}

#[test]
fn a_dropped_receiver_takes_no_value_and_no_wake_up() {
    let (queue, clock) = queue();
    let ((first, one), (second, two)) = (Wakes::new(), Wakes::new());
    for woken_before_drop in [false, true] {
        let (mut early, mut late) = (queue.recv_async(), queue.recv_async());
        assert!(poll_with(&mut early, &one).is_pending());
        assert!(poll_with(&mut late, &two).is_pending());
        let seen = (first.count(), second.count());
        if woken_before_drop {
            insert(&queue, 1, 1);
            clock.advance(SECOND);
            assert_eq!((first.count(), second.count()), (seen.0 + 1, seen.1));
            drop(early);
            assert_eq!(second.count(), seen.1 + 1, "the wake-up goes to the next");
        } else {
            drop(early);
            insert(&queue, 1, 1);
            clock.advance(SECOND);
            assert_eq!((first.count(), second.count()), (seen.0, seen.1 + 1));
        }
        assert_eq!(poll_with(&mut late, &two), Poll::Ready(Ok(1)));
    }
    assert_eq!(Arc::strong_count(&first), 2, "no waker is left behind");
}

#[test]
fn a_stream_wakes_the_task_that_polled_it_last() {
    let (queue, clock) = queue();
    let ((first, one), (second, two)) = (Wakes::new(), Wakes::new());
    let mut stream = queue.stream();
    for waker in [&one, &two] {
        let mut context = Context::from_waker(waker);
        assert!(Pin::new(&mut stream).poll_next(&mut context).is_pending());
    }
    insert(&queue, 1, 1);
    clock.advance(SECOND);
    assert_eq!((first.count(), second.count()), (0, 1));
    let mut context = Context::from_waker(&two);
    assert_eq!(Pin::new(&mut stream).poll_next(&mut context), Poll::Ready(Some(1)));
    assert_eq!(queue.len(), 0);
}
