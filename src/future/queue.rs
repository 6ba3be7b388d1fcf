//! Values of a [`DelayQueue`], received by tasks.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    panic::{RefUnwindSafe, UnwindSafe},
    pin::Pin,
    sync::mpsc::RecvError,
    task::{Context, Poll},
};

use futures_core::Stream;

use crate::timer::{DelayQueue, Receiver};

/// Waits for a due value of a queue; from [`DelayQueue::recv_async`].
///
/// Completes with a value or, if the queue is shut down and no due value is left, with an error.
/// Otherwise it is pending while the queue has no due value. Polled after its end, it waits for the
/// next value.
///
/// # Cancel safety
///
/// A dropped future takes no value. If the queue had woken it for a value, the drop wakes another
/// receiver.
#[must_use = "futures do nothing unless awaited"]
pub struct RecvAsync<'a, T: Send + 'static> {
    receiver: Receiver<T>,
    queue: PhantomData<&'a DelayQueue<T>>,
}

impl<T: Send + 'static> Future for RecvAsync<'_, T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.receiver.poll(cx)
    }
}

impl<T: Send + 'static> fmt::Debug for RecvAsync<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvAsync").field("receiver", &self.receiver).finish()
    }
}

/// Yields the due values of a queue; from [`DelayQueue::stream`].
///
/// It ends when the queue is shut down and no due value is left. It holds a clone of the queue, so
/// the queue stays open while a stream exists.
#[must_use = "streams do nothing unless polled"]
pub struct QueueStream<T: Send + 'static> {
    receiver: Receiver<T>,
    queue: DelayQueue<T>,
}

impl<T: Send + 'static> QueueStream<T> {
    /// Waits for a due value.
    ///
    /// # Errors
    ///
    /// [`RecvError`] if the queue is shut down and no due value is left.
    ///
    /// # Cancel safety
    ///
    /// A dropped call takes no value.
    pub async fn recv(&mut self) -> Result<T, RecvError> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Polls for a due value: pending while the queue has none. The queue wakes only the task that
    /// polled last.
    ///
    /// # Errors
    ///
    /// [`RecvError`] if the queue is shut down and no due value is left.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        self.receiver.poll(cx)
    }

    /// Returns the queue.
    #[must_use]
    pub const fn queue(&self) -> &DelayQueue<T> {
        &self.queue
    }
}

impl<T: Send + 'static> Stream for QueueStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_recv(cx).map(Result::ok)
    }
}

impl<T: Send + 'static> fmt::Debug for QueueStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueStream").field("queue", &self.queue).finish_non_exhaustive()
    }
}

// User code never runs under a lock of the queue, so a panic leaves no inconsistent state.
impl<T: Send + 'static> UnwindSafe for RecvAsync<'_, T> {}
impl<T: Send + 'static> RefUnwindSafe for RecvAsync<'_, T> {}
impl<T: Send + 'static> UnwindSafe for QueueStream<T> {}
impl<T: Send + 'static> RefUnwindSafe for QueueStream<T> {}

/// Futures, with the feature `future`.
impl<T: Send + 'static> DelayQueue<T> {
    /// Waits for a due value and removes it, like [`recv`](Self::recv), in a task.
    ///
    /// Any number of tasks and threads may wait. The queue wakes tasks in the order in which they
    /// began to wait. A receiver that polls before the woken task may take its value. The woken
    /// task then keeps its place.
    ///
    /// A future that is ready at once allocates nothing. One that waits takes an entry of a
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
    /// See [`RecvAsync`].
    pub fn recv_async(&self) -> RecvAsync<'_, T> {
        RecvAsync { receiver: self.receiver(), queue: PhantomData }
    }

    /// Returns a stream of the due values.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, Timer};
    /// use pollster::block_on;
    ///
    /// let clock = ManualClock::new();
    /// let queue = Timer::builder().clock(clock.clone()).build_queue()?;
    /// let mut stream = queue.stream();
    /// queue.insert(Duration::from_secs(2), 'b')?;
    /// queue.insert(Duration::from_secs(1), 'a')?;
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!((block_on(stream.recv())?, block_on(stream.recv())?), ('a', 'b'));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn stream(&self) -> QueueStream<T> {
        QueueStream { receiver: self.receiver(), queue: self.clone() }
    }
}
