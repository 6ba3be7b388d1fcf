//! Keys of an operation: borrowed forms and copies.

use std::{sync::Arc, time::Duration};

use delaywheel::{
    Completion::{Cancelled, Satisfied},
    Condition,
    Condition::{Events, Threshold},
    ManualClock, Purgatory, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, Key, Log, OnDrop, OnKeys, Op, Tagged, YEAR};

#[test]
fn keys_can_be_looked_up_by_a_borrowed_form() {
    let timer = Timer::builder().clock(ManualClock::new());
    let purgatory: OnKeys = Purgatory::builder().timer(timer).build().unwrap();
    let log = Log::new();
    let key = |number| Key::new(number, || ());
    let op = |name| {
        let log = log.clone();
        // The threshold of a key is its number.
        Op::new()
            .reach(|key: &Key, at| u64::from(key.0) >= at)
            .end(move |end| log.push((name, end)))
    };
    let watch = |name, watches: &[Condition<Key>]| {
        let watched = purgatory.watch(op(name), Watch::any(watches.to_vec()), HOUR);
        assert!(watched.unwrap().key().is_some());
    };
    watch("a", &[Threshold(key(1), 100), Events(key(2)), Events(key(2))]);
    watch("b", &[Threshold(key(1), 200), Events(key(3))]);
    watch("c", &[Events(key(4))]);
    assert_eq!(purgatory.check_and_complete(&2_u32), 0);
    assert_eq!(purgatory.check_each([key(2), key(3)]), 0);
    assert_eq!(purgatory.advance(&1_u32, 150), 1);
    assert_eq!(purgatory.cancel_on(&3_u32), 1);
    assert_eq!(purgatory.cancel_on(&key(4)), 1);
    assert_eq!(log.take(), [("a", Satisfied), ("b", Cancelled), ("c", Cancelled)]);
    assert_eq!(purgatory.stats().keys, 0);
    let watch = Watch::any([Threshold(key(7), 7)]);
    let result = purgatory.watch(op("d"), watch, Duration::ZERO);
    assert!(result.unwrap().key().is_none(), "`has_reached` got another key");
}

#[test]
fn the_purgatory_keeps_one_copy_of_a_key_until_its_last_watcher_leaves() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone());
    let purgatory: OnKeys = Purgatory::builder().timer(timer).build().unwrap();
    let shared = OnDrop::new(|| ());
    let key = |number| Tagged(number, shared.clone());
    let copies = || (Arc::strong_count(&shared.0) - 1, purgatory.stats().keys);
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let watched = purgatory.watch(Op::new(), [key(1), key(1), key(2)], HOUR);
        waiting.extend(watched.unwrap().key());
        let conditions = [Threshold(key(2), 5), Threshold(key(3), 5), Events(key(1))];
        waiting.extend(purgatory.watch(Op::new(), Watch::all(conditions), HOUR).unwrap().key());
    }
    assert_eq!(copies(), (3, 3));
    purgatory.advance(&key(3), 5);
    assert_eq!(copies(), (2, 2));
    for key in waiting {
        assert!(purgatory.cancel_one(key));
    }
    assert_eq!(copies(), (0, 0));
    clock.advance(YEAR);
}
