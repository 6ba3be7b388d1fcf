//! The protocol of waits under a model checker: polls and drops against the end of the operation.
//!
//! A lost wake-up shows as a deadlock.

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

/// Runs a task until its wait has ended. Returns how.
fn run(shared: &Shared, task: &Parker) -> Completion {
    let waker = waker(task);
    loop {
        match shared.poll(&waker) {
            Poll::Ready(completion) => return completion,
            Poll::Pending => task.park(),
        }
    }
}

/// Runs a task against the end of its operation. `is_moved`: another task polled the wait first.
fn against_an_end(is_moved: bool) {
    explore(None, move || {
        let (task, other) = (Parker::new(), Parker::new());
        let first = waker(if is_moved { &other } else { &task });
        let shared = Arc::new(Shared::new());
        assert!(shared.poll(&first).is_pending());
        let ending = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.finish(Satisfied)
        });
        assert!(matches!(run(&shared, &task), Satisfied));
        ending.join().expect("no thread panics");
    });
}

#[test]
fn a_task_is_woken_at_the_end_of_its_wait() {
    against_an_end(false);
}

#[test]
fn the_task_that_polled_a_wait_last_is_woken() {
    against_an_end(true);
}

#[test]
fn the_first_of_two_ends_counts() {
    explore(None, move || {
        let task = Parker::new();
        let shared = Arc::new(Shared::new());
        assert!(shared.poll(&waker(&task)).is_pending());
        let ending = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.finish(Expired)
        });
        shared.finish(Satisfied);
        let first = peek(&shared);
        ending.join().expect("no thread panics");
        assert_eq!(first, peek(&shared), "the first end counts");
        run(&shared, &task);
    });
}

/// Returns whether the completion is that of an event.
fn peek(shared: &Shared) -> bool {
    matches!(&*shared.end.lock(), End::Ended(Some(Satisfied)))
}

/// After the drop of the wait, nothing holds the waker, and the completion is there.
#[test]
fn a_dropped_wait_leaves_no_waker_behind() {
    explore(None, move || {
        let (task, held) = (Parker::new(), Arc::new(()));
        let shared = Arc::new(Shared::new());
        assert!(shared.poll(&Waker::from(Arc::new(Held(Arc::clone(&held))))).is_pending());
        let ending = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.finish(Satisfied)
        });
        shared.forget_waker();
        ending.join().expect("no thread panics");
        assert_eq!(Arc::strong_count(&held), 1, "a waker is left");
        run(&shared, &task);
    });
}

/// A waker that does nothing.
struct Held(#[expect(dead_code, reason = "its count is read")] Arc<()>);

impl std::task::Wake for Held {
    fn wake(self: Arc<Self>) {}
}
