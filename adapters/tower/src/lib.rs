//! Time limits for services of the crate `tower`, with a timer of [`delaywheel`].
//!
//! | You have | Use |
//! |---|---|
//! | one limit for all calls | [`TimeoutLayer`] |
//! | HTTP requests that may have the header `grpc-timeout` | [`GrpcTimeoutLayer`] |
//!
//! A call that takes too long ends with [`TimeoutError::Elapsed`], and its future is dropped. The
//! error is boxed, as in `tower::timeout`. This is a package of its own, so that a new version of
//! tower does not force a new version of `delaywheel`.
//!
//! # Examples
//!
//! ```
//! use std::{future::pending, time::Duration};
//!
//! use delaywheel::{Timer, future::TimeoutError};
//! use delaywheel_tower::TimeoutLayer;
//! use pollster::block_on;
//! use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
//!
//! let service = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(Timer::new(), Duration::from_millis(5)))
//!     .service(service_fn(|_: &str| pending::<Result<(), BoxError>>()));
//! let error = block_on(service.oneshot("request")).unwrap_err();
//! assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)));
//! ```
//!
//! [`TimeoutError::Elapsed`]: delaywheel::future::TimeoutError::Elapsed
#![forbid(unsafe_code)]

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use delaywheel::{
    Timer,
    future::Timeout as Limited,
    time::{Deadline, ParseGrpcTimeoutError, parse_grpc_timeout},
};
use http::Request;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

/// An error of a service, as in the crate `tower`.
type BoxError = Box<dyn Error + Send + Sync>;

/// Limits how long each call of a service takes; a [`Layer`].
///
/// The limit begins with the first poll of the call. It does not cover `poll_ready`.
#[derive(Debug, Clone)]
pub struct TimeoutLayer {
    timer: Timer,
    limit: Duration,
}

impl TimeoutLayer {
    /// Makes a layer whose calls may take `limit`.
    #[must_use]
    pub const fn new(timer: Timer, limit: Duration) -> Self {
        Self { timer, limit }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout { inner, layer: self.clone() }
    }
}

/// The service of a [`TimeoutLayer`].
#[derive(Debug, Clone)]
pub struct Timeout<S> {
    inner: S,
    layer: TimeoutLayer,
}

impl<R, S: Service<R>> Service<R> for Timeout<S>
where
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let TimeoutLayer { timer, limit } = &self.layer;
        let call = timer.timeout(*limit, self.inner.call(request));
        ResponseFuture { call: Call::Begun { call }, timer: timer.clone() }
    }
}

/// Limits how long each call takes by the header `grpc-timeout` of its request; a [`Layer`].
///
/// The layer adds the [`Deadline`] to the extensions of the request. The service reads it there,
/// and passes the remaining time to its own calls. If the request already has a `Deadline`, as from
/// an outer layer, the earlier one counts.
///
/// A malformed header fails the call with [`ParseGrpcTimeoutError`], before the service sees
/// the request. In a server, map the errors to responses, or the connection may end.
///
/// # Examples
///
/// ```
/// use std::{convert::Infallible, time::Duration};
///
/// use delaywheel::{Timer, time::Deadline};
/// use delaywheel_tower::GrpcTimeoutLayer;
/// use http::Request;
/// use pollster::block_on;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// let service = ServiceBuilder::new()
///     .layer(GrpcTimeoutLayer::new(Timer::new(), Duration::from_secs(30)))
///     .service(service_fn(|request: Request<()>| async move {
///         let deadline: &Deadline = request.extensions().get().expect("the layer sets it");
///         Ok::<_, Infallible>(deadline.remaining())
///     }));
/// let request = Request::builder().header("grpc-timeout", "5S").body(())?;
/// assert!(block_on(service.oneshot(request))? <= Duration::from_secs(5));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone)]
pub struct GrpcTimeoutLayer {
    timer: Timer,
    most: Duration,
}

impl GrpcTimeoutLayer {
    /// Makes a layer whose calls may take the time in the header, but at most `most`.
    #[must_use]
    pub const fn new(timer: Timer, most: Duration) -> Self {
        Self { timer, most }
    }

    /// Returns the deadline of a request that arrives now.
    fn deadline<B>(&self, request: &Request<B>) -> Result<Deadline, ParseGrpcTimeoutError> {
        let limit = match request.headers().get("grpc-timeout") {
            Some(value) => parse_grpc_timeout(&String::from_utf8_lossy(value.as_bytes()))?,
            None => Duration::MAX,
        };
        let instant = self.timer.now().checked_add(limit.min(self.most));
        let outer = request.extensions().get().copied().unwrap_or(Deadline::NEVER);
        Ok(instant.map_or(Deadline::NEVER, Deadline::at).min(outer))
    }
}

impl<S> Layer<S> for GrpcTimeoutLayer {
    type Service = GrpcTimeout<S>;

    fn layer(&self, inner: S) -> GrpcTimeout<S> {
        GrpcTimeout { inner, layer: self.clone() }
    }
}

/// The service of a [`GrpcTimeoutLayer`].
#[derive(Debug, Clone)]
pub struct GrpcTimeout<S> {
    inner: S,
    layer: GrpcTimeoutLayer,
}

impl<B, S: Service<Request<B>>> Service<Request<B>> for GrpcTimeout<S>
where
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let call = match self.layer.deadline(&request) {
            Ok(deadline) => {
                request.extensions_mut().insert(deadline);
                Call::Begun { call: deadline.timeout(&self.layer.timer, self.inner.call(request)) }
            }
            Err(error) => Call::Refused { error: Some(error) },
        };
        ResponseFuture { call, timer: self.layer.timer.clone() }
    }
}

pin_project! {
    /// The response of a service with a time limit.
    ///
    /// # Errors
    ///
    /// The error of the service; [`ParseGrpcTimeoutError`] if a header is malformed;
    /// [`TimeoutError`](delaywheel::future::TimeoutError) if the time has elapsed, or if the call
    /// is pending and the timer is full or shut down.
    #[must_use = "futures do nothing unless awaited"]
    pub struct ResponseFuture<F> {
        #[pin]
        call: Call<F>,
        // Keeps the timer running: a caller may drop the service before the response.
        timer: Timer,
    }
}

pin_project! {
    #[project = CallProjection]
    enum Call<F> {
        Begun {
            #[pin]
            call: Limited<F>,
        },
        Refused {
            error: Option<ParseGrpcTimeoutError>,
        },
    }
}

impl<T, E: Into<BoxError>, F: Future<Output = Result<T, E>>> Future for ResponseFuture<F> {
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().call.project() {
            CallProjection::Begun { call } => match ready!(call.poll(cx)) {
                Ok(response) => response.map_err(Into::into),
                Err(error) => Err(error.into()),
            },
            CallProjection::Refused { error } => {
                Err(error.take().expect("polled after its end").into())
            }
        })
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
