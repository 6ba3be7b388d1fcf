//! Locks, atomics and parking: the real ones, or those of the model checker under `cfg(loom)`.
//!
//! The protocols of the layers above use these types, so the model checker sees every step of these
//! protocols. It does not see cells that are set once, the locks of a
//! [`ManualClock`](crate::ManualClock), or the notices of jumps.

use std::{boxed::Box, io, string::String, sync::Arc, time::Duration};

#[cfg(all(loom, test))]
pub(crate) use self::model::explore;
#[cfg(loom)]
pub(crate) use self::model::{
    AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, ThreadId, fence,
    this_thread, thread, unlock_fair,
};
#[cfg(not(loom))]
pub(crate) use self::real::{
    AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, ThreadId, fence,
    this_thread, thread, unlock_fair,
};

/// Starts a thread. Takes a box, because a program would else compile a copy for each closure.
pub(crate) fn spawn(name: String, run: Box<dyn FnOnce() + Send>) -> io::Result<ThreadId> {
    thread::Builder::new().name(name).spawn(run).map(|handle| handle.thread().id())
}

/// Parks one thread, until another thread unparks it through a clone. If the wake-up comes before
/// the thread parks, the next park returns at once.
#[derive(Debug, Clone)]
pub(crate) struct Parker(Arc<Token>);

#[derive(Debug, Default)]
struct Token {
    /// Whether a wake-up has come that no park has used yet.
    is_woken: Mutex<bool>,
    arrived: Condvar,
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Parks this thread for at most `timeout`. The call may return earlier without a wake-up.
    pub(crate) fn park_timeout(&self, timeout: Duration) {
        let mut is_woken = self.0.is_woken.lock();
        if !*is_woken {
            is_woken = self.0.arrived.wait_for(is_woken, timeout);
        }
        *is_woken = false;
    }

    #[cfg(all(test, loom))]
    pub(crate) fn park(&self) {
        self.park_timeout(Duration::MAX);
    }

    pub(crate) fn unpark(&self) {
        *self.0.is_woken.lock() = true;
        self.0.arrived.notify_one();
    }
}

#[cfg(not(loom))]
mod real {
    use std::time::Duration;
    pub(crate) use std::{
        sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
        thread::{self, ThreadId},
    };

    pub(crate) use parking_lot::{Mutex, MutexGuard};

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// Waits for a notification, at most for `timeout`. The mutex is unlocked meanwhile.
        pub(crate) fn wait_for<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            timeout: Duration,
        ) -> MutexGuard<'a, T> {
            self.0.wait_for(&mut guard, timeout);
            guard
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// Unlocks, and hands the lock to the thread that has waited longest, if any.
    pub(crate) fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
        MutexGuard::unlock_fair(guard);
    }

    pub(crate) fn this_thread() -> ThreadId {
        thread::current().id()
    }
}

#[cfg(loom)]
mod model {
    //! The same names for the model checker. No wait times out, so a lost wake-up is a deadlock.

    use std::time::Duration;
    #[cfg(test)]
    use std::{
        println,
        sync::{Arc, atomic},
    };

    pub(crate) use loom::{
        sync::MutexGuard,
        sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
        thread::{self, ThreadId},
    };

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread of a model panics while it holds a lock")
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }

        pub(crate) fn is_locked(&self) -> bool {
            self.0.try_lock().is_err()
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn wait_for<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _timeout: Duration,
        ) -> MutexGuard<'a, T> {
            self.0.wait(guard).expect("no thread of a model panics while it holds a lock")
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// Unlocks. No protocol depends on which thread gets the lock next.
    pub(crate) fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
        drop(guard);
    }

    pub(crate) fn this_thread() -> ThreadId {
        thread::current().id()
    }

    /// Runs a model in every interleaving, or in those with at most `preemptions` preemptions, and
    /// prints the number of runs. `LOOM_MAX_PREEMPTIONS` can raise the bound.
    #[cfg(test)]
    pub(crate) fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        let asked = builder.preemption_bound;
        builder.preemption_bound = preemptions.map(|least| asked.map_or(least, |n| n.max(least)));
        // Loom ends a search at these limits. Without them, a search that returns is complete.
        (builder.max_duration, builder.max_permutations) = (None, None);
        builder.max_branches = 10_000;
        let count = Arc::new(atomic::AtomicU64::new(0));
        let counter = Arc::clone(&count);
        builder.check(move || {
            counter.fetch_add(1, atomic::Ordering::Relaxed);
            model();
        });
        println!("Completed in {} iterations", count.load(atomic::Ordering::Relaxed));
    }
}
