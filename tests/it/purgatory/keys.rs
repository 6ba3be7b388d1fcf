//! Keys of an operation: borrowed forms and copies.

use std::{sync::Arc, time::Duration};

use delaywheel::{
    Completion::{self, Cancelled, Satisfied},
    Condition,
    Condition::{Events, Threshold},
    DelayedOperation, ManualClock, Purgatory, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, Log, OnDrop, OnKeys, Op, Tagged, YEAR};

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
