//! Keys of an operation: borrowed forms, equal hashes, and copies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use delaywheel::{
    Completion::{self, Cancelled, Satisfied},
    Condition,
    Condition::{Events, Threshold},
    DelayedOperation, ManualClock, Purgatory, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, Idle, Log, Tagged, YEAR};

/// An operation on partitions of topics.
struct Fetch(&'static str, Log<(&'static str, Completion)>);

impl DelayedOperation<String> for Fetch {
    fn try_complete(&mut self) -> bool {
        self.0.starts_with("ready")
    }

    fn has_reached(&mut self, key: &String, threshold: u64) -> bool {
        key.len() as u64 >= threshold
    }

    fn complete(self, completion: Completion) {
        self.1.push((self.0, completion));
    }
}

#[test]
fn keys_can_be_looked_up_by_a_borrowed_form() {
    let timer = Timer::builder().clock(ManualClock::new());
    let purgatory: Purgatory<String, _> = Purgatory::builder().timer(timer).build().unwrap();
    let log = Log::new();
    let topic = |number: u32| format!("topic-{number}");
    let watch = |name, watches: &[Condition<String>]| {
        let watched = purgatory.watch(Fetch(name, log.clone()), Watch::any(watches.to_vec()), HOUR);
        assert!(watched.unwrap().key().is_some());
    };
    watch("a", &[Threshold(topic(1), 100), Events(topic(2)), Events(topic(2))]);
    watch("b", &[Threshold(topic(1), 200), Events(topic(3))]);
    watch("c", &[Events(topic(4))]);
    assert_eq!(purgatory.check_and_complete("topic-2"), 0);
    assert_eq!(purgatory.check_each([topic(2), topic(3)]), 0);
    assert_eq!(purgatory.advance("topic-1", 150), 1);
    assert_eq!(purgatory.cancel_on("topic-3"), 1);
    assert_eq!(purgatory.cancel_on(&topic(4)), 1);
    let ended = log.take();
    assert_eq!(ended, [("a", Satisfied), ("b", Cancelled), ("c", Cancelled)]);
    assert_eq!(purgatory.stats().keys, 0);
    let watches = [Threshold(topic(1), 7)];
    let result = purgatory.watch(Fetch("d", log), Watch::any(watches), Duration::ZERO);
    assert!(result.unwrap().key().is_none(), "`has_reached` got another key");
}

/// A key with the same hash as all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Colliding(u32);

impl std::hash::Hash for Colliding {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        0.hash(state);
    }
}

struct Named(u32, Log<u32>);

impl DelayedOperation<Colliding> for Named {
    fn complete(self, _: Completion) {
        self.1.push(self.0);
    }
}

#[test]
fn keys_with_equal_hashes_are_distinguished() {
    let timer = Timer::builder().clock(ManualClock::new());
    let purgatory = Purgatory::builder().timer(timer).build().unwrap();
    let log = Log::new();
    for name in 0..100 {
        let watches = [Events(Colliding(name)), Threshold(Colliding(1000 + name), 1)];
        let result = purgatory.watch(Named(name, log.clone()), Watch::any(watches), HOUR);
        assert!(result.unwrap().key().is_some());
    }
    assert_eq!(purgatory.stats().keys, 200);
    for name in (0..100).rev().step_by(2) {
        assert_eq!(purgatory.cancel_on(&Colliding(name)), 1);
        assert_eq!(purgatory.advance(&Colliding(999 + name), 1), 1);
        assert_eq!(log.take(), [name, name - 1]);
    }
    assert_eq!((purgatory.stats().keys, purgatory.stats().delayed), (0, 0));
}

/// Counts its copies.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn the_purgatory_keeps_one_copy_of_a_key_until_its_last_watcher_leaves() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone());
    let purgatory = Purgatory::builder().timer(timer).build().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let key = |number| Tagged(number, Counted::new(&count));
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let watched = purgatory.watch(Idle, [key(1), key(1), key(2)], HOUR);
        waiting.extend(watched.unwrap().key());
        let conditions = [Threshold(key(2), 5), Threshold(key(3), 5), Events(key(1))];
        waiting.extend(purgatory.watch(Idle, Watch::all(conditions), HOUR).unwrap().key());
    }
    assert_eq!(count.load(Ordering::Relaxed), 3);
    assert_eq!(purgatory.stats().keys, 3);
    purgatory.advance(&key(3), 5);
    assert_eq!((count.load(Ordering::Relaxed), purgatory.stats().keys), (2, 2));
    for key in waiting {
        assert!(purgatory.cancel_one(key));
    }
    assert_eq!((count.load(Ordering::Relaxed), purgatory.stats().keys), (0, 0));
    clock.advance(YEAR);
}
