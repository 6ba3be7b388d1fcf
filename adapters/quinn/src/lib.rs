//! The timer of [`delaywheel`] for QUIC endpoints of the crate [`quinn`].
//!
//! [`QuinnRuntime`] implements [`quinn::Runtime`]. A package of its own, so that a new version of
//! quinn does not force a new version of `delaywheel`.
#![forbid(unsafe_code)]

use std::{
    future::Future,
    io,
    net::UdpSocket,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use delaywheel::{Timer, future::Sleep};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};

/// A runtime for the crate `quinn` whose timer is a [`Timer`].
///
/// Pass it to `quinn::Endpoint::new`, with a `ServerConfig` if the endpoint accepts connections.
/// `Endpoint::client` and `Endpoint::server` choose a runtime themselves, so they never use the
/// timer. Another runtime, such as `quinn::TokioRuntime`, runs the tasks and the sockets. The
/// endpoint reads the clock of the timer. So on a [`ManualClock`](delaywheel::ManualClock), a test
/// advances the idle timeouts and retransmissions.
///
/// If the timer is full or shut down, or cannot start its thread, the endpoint uses the timer of
/// the other runtime.
///
/// # Examples
///
/// ```
/// use std::{io, net::UdpSocket, sync::Arc};
///
/// use delaywheel::Timer;
/// use delaywheel_quinn::QuinnRuntime;
/// use quinn::{Endpoint, EndpointConfig, Runtime, ServerConfig};
///
/// fn endpoint(
///     server: Option<ServerConfig>,
///     socket: UdpSocket, // `UdpSocket::bind("0.0.0.0:0")?` for a client
///     runtime: Arc<dyn Runtime>,
/// ) -> io::Result<Endpoint> {
///     let runtime = QuinnRuntime::new(runtime, Timer::new());
///     Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(runtime))
/// }
/// ```
#[derive(Debug, Clone)]
pub struct QuinnRuntime {
    timer: Timer,
    inner: Arc<dyn Runtime>,
}

impl QuinnRuntime {
    /// Makes a runtime that runs its tasks and sockets on `inner`, and sleeps on `timer`.
    #[must_use]
    pub fn new(inner: Arc<dyn Runtime>, timer: Timer) -> Self {
        Self { timer, inner }
    }
}

impl Runtime for QuinnRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let sleep = self.timer.sleep_until(deadline);
        Box::pin(QuinnSleep { sleep, deadline, runtime: self.clone(), spare: None })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.inner.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.inner.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        self.timer.now()
    }
}

/// A sleep without an error.
#[derive(Debug)]
struct QuinnSleep {
    sleep: Sleep,
    deadline: Instant,
    runtime: QuinnRuntime,
    /// Replaces the sleep if that ended with an error. `quinn` polls a timer that ends before its
    /// deadline again and again.
    spare: Option<Pin<Box<dyn AsyncTimer>>>,
}

impl AsyncTimer for QuinnSleep {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.deadline = deadline;
        self.sleep.reset_at(deadline);
        self.spare = None;
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { sleep, deadline, runtime, spare } = &mut *self;
        if spare.is_none() && ready!(Pin::new(sleep).poll(cx)).is_ok() {
            return Poll::Ready(());
        }
        let new = || {
            // The clocks of the two may differ.
            let left = deadline.saturating_duration_since(runtime.now());
            runtime.inner.new_timer(runtime.inner.now() + left)
        };
        spare.get_or_insert_with(new).as_mut().poll(cx)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
