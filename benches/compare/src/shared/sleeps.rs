//! `tokio::time::Sleep`, polled once, so that it is registered with the runtime.
//!
//! A timeout is a slot on the heap that is reused, as a `Sleep` within a future is; so nothing is
//! allocated for a pair, which favours it. Polls are to be made without tokio's cooperative budget:
//! outside of a task, or in one that is unconstrained.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::{Expectation, SharedTimer};
use crate::Promises;

/// [`Sleep`], in the context of the runtime that the thread has entered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sleeps;

impl SharedTimer for Sleeps {
    type Timeout = Pin<Box<Option<Sleep>>>;

    const NAME: &'static str = "tokio";

    const PROMISES: Promises = Promises {
        scheme: "hierarchical wheel behind one lock, tokio's sleep",
        describes: "rounds up to a millisecond; needs its runtime",
        lateness: 1,
        ..Promises::STRICT
    };

    #[inline]
    fn schedule(&self, delay: Duration) -> Self::Timeout {
        let mut slot = Box::pin(None);
        register(slot.as_mut(), delay);
        slot
    }

    #[inline]
    fn replace(&self, slot: &mut Self::Timeout, delay: Duration) -> bool {
        let was_pending = slot.as_ref().as_pin_ref().is_some_and(|sleep| !sleep.is_elapsed());
        slot.set(None);
        register(slot.as_mut(), delay);
        was_pending
    }
    /// Spawns a task that sleeps, since that is how a sleep is waited for.
    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        let sleep = sleep(delay);
        drop(tokio::spawn(async move {
            sleep.await;
            expectation.meet();
        }));
    }
}

#[inline]
fn register(mut slot: Pin<&mut Option<Sleep>>, delay: Duration) {
    slot.set(Some(sleep(delay)));
    let sleep = slot.as_pin_mut().expect("it has just been set");
    let polled = sleep.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "a delay of a second was over at once");
}
