//! Services of the crate `tower` with time limits, in virtual time.

use std::{
    convert::Infallible,
    future::{self, Future},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use delaywheel::{
    Clock, ManualClock, Timer,
    future::TimeoutError,
    time::{Deadline, ParseGrpcTimeoutError},
};
use delaywheel_tower::{GrpcTimeoutLayer, TimeoutLayer};
use http::Request;
use tower::{BoxError, Layer, Service, service_fn};

const LIMIT: Duration = Duration::from_secs(5);

type Answer = Pin<Box<dyn Future<Output = Result<&'static str, BoxError>> + Send>>;

fn timer() -> (ManualClock, Timer) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build();
    (clock, timer.expect("the settings are valid"))
}

/// A service that fails at once, answers at once, or never answers.
fn service()
-> impl Service<&'static str, Response = &'static str, Error = BoxError, Future = Answer> {
    service_fn(|request| -> Answer {
        match request {
            "fail" => Box::pin(future::ready(Err("the service has failed".into()))),
            "hang" => Box::pin(future::pending()),
            _ => Box::pin(future::ready(Ok("answer"))),
        }
    })
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn error_of<T>(polled: Poll<Result<T, BoxError>>) -> BoxError {
    match polled {
        Poll::Ready(Err(error)) => error,
        Poll::Ready(Ok(_)) => panic!("the call succeeds"),
        Poll::Pending => panic!("the call is pending"),
    }
}

#[test]
fn a_call_ends_at_the_limit_and_leaves_the_timer() {
    let (clock, timer) = timer();
    let mut limited = TimeoutLayer::new(timer.clone(), LIMIT).layer(service());
    let mut context = Context::from_waker(Waker::noop());
    assert!(limited.poll_ready(&mut context).is_ready());
    let mut call = pin!(limited.call("hang"));
    assert!(poll(call.as_mut()).is_pending());
    assert_eq!(timer.stats().pending, 1);
    clock.advance(LIMIT.mul_f64(0.9));
    assert!(poll(call.as_mut()).is_pending());
    clock.advance(LIMIT.mul_f64(0.1));
    let error = error_of(poll(call.as_mut()));
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)), "{error}");
    assert_eq!(timer.stats().pending, 0);
}

/// A service that takes no call.
struct Busy;

impl<R> Service<R> for Busy {
    type Response = ();
    type Error = BoxError;
    type Future = future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Pending
    }

    fn call(&mut self, _: R) -> Self::Future {
        unreachable!("it is not ready")
    }
}

#[test]
fn a_limited_service_is_ready_when_the_service_is() {
    let (_, timer) = timer();
    let mut context = Context::from_waker(Waker::noop());
    let mut limited = TimeoutLayer::new(timer.clone(), LIMIT).layer(Busy);
    assert!(Service::<()>::poll_ready(&mut limited, &mut context).is_pending());
    let mut limited = GrpcTimeoutLayer::new(timer, LIMIT).layer(Busy);
    assert!(Service::<Request<()>>::poll_ready(&mut limited, &mut context).is_pending());
}

#[test]
fn answers_and_errors_of_the_service_pass_through() {
    let (_, timer) = timer();
    let mut limited = TimeoutLayer::new(timer.clone(), LIMIT).layer(service());
    assert!(matches!(poll(pin!(limited.call("ask"))), Poll::Ready(Ok("answer"))));
    let error = error_of(poll(pin!(limited.call("fail"))));
    assert_eq!(error.to_string(), "the service has failed");
    assert_eq!(timer.stats().scheduled, 0, "a call that ends at once needs no timeout");
    timer.shutdown();
    let error = error_of(poll(pin!(limited.call("hang"))));
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Sleep(_))), "{error}");
}

#[test]
fn a_call_keeps_its_timer_running() {
    let (clock, timer) = timer();
    let mut limited = TimeoutLayer::new(timer, LIMIT).layer(service());
    let mut call = pin!(limited.call("hang"));
    drop(limited);
    assert!(poll(call.as_mut()).is_pending());
    clock.advance(LIMIT);
    let error = error_of(poll(call.as_mut()));
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)), "{error}");
}

/// Returns the limit that a request with this header gets.
fn granted(header: Option<&str>) -> Result<Duration, BoxError> {
    let (clock, timer) = timer();
    clock.advance(LIMIT);
    let now = clock.now();
    let mut limited =
        GrpcTimeoutLayer::new(timer, LIMIT).layer(service_fn(|request: Request<()>| {
            let deadline: Deadline = *request.extensions().get().expect("the layer sets it");
            future::ready(Ok::<_, Infallible>(deadline.remaining_at(now)))
        }));
    let mut request = Request::new(());
    if let Some(value) = header {
        let value = value.parse().expect("it is a value of a header");
        request.headers_mut().insert("grpc-timeout", value);
    }
    match poll(pin!(limited.call(request))) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the service answers at once"),
    }
}

#[test]
fn a_request_has_the_limit_of_its_header_and_not_more_than_that_of_the_layer() {
    assert_eq!(granted(Some("250m")).expect("it is well-formed"), Duration::from_millis(250));
    assert_eq!(granted(Some("1H")).expect("it is well-formed"), LIMIT);
    assert_eq!(granted(None).expect("there is no header"), LIMIT);
    let error = granted(Some("5s")).expect_err("the unit is unknown");
    let error = error.downcast::<ParseGrpcTimeoutError>().expect("the header is malformed");
    assert!(error.to_string().contains("\"5s\""));
}

#[test]
fn of_two_layers_the_service_sees_the_earlier_deadline() {
    let (clock, timer) = timer();
    for limits in [[LIMIT, 2 * LIMIT], [2 * LIMIT, LIMIT]] {
        let seen = service_fn(|request: Request<()>| {
            let deadline: &Deadline = request.extensions().get().expect("the layers set it");
            future::ready(Ok::<_, Infallible>(deadline.instant()))
        });
        let [outer, inner] = limits.map(|limit| GrpcTimeoutLayer::new(timer.clone(), limit));
        let call = outer.layer(inner.layer(seen)).call(Request::new(()));
        let Poll::Ready(Ok(seen)) = poll(pin!(call)) else { panic!("the service answers at once") };
        assert_eq!(seen, Some(clock.now() + LIMIT));
    }
}

#[test]
fn a_call_with_a_header_ends_at_its_deadline() {
    let (clock, timer) = timer();
    let hang = service_fn(|_: Request<()>| future::pending::<Result<(), Infallible>>());
    let mut limited = GrpcTimeoutLayer::new(timer, LIMIT).layer(hang);
    let request = Request::builder().header("grpc-timeout", "250m").body(());
    let mut call = pin!(limited.call(request.expect("the header is valid")));
    assert!(poll(call.as_mut()).is_pending());
    clock.advance(Duration::from_millis(249));
    assert!(poll(call.as_mut()).is_pending());
    clock.advance(Duration::from_millis(1));
    let error = error_of(poll(call.as_mut()));
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)), "{error}");
}
