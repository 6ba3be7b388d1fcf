//! A callback, stored in the slot of its timeout if it is small.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, Waker},
};

use stackfuture::StackFuture;

/// A callback that a timer handed back; from [`Timer::shutdown`](crate::Timer::shutdown) or an
/// error.
pub struct Task(
    /// A future that is ready at the first poll. It has a stable way to store a value of any type
    /// without a box, which functions lack.
    StackFuture<'static, (), STORED>,
);

/// A larger callback goes to a box.
const STORED: usize = 24;

impl Task {
    #[inline]
    pub(super) fn new(callback: impl FnOnce() + Send + 'static) -> Self {
        // Takes no more room than the callback if that has a pointer, and else one word more.
        let mut callback = Some(callback);
        Self(StackFuture::from_or_box(poll_fn(move |_| {
            if let Some(callback) = callback.take() {
                callback();
            }
            Poll::Ready(())
        })))
    }

    /// Runs it now.
    pub fn run(self) {
        let poll = pin!(self.0).poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(poll.is_ready(), "a callback is no future of the user");
    }
}

// A callback does not refer to itself, and it is pinned only while it runs.
impl Unpin for Task {}

impl fmt::Debug for Task {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task(..)")
    }
}
