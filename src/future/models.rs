//! The protocol of waits under a model checker: polls and drops against the end of the operation.
//!
//! A lost wake-up shows as a deadlock.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use super::wait::{End, SharedWait};
use crate::{
    purgatory::Completion::{self, Expired, Satisfied},
    sync::{Parker, explore},
    timer::models::{beside, join, waker},
};

/// Runs a task until its wait has ended. Returns how.
fn run(shared: &SharedWait, task: &Parker) -> Completion {
    let waker = waker(task);
    loop {
        match shared.poll(&waker) {
            Poll::Ready(completion) => return completion,
            Poll::Pending => task.park(),
        }
    }
}

#[test]
fn the_task_that_polled_a_wait_last_is_woken_at_its_end() {
    for is_moved in [false, true] {
        explore(None, move || {
            let (task, other) = (Parker::new(), Parker::new());
            let first = waker(if is_moved { &other } else { &task });
            let shared = Arc::new(SharedWait::new());
            assert!(shared.poll(&first).is_pending());
            let ending = beside(&shared, |shared| shared.finish(Satisfied));
            assert!(matches!(run(&shared, &task), Satisfied));
            join(ending);
        });
    }
}

#[test]
fn the_first_of_two_ends_counts() {
    explore(None, move || {
        let task = Parker::new();
        let shared = Arc::new(SharedWait::new());
        assert!(shared.poll(&waker(&task)).is_pending());
        let ending = beside(&shared, |shared| shared.finish(Expired));
        shared.finish(Satisfied);
        let first = peek(&shared);
        join(ending);
        assert_eq!(first, peek(&shared), "the first end counts");
        run(&shared, &task);
    });
}

/// Returns whether the wait was ended by an event.
fn peek(shared: &SharedWait) -> bool {
    matches!(&*shared.end.lock(), End::Ended(Some(Satisfied)))
}

/// After the drop of the wait, nothing holds the waker, and the completion is there.
#[test]
fn a_dropped_wait_leaves_no_waker_behind() {
    explore(None, move || {
        let (task, held) = (Parker::new(), Arc::new(()));
        let shared = Arc::new(SharedWait::new());
        assert!(shared.poll(&Waker::from(Arc::new(Held(Arc::clone(&held))))).is_pending());
        let ending = beside(&shared, |shared| shared.finish(Satisfied));
        shared.forget_waker();
        join(ending);
        assert_eq!(Arc::strong_count(&held), 1, "a waker is left");
        run(&shared, &task);
    });
}

/// A waker that does nothing.
struct Held(#[expect(dead_code, reason = "its count is read")] Arc<()>);

impl std::task::Wake for Held {
    fn wake(self: Arc<Self>) {}
}
