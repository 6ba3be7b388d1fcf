//! The protocol of waits under a model checker: polls and drops against the end of the operation.
//!
//! A lost wake-up shows as a deadlock. Twins with a fault must fail.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use loom::thread;

use super::wait::{End, Shared};
use crate::{
    purgatory::Completion::{self, Expired, Satisfied},
    sync::{Parker, explore},
    timer::models::waker,
};

type Poller = fn(&Shared, &Waker) -> Poll<Completion>;

/// Runs a task until its wait has ended. Returns how.
fn run(shared: &Shared, task: &Parker, poll: Poller) -> Completion {
    let waker = waker(task);
    loop {
        match poll(shared, &waker) {
            Poll::Ready(completion) => return completion,
            Poll::Pending => task.park(),
        }
    }
}

/// Runs a task against the end of its operation. `is_moved`: another task polled the wait first.
fn against_an_end(is_moved: bool, poll: Poller) {
    explore(None, move || {
        let (task, other) = (Parker::new(), Parker::new());
        let first = waker(if is_moved { &other } else { &task });
        let shared = Arc::new(Shared::new());
        assert!(shared.poll(&first).is_pending());
        let ending = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.finish(Satisfied)
        });
        assert!(matches!(run(&shared, &task, poll), Satisfied));
        ending.join().expect("no thread panics");
    });
}

#[test]
fn a_task_is_woken_at_the_end_of_its_wait() {
    against_an_end(false, Shared::poll);
}

#[test]
fn the_task_that_polled_a_wait_last_is_woken() {
    against_an_end(true, Shared::poll);
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_that_looks_and_stores_its_waker_in_two_holds_is_not_woken() {
    against_an_end(true, |shared, waker| {
        let is_open = matches!(&*shared.end.lock(), End::Open(_));
        if !is_open {
            return shared.poll(waker);
        }
        let clone = waker.clone();
        if let End::Open(held) = &mut *shared.end.lock() {
            *held = Some(clone);
        }
        Poll::Pending
    });
}

/// Runs two ends of one operation. Each tells whether its completion counts.
fn two_ends(finish: fn(&Shared, Completion)) {
    explore(None, move || {
        let task = Parker::new();
        let shared = Arc::new(Shared::new());
        assert!(shared.poll(&waker(&task)).is_pending());
        let ending = thread::spawn({
            let shared = Arc::clone(&shared);
            move || finish(&shared, Expired)
        });
        finish(&shared, Satisfied);
        let first = peek(&shared);
        ending.join().expect("no thread panics");
        assert_eq!(first, peek(&shared), "the first end counts");
        run(&shared, &task, Shared::poll);
    });
}

/// Returns whether the completion is that of an event.
fn peek(shared: &Shared) -> bool {
    matches!(&*shared.end.lock(), End::Ended(Some(Satisfied)))
}

#[test]
fn the_first_of_two_ends_counts() {
    two_ends(Shared::finish);
}

#[test]
#[should_panic(expected = "the first end counts")]
fn broken_an_end_that_does_not_look_replaces_the_first() {
    two_ends(|shared, completion| {
        let before = std::mem::replace(&mut *shared.end.lock(), End::Ended(Some(completion)));
        if let End::Open(Some(waker)) = before {
            waker.wake();
        }
    });
}

/// Runs a drop of the wait against the end of its operation. Afterwards nothing may hold the waker,
/// and the completion is there.
fn against_a_drop(forget_waker: fn(&Shared)) {
    explore(None, move || {
        let (task, held) = (Parker::new(), Arc::new(()));
        let shared = Arc::new(Shared::new());
        assert!(shared.poll(&Waker::from(Arc::new(Held(Arc::clone(&held))))).is_pending());
        let ending = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.finish(Satisfied)
        });
        forget_waker(&shared);
        ending.join().expect("no thread panics");
        assert_eq!(Arc::strong_count(&held), 1, "a waker is left");
        run(&shared, &task, Shared::poll);
    });
}

#[test]
fn a_dropped_wait_leaves_no_waker_behind() {
    against_a_drop(Shared::forget_waker);
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_drop_that_looks_and_takes_the_waker_in_two_holds_loses_the_end() {
    against_a_drop(|shared| {
        let is_open = matches!(&*shared.end.lock(), End::Open(_));
        if is_open {
            let before = std::mem::replace(&mut *shared.end.lock(), End::Open(None));
            drop(before);
        }
    });
}

/// A waker that does nothing.
struct Held(#[expect(dead_code, reason = "its count is read")] Arc<()>);

impl std::task::Wake for Held {
    fn wake(self: Arc<Self>) {}
}
