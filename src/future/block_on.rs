//! A minimal executor: it runs one future on the calling thread.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// Runs a future to completion on this thread, and returns its output.
///
/// For `main`, tests and threads that wait for one future. It parks the thread between polls. Do
/// not call it in a task of a runtime: it blocks a thread of that runtime.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::future::{block_on, sleep};
///
/// let result = block_on(async {
///     sleep(Duration::from_millis(2)).await?;
///     Ok::<_, std::io::Error>("done")
/// });
/// assert_eq!(result?, "done");
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future.into_future());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Wakes the thread that runs the future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
