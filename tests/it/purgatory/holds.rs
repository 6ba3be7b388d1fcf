//! A thread holds the lock for the ends of at most 32 operations. The purgatory drops keys between
//! two holds, and these drops count the ended operations.

use std::{
    fmt,
    hash::{Hash, Hasher},
    iter,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use delaywheel::{
    Completion,
    Condition::{self, Events, Threshold},
    DelayedOperation, ManualClock, Purgatory, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, SECOND, must_return};
use crate::timer::clock::Set;

const OPERATIONS: u64 = 1000;

/// Operations that end in one hold.
const BATCH: u64 = 32;

/// The action of the drop of a key.
#[derive(Default)]
struct Hook {
    is_set: AtomicBool,
    /// Whether the purgatory refuses operations.
    is_shut_down: AtomicBool,
    purgatory: Mutex<Option<Purgatory<Key, Idle>>>,
    /// Number of waiting operations at each drop of a key.
    seen: Mutex<Vec<u64>>,
}

#[derive(Clone)]
struct Key(u64, Arc<Hook>);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if self.1.is_set.load(Ordering::Relaxed) {
            let purgatory = self.1.purgatory.lock().unwrap().clone().expect("it is there");
            self.1.seen.lock().unwrap().push(purgatory.delayed());
            let is_shut_down = self.1.is_shut_down.load(Ordering::Relaxed);
            assert!(!is_shut_down || purgatory.watch(Idle, [], HOUR).is_err());
        }
    }
}

struct Idle;

impl<K> DelayedOperation<K> for Idle {
    fn complete(self, _: Completion) {}
}

/// Registers operations, each on its own key and on key 0. Ends all of them with `call`, and checks
/// that at most [`BATCH`] of them leave in one hold.
fn ends_in_short_holds(
    common: impl Fn(Key, u64) -> Condition<Key> + Send + 'static,
    call: impl FnOnce(&Purgatory<Key, Idle>, Key) + Send + 'static,
) {
    must_return(move || {
        let timer = Timer::builder().clock(ManualClock::new()).shards(1);
        let purgatory = Purgatory::builder().timer(timer).build().unwrap();
        let hook = Arc::new(Hook::default());
        for number in 1..=OPERATIONS {
            let own = Events(Key(number, Arc::clone(&hook)));
            let common = common(Key(0, Arc::clone(&hook)), number);
            assert!(purgatory.watch(Idle, Watch::any([own, common]), HOUR).is_ok());
        }
        *hook.purgatory.lock().unwrap() = Some(purgatory.clone());
        let key = Key(0, Arc::clone(&hook));
        hook.is_set.store(true, Ordering::Relaxed);
        call(&purgatory, key);
        hook.is_set.store(false, Ordering::Relaxed);
        assert_eq!((purgatory.delayed(), purgatory.stats().panicked), (0, 0));
        let seen = std::mem::take(&mut *hook.seen.lock().unwrap());
        assert!(seen.len() as u64 >= OPERATIONS, "each has a key of its own");
        let mut before = OPERATIONS;
        for now in seen {
            assert!(before - now <= BATCH, "{} ended in one hold", before - now);
            before = now;
        }
        *hook.purgatory.lock().unwrap() = None;
    });
}

#[test]
fn an_advance_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(Threshold, |purgatory, key| {
        assert_eq!(purgatory.advance(&key, OPERATIONS) as u64, OPERATIONS);
    });
}

#[test]
fn a_shutdown_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(Threshold, |purgatory, key| {
        key.1.is_shut_down.store(true, Ordering::Relaxed);
        assert_eq!(purgatory.shutdown().len() as u64, OPERATIONS);
    });
}

#[test]
fn a_cancel_by_key_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(Threshold, |purgatory, key| {
        assert_eq!(purgatory.cancel_on(&key) as u64, OPERATIONS);
    });
    ends_in_short_holds(
        |key, _| Events(key),
        |purgatory, key| {
            assert_eq!(purgatory.cancel_on(&key) as u64, OPERATIONS);
        },
    );
}

/// Sends how many operations wait when it completes.
struct Counts(Arc<Mutex<Option<Purgatory<u32, Self>>>>, mpsc::Sender<u64>);

impl DelayedOperation<u32> for Counts {
    fn complete(self, _: Completion) {
        let purgatory = self.0.lock().unwrap().clone();
        self.1.send(purgatory.expect("it is there").delayed()).unwrap();
    }
}

/// The turn completes the operations of a hold after it. Returns how many ended in each.
fn expirations(now: Duration) -> Vec<u64> {
    let clock = Set::new();
    let timer = Timer::builder().clock(clock.clone()).shards(1);
    let purgatory = Purgatory::builder().timer(timer).build().unwrap();
    let (slot, (left, counts)) = (Arc::new(Mutex::new(Some(purgatory.clone()))), mpsc::channel());
    for _ in 0..3_000 {
        let op = Counts(Arc::clone(&slot), left.clone());
        assert!(purgatory.watch(op, [1, 2, 3, 4], SECOND).is_ok());
    }
    clock.show(now);
    *slot.lock().unwrap() = None;
    let mut counts: Vec<_> = counts.try_iter().collect();
    counts.dedup();
    let before = iter::once(3_000).chain(counts.clone());
    before.zip(counts).map(|(before, now)| before - now).collect()
}

#[test]
fn an_expiration_ends_32_in_one_hold_and_more_only_if_it_is_late() {
    assert_eq!(expirations(SECOND).into_iter().max(), Some(BATCH));
    assert_eq!(expirations(HOUR)[1], 4096 / 4, "as many watchers as steps");
}
