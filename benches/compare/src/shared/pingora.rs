//! `pingora_timeout`: a tree for each thread, which a clock thread checks every 10 ms.
//!
//! All timeouts of a thread that are due in the same 10 ms share one entry of its tree, which stays
//! until then, cancelled or not. Tasks of a tokio runtime await noted timeouts.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use pingora_timeout::{ToTimeout, fast_timeout::FastTimeout};

use super::{Note, SharedTimer, Tokio};
use crate::Promises;

/// The future that its `timeout` awaits, polled once, so that it is registered.
#[derive(Debug, Clone)]
pub struct Pingora(Tokio);

type Sleep = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl SharedTimer for Pingora {
    type Timeout = Sleep;

    const NAME: &'static str = "pingora";

    const PROMISES: Promises = Promises {
        scheme: "a tree a thread in steps of 10 ms, pingora-timeout",
        describes: "early by up to 1 ms and late by up to 20; wakes every 10 ms; cancelled timeouts \
                    stay",
        earliness: 1,
        lateness: 20,
        wakes: crate::Wakes::Every(10),
        ..Promises::STRICT
    };

    /// Starts a runtime. All share one clock thread, which never ends.
    fn start() -> Self {
        Self(Tokio::start())
    }

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

    fn schedule_noted(&self, delay: Duration, note: Note) {
        let sleep = FastTimeout::create(delay).timeout();
        self.0.spawn(async move {
            sleep.await;
            note.run();
        });
    }
}

#[inline]
fn is_pending(sleep: &mut Sleep) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    sleep.as_mut().poll(&mut context).is_pending()
}
