//! What went wrong: breaches of what the library promises, and panics that nobody injected.

use std::{
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

/// More are counted, and not told.
const TOLD: u64 = 20;

/// The breaches that were seen so far; clones are the same list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Breaches {
    count: Arc<AtomicU64>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Breaches {
    /// Notes a breach.
    pub(crate) fn add(&self, what: impl FnOnce() -> String) {
        if self.count.fetch_add(1, Relaxed) < TOLD {
            self.told.lock().push(what());
        }
    }

    /// Notes a breach, unless something is so.
    pub(crate) fn unless(&self, is_kept: bool, what: impl FnOnce() -> String) {
        if !is_kept {
            self.add(what);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// The first of those that have not been taken before.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock())
    }

    /// Has every panic that was not injected be one.
    pub(crate) fn watch_panics(&self) {
        let breaches = self.clone();
        panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Injected>() {
                breaches.add(|| format!("a panic that was not injected: {info}"));
            }
        }));
    }
}

/// The payload of a panic that is meant to be.
#[derive(Debug)]
struct Injected;

/// Panics, and means to.
pub(crate) fn panic_injected() -> ! {
    panic::panic_any(Injected)
}
