//! A waker that unparks the thread of a task.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use crate::sync::{Parker, Unparker};

/// Wakes the thread of a task.
struct Task(Unparker);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn waker(task: &Parker) -> Waker {
    Waker::from(Arc::new(Task(task.unparker().clone())))
}
