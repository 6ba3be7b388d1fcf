//! Timeouts of the crate `fastimer`, in virtual time.

use std::{
    future::{self, Future},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use delaywheel::{Clock, ManualClock, Timer};
use delaywheel_fastimer::MakeWheelDelay;
use fastimer::{MakeDelay, MakeDelayExt};

const LIMIT: Duration = Duration::from_secs(5);

fn delays() -> (ManualClock, Timer, MakeWheelDelay) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    (clock, timer.clone(), MakeWheelDelay::new(timer))
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_delay_ends_by_the_clock_of_the_timer() {
    let (clock, _, delays) = delays();
    let (mut after, mut at) =
        (pin!(delays.delay(LIMIT)), pin!(delays.delay_until(clock.now() + LIMIT)));
    assert!(poll(after.as_mut()).is_pending() && poll(at.as_mut()).is_pending());
    clock.advance(LIMIT.mul_f64(0.9));
    assert!(poll(after.as_mut()).is_pending() && poll(at.as_mut()).is_pending());
    clock.advance(LIMIT.mul_f64(0.1));
    assert!(poll(after.as_mut()).is_ready() && poll(at.as_mut()).is_ready());
}

#[test]
fn a_timeout_of_fastimer_elapses_and_leaves_the_timer() {
    let (clock, timer, delays) = delays();
    let mut request = pin!(delays.timeout(LIMIT, future::pending::<()>()));
    assert!(poll(request.as_mut()).is_pending());
    assert_eq!(timer.stats().pending, 1);
    clock.advance(LIMIT);
    assert!(matches!(poll(request.as_mut()), Poll::Ready(Err(_))));
    assert_eq!(timer.stats().pending, 0);
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Otherwise, a task that only waits for delays blocks its runtime.
#[test]
fn the_delays_of_a_timer_that_is_shut_down_end_once_other_tasks_have_run() {
    let (_, timer, delays) = delays();
    timer.shutdown();
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let mut delay = pin!(delays.delay(LIMIT));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(delay.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(woken.0.load(Ordering::Relaxed), "the task runs again at once");
    assert!(poll(delay).is_ready());
}
