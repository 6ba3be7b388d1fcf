//! Operations that complete once a flag is set.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use delaywheel::{Completion, Condition, DelayedOperation, OperationKey, Purgatory, Watch};
use fastrand::Rng;

/// Longer than any benchmark takes.
const DELAY: Duration = Duration::from_secs(3_600);

/// The key of which an event is announced.
pub(crate) const KEY: u32 = 0;

/// An operation that completes once its flag is set.
#[derive(Debug)]
pub(crate) struct Request(&'static AtomicBool);

/// A purgatory of such operations.
pub(crate) type Requests = Purgatory<u32, Request>;

impl DelayedOperation<u32> for Request {
    #[inline]
    fn try_complete(&mut self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    #[inline]
    fn complete(self, completion: Completion) {
        // Operations that never complete are shut down at the end.
        assert_ne!(completion, Completion::Expired, "an operation waited for an hour");
    }
}

/// The flag of operations that never complete.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// The flag of the one operation that comes and completes.
static SOON: AtomicBool = AtomicBool::new(false);

/// Makes an operation wait on keys until its flag is set.
#[inline]
pub(crate) fn watch<const KEYS: usize>(
    purgatory: &Requests,
    flag: &'static AtomicBool,
    keys: [u32; KEYS],
) -> OperationKey {
    let watched = purgatory.watch(Request(flag), keys, DELAY);
    watched.expect("the purgatory has room").key().expect("the flag is not set")
}

/// Makes operations wait on three keys each, out of about a hundred.
pub(crate) fn crowd(purgatory: &Requests, waiting: u32) {
    let mut rng = Rng::with_seed(crate::SEED);
    for _ in 0..waiting {
        let first = rng.u32(1_000..1_098);
        watch(purgatory, &NEVER, [first, first + 1, first + 2]);
    }
}

/// Makes operations wait on [`KEY`].
pub(crate) fn crowd_on_key(purgatory: &Requests, waiting: u32) {
    (0..waiting).for_each(|_| _ = watch(purgatory, &NEVER, [KEY]));
}

/// Makes operations wait until the value of [`KEY`] reaches different numbers from 1000 on.
pub(crate) fn crowd_on_value(purgatory: &Requests, waiting: u32) {
    for threshold in 0..u64::from(waiting) {
        let condition = Condition::Threshold(KEY, 1_000 + threshold);
        let watched = purgatory.watch(Request(&NEVER), Watch::all([condition]), DELAY);
        assert!(watched.expect("the purgatory has room").key().is_some());
    }
}

/// Draws different keys out of a hundred each, for this many operations.
pub(crate) fn draw<const KEYS: usize>(count: usize) -> Vec<[u32; KEYS]> {
    let mut rng = Rng::with_seed(crate::SEED);
    let keys = |first| std::array::from_fn(|index| first + 100 * u32::try_from(index).unwrap_or(0));
    (0..count).map(|_| keys(rng.u32(0..100))).collect()
}

/// One operation at a time waits on keys, and completes through the first.
#[inline]
pub(crate) fn watch_and_complete<const KEYS: usize>(purgatory: &Requests, demands: &[[u32; KEYS]]) {
    for keys in demands {
        SOON.store(false, Ordering::Release);
        watch(purgatory, &SOON, *keys);
        SOON.store(true, Ordering::Release);
        assert_eq!(purgatory.check_and_complete(&keys[0]), 1);
    }
}
