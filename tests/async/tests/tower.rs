//! The layer of `docs/tokio.md` for `tower`, which limits the time of each call of a service.

use std::{
    error::Error,
    future::{Ready, pending, poll_fn, ready},
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use delaywheel::{ManualClock, Timer, future::TimeoutError};
use futures_executor::block_on;
use tower_layer::{Layer, layer_fn};
use tower_service::Service;

type BoxError = Box<dyn Error + Send + Sync>;

/// Limits how long each call of a service takes.
struct TimeLimit<S> {
    inner: S,
    timer: Timer,
    limit: Duration,
}

impl<R, S: Service<R>> Service<R> for TimeLimit<S>
where
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let answer = self.timer.timeout(self.limit, self.inner.call(request));
        Box::pin(async move { answer.await?.map_err(Into::into) })
    }
}

/// Answers 1 with 2, fails for 0, and never answers other requests.
struct Numbers;

impl Service<u32> for Numbers {
    type Response = u32;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<u32>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u32) -> Self::Future {
        let answer: Ready<_> = match request {
            0 => ready(Err(io::ErrorKind::InvalidInput.into())),
            1 => ready(Ok(2)),
            _ => return Box::pin(pending()),
        };
        Box::pin(answer)
    }
}

#[test]
fn a_layer_limits_the_time_of_each_call() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let limit = Duration::from_secs(5);
    let layer = layer_fn(|inner| TimeLimit { inner, timer: timer.clone(), limit });
    let mut service = layer.layer(Numbers);
    block_on(poll_fn(|cx| service.poll_ready(cx))).expect("it is ready");
    assert_eq!(block_on(service.call(1)).expect("it answers at once"), 2);
    let error = block_on(service.call(0)).expect_err("the service refuses it");
    assert!(error.is::<io::Error>(), "the error is that of the service");

    let mut answer = service.call(7);
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(answer.as_mut().poll(&mut context).is_pending());
    clock.advance(Duration::from_secs(5));
    let error = block_on(answer).expect_err("it takes too long");
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)));
    assert_eq!(timer.stats().pending, 0);
}
