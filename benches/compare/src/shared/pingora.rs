//! `pingora_timeout`: a tree for each thread, which a clock thread looks at every 10 ms.
//!
//! All timeouts of a thread that are due in the same 10 ms share one entry of its tree, which stays
//! until then, be they cancelled or not. Expected timeouts are awaited by tasks of a tokio runtime,
//! for which it is made.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use pingora_timeout::{ToTimeout, fast_timeout::FastTimeout};

use super::{Expectation, SharedTimer, Tokio};
use crate::Promises;

/// What its `timeout` waits for, polled once, so that it would wake somebody.
#[derive(Debug, Clone, Default)]
pub struct Pingora(Tokio);

impl Pingora {
    /// Starts a runtime. All share one clock thread, which never ends.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

type Sleep = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl SharedTimer for Pingora {
    type Timeout = Sleep;

    const NAME: &'static str = "pingora";

    const PROMISES: Promises = Promises {
        scheme: "a tree a thread in steps of 10 ms, pingora-timeout",
        describes: "early by up to 1 ms and late by up to 20; wakes every 10 ms; what is cancelled \
                    stays",
        earliness: 1,
        lateness: 20,
        wakes: crate::Wakes::Every(10),
        ..Promises::STRICT
    };

    fn enter(&self) -> impl Sized {
        self.0.enter()
    }

    #[inline]
    fn schedule(&self, delay: Duration) -> Sleep {
        let mut sleep = FastTimeout::create(delay).timeout();
        is_pending(&mut sleep);
        sleep
    }

    #[inline]
    fn replace(&self, sleep: &mut Sleep, delay: Duration) -> bool {
        let was_pending = is_pending(sleep);
        *sleep = self.schedule(delay);
        was_pending
    }

    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        let sleep = FastTimeout::create(delay).timeout();
        self.0.spawn(async move {
            sleep.await;
            expectation.meet();
        });
    }
}

#[inline]
fn is_pending(sleep: &mut Sleep) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    sleep.as_mut().poll(&mut context).is_pending()
}
