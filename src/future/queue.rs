//! Values of a [`DelayQueue`], received by tasks.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::mpsc::RecvError,
    task::{Context, Poll},
};

use futures_core::Stream;

use crate::timer::{DelayQueue, Receiver};

/// Yields the due values of a queue; from [`DelayQueue::stream`].
///
/// The stream ends when the queue is shut down and no due value is left. It holds a clone of the
/// queue, so the queue stays open while a stream exists.
#[must_use = "streams do nothing unless polled"]
pub struct QueueStream<T: Send + 'static> {
    receiver: Receiver<T>,
    queue: DelayQueue<T>,
}

impl<T: Send + 'static> Stream for QueueStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.receiver.poll(cx).map(Result::ok)
    }
}

impl<T: Send + 'static> fmt::Debug for QueueStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueStream").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Futures, with the feature `future`.
impl<T: Send + 'static> DelayQueue<T> {
    /// Waits for a due value and removes it, like [`recv`](Self::recv), in a task.
    ///
    /// Any number of tasks and threads may wait. The queue wakes tasks in the order in which they
    /// began to wait. A receiver that polls before the woken task may take the value. The woken
    /// task then keeps its turn.
    ///
    /// The future does not borrow the queue, so a runtime can spawn it. The future does not keep
    /// the queue open: after the drop of the last handle, it ends with the error.
    ///
    /// A future that is ready at once allocates nothing. A future that waits takes an entry of a
    /// `BTreeMap`, which allocates a node for up to 11 waiting tasks.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::mpsc::RecvError, time::Duration};
    ///
    /// use delaywheel::DelayQueue;
    /// use pollster::block_on;
    ///
    /// let queue = DelayQueue::new();
    /// queue.insert(Duration::from_millis(2), "tea")?;
    /// assert_eq!(block_on(queue.recv_async()), Ok("tea"));
    /// queue.shutdown();
    /// assert_eq!(block_on(queue.recv_async()), Err(RecvError));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecvError`] if the queue is shut down and no due value is left.
    ///
    /// # Cancel safety
    ///
    /// A dropped future takes no value. If the queue had woken it for a value, the drop wakes
    /// another receiver.
    #[must_use = "futures do nothing unless awaited"]
    pub fn recv_async(&self) -> impl Future<Output = Result<T, RecvError>> + Unpin + use<T> {
        let mut receiver = self.receiver();
        poll_fn(move |cx| receiver.poll(cx))
    }

    /// Returns a stream of the due values.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::poll_fn, pin::Pin, time::Duration};
    ///
    /// use delaywheel::{ManualClock, Timer};
    /// use futures_core::Stream;
    /// use pollster::block_on;
    ///
    /// let clock = ManualClock::new();
    /// let queue = Timer::builder().clock(clock.clone()).build_queue()?;
    /// let mut stream = queue.stream();
    /// queue.insert(Duration::from_secs(2), 'b')?;
    /// queue.insert(Duration::from_secs(1), 'a')?;
    /// clock.advance(Duration::from_secs(2));
    /// let mut next = || block_on(poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)));
    /// assert_eq!((next(), next()), (Some('a'), Some('b')));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn stream(&self) -> QueueStream<T> {
        QueueStream { receiver: self.receiver(), queue: self.clone() }
    }
}
