//! A thread holds the lock for the ends of at most 32 operations. The purgatory drops keys between
//! two holds, and these drops count the ended operations.

use std::{
    iter,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use delaywheel::{
    Condition::{self, Events, Threshold},
    ManualClock, Purgatory, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, Key, OnKeys, Op, SECOND, Shared, must_return};
use crate::timer::support::{HookedClock, Set};

const OPERATIONS: u32 = 1000;

/// Operations that end in one hold.
const BATCH: u64 = 32;

#[derive(Default)]
struct Hook {
    is_set: AtomicBool,
    /// Whether the purgatory refuses operations.
    is_shut_down: AtomicBool,
    purgatory: Mutex<Option<OnKeys>>,
    /// Number of waiting operations at each drop of a key.
    seen: Mutex<Vec<u64>>,
}

impl Hook {
    fn key(self: &Arc<Self>, number: u32) -> Key {
        let hook = Arc::clone(self);
        Key::new(number, move || hook.note_drop())
    }

    fn note_drop(&self) {
        if self.is_set.load(Ordering::Relaxed) {
            let purgatory = self.purgatory.lock().unwrap().clone().expect("it is there");
            self.seen.lock().unwrap().push(purgatory.stats().delayed);
            let is_shut_down = self.is_shut_down.load(Ordering::Relaxed);
            assert!(!is_shut_down || purgatory.watch(Op::new(), [], HOUR).is_err());
        }
    }
}

/// Registers operations, each on its own key and on key 0. Ends all of them with `call`, and checks
/// that at most [`BATCH`] of them leave in one hold.
fn ends_in_short_holds(
    common: impl Fn(Key, u32) -> Condition<Key> + Send + 'static,
    call: impl FnOnce(&OnKeys, Key, &Hook) + Send + 'static,
) {
    must_return(move || {
        let timer = Timer::builder().clock(ManualClock::new()).shards(1);
        let purgatory = Purgatory::builder().timer(timer).build().unwrap();
        let hook = Arc::new(Hook::default());
        for number in 1..=OPERATIONS {
            let watch = Watch::any([Events(hook.key(number)), common(hook.key(0), number)]);
            assert!(purgatory.watch(Op::new(), watch, HOUR).is_ok());
        }
        *hook.purgatory.lock().unwrap() = Some(purgatory.clone());
        let key = hook.key(0);
        hook.is_set.store(true, Ordering::Relaxed);
        call(&purgatory, key, &hook);
        hook.is_set.store(false, Ordering::Relaxed);
        assert_eq!((purgatory.stats().delayed, purgatory.stats().panicked), (0, 0));
        let seen = std::mem::take(&mut *hook.seen.lock().unwrap());
        assert!(seen.len() >= OPERATIONS as usize, "each has a key of its own");
        let mut before = u64::from(OPERATIONS);
        for now in seen {
            assert!(before - now <= BATCH, "{} ended in one hold", before - now);
            before = now;
        }
        *hook.purgatory.lock().unwrap() = None;
    });
}

fn threshold(key: Key, at: u32) -> Condition<Key> {
    Threshold(key, at.into())
}

#[test]
fn an_advance_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(threshold, |purgatory, key, _| {
        assert_eq!(purgatory.advance(&key, OPERATIONS.into()), OPERATIONS as usize);
    });
}

#[test]
fn a_shutdown_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(threshold, |purgatory, _key, hook| {
        hook.is_shut_down.store(true, Ordering::Relaxed);
        assert_eq!(purgatory.shutdown().len(), OPERATIONS as usize);
    });
}

#[test]
fn a_cancel_by_key_ends_a_bounded_number_in_one_hold() {
    let cancel = |purgatory: &OnKeys, key, _: &Hook| {
        assert_eq!(purgatory.cancel_on(&key), OPERATIONS as usize);
    };
    ends_in_short_holds(threshold, cancel);
    ends_in_short_holds(|key, _| Events(key), cancel);
}

#[test]
fn each_wait_ends_with_the_hold_that_ends_it() {
    let calls: [fn(&Shared) -> usize; 3] = [
        |purgatory| purgatory.advance(&1, 1),
        |purgatory| purgatory.cancel_on(&1),
        |purgatory| purgatory.shutdown().len(),
    ];
    for call in calls {
        let clock = HookedClock::new();
        let timer = Timer::builder().clock(clock.clone()).shards(1);
        let purgatory: Shared = Purgatory::builder().timer(timer).build().unwrap();
        for _ in 0..128 {
            assert!(purgatory.watch(Op::new(), Watch::any([Threshold(1, 1)]), HOUR).is_ok());
        }
        let passes = clock.clock.clone();
        clock.set(move || passes.advance(SECOND));
        assert_eq!(call(&purgatory), 128, "in four holds");
        let waits = purgatory.stats().waits;
        assert!(waits.max() >= 3 * SECOND, "the last one waited {:?}", waits.max());
    }
}

/// The turn completes the operations of a hold after it. Returns how many ended in each.
fn expirations(now: Duration) -> Vec<u64> {
    let clock = Set::new();
    let timer = Timer::builder().clock(clock.clone()).shards(1);
    let purgatory: Shared = Purgatory::builder().timer(timer).build().unwrap();
    let (slot, (left, counts)) = (Arc::new(Mutex::new(Some(purgatory.clone()))), mpsc::channel());
    for _ in 0..3_000 {
        let (slot, left) = (Arc::clone(&slot), left.clone());
        let count = move |purgatory: &Shared| left.send(purgatory.stats().delayed).unwrap();
        let op = Op::new().end(move |_| slot.lock().unwrap().iter().for_each(count));
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
