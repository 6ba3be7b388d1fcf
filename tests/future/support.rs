//! Wakers that count, and timers in virtual time.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use delaywheel::{
    DelayQueue, ManualClock, Purgatory, Timer,
    future::{AsyncPurgatory, Sleep},
};

pub(crate) use crate::clock::{Set, timer_on};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Counts how often its waker was woken.
#[derive(Default)]
pub(crate) struct Wakes(AtomicU64);

impl Wakes {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self::default());
        (Arc::clone(&woken), Waker::from(Arc::clone(&woken)))
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) fn timer() -> (Timer, ManualClock) {
    let (clock, timer) = timer_on(ManualClock::new(), |builder| builder);
    (timer, clock)
}

pub(crate) fn purgatory() -> (AsyncPurgatory<u32>, ManualClock) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone());
    (Purgatory::builder().timer(timer).build().expect("the settings are valid"), clock)
}

pub(crate) fn queue() -> (DelayQueue<u32>, ManualClock) {
    let clock = ManualClock::new();
    let queue = Timer::builder().clock(clock.clone()).build_queue();
    (queue.expect("the settings are valid"), clock)
}

/// Polls a future once, with a waker that does nothing.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

pub(crate) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

/// Begins a sleep. A busy machine may take longer for the first poll, which starts the reaper.
pub(crate) fn begin(sleep: &mut Sleep, delay: Duration, waker: &Waker) {
    let mut is_pending = || {
        sleep.reset(delay);
        poll_with(sleep, waker).is_pending()
    };
    assert!((0..1_000).any(|_| is_pending()), "the sleep does not last");
}

pub(crate) struct Pending(pub(crate) u32);

impl Future for Pending {
    type Output = &'static str;

    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                Poll::Pending
            }
            None => Poll::Ready("done"),
        }
    }
}
