//! Breaches: broken promises of the library, and panics that the load did not inject.

use std::{
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

/// Breaches that are printed; further ones are only counted.
const TOLD: u64 = 20;

/// All breaches so far. Clones share one list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Breaches {
    count: Arc<AtomicU64>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Breaches {
    pub(crate) fn add(&self, what: impl FnOnce() -> String) {
        if self.count.fetch_add(1, Relaxed) < TOLD {
            self.told.lock().push(what());
        }
    }

    pub(crate) fn unless(&self, is_kept: bool, what: impl FnOnce() -> String) {
        if !is_kept {
            self.add(what);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub(crate) fn report(&self) -> bool {
        self.told.lock().drain(..).for_each(|breach| println!("{breach}"));
        println!("{} breaches", self.count());
        self.count() == 0
    }

    /// Counts every later panic of the process as a breach, unless it was injected.
    pub(crate) fn watch_panics(&self) {
        let breaches = self.clone();
        panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Injected>() {
                breaches.add(|| format!("a panic that was not injected: {info}"));
            }
        }));
    }
}

#[derive(Debug)]
struct Injected;

/// Panics with a payload that is not a breach.
pub(crate) fn panic_injected() -> ! {
    panic::panic_any(Injected)
}
