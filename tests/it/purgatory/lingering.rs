//! An ended operation leaves all lists, the timer and the memory of the purgatory, before it is
//! completed.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use delaywheel::{
    Completion,
    Condition::{Events, Threshold},
    DelayedOperation, Watch,
    purgatory::{OperationKey, Overload},
};

use super::support::{Cancel as _, HOUR, Shared, World, YEAR};

/// Counts of the purgatory, as the completion of an operation sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    delayed: u64,
    watched: u64,
    keys: u64,
    pending: u64,
}

const NOTHING: Seen = Seen { delayed: 0, watched: 0, keys: 0, pending: 0 };

fn look(purgatory: &Shared) -> Seen {
    let stats = purgatory.stats();
    assert_eq!(stats.delayed, purgatory.delayed());
    assert_eq!(stats.watched, purgatory.stats().watched);
    let pending = purgatory.stats().timer.pending;
    Seen { delayed: stats.delayed, watched: stats.watched, keys: stats.keys, pending }
}

/// Ends an operation with `call`, and checks that its completion saw an empty purgatory.
fn leaves_nothing(call: impl FnOnce(&World, OperationKey)) {
    leaves(NOTHING, call);
}

/// The same if another operation waits at that time.
fn leaves(left: Seen, call: impl FnOnce(&World, OperationKey)) {
    let world = World::with(|builder| {
        builder
            .max_delayed(1, Overload::DisplaceOldest)
            .max_delayed_per_key(2, Overload::DisplaceOldest)
    });
    let seen = Arc::new(Mutex::new(None));
    let (slot, purgatory, held) =
        (Arc::clone(&seen), world.purgatory.clone(), Arc::clone(&world.held));
    let op = world.op(7).end(move |_| {
        *slot.lock().unwrap() = Some(look(&purgatory));
        drop(held);
    });
    let watches = [Events(1), Events(2), Threshold(1, 10), Threshold(3, 10)];
    let key = world.waits(world.purgatory.watch(op, Watch::any(watches), HOUR));
    let waiting = Seen { delayed: 1, watched: 4, keys: 3, pending: 1 };
    assert_eq!(look(&world.purgatory), waiting);
    assert_eq!(Arc::strong_count(&world.held), 2);
    call(&world, key);
    assert_eq!(*seen.lock().unwrap(), Some(left));
    world.check_empty();
}

#[test]
fn an_operation_has_left_everything_before_it_completes() {
    leaves_nothing(|world, _| {
        world.make_ready(7);
        assert_eq!(world.purgatory.check_and_complete(&2), 1);
    });
    leaves_nothing(|world, _| {
        world.make_ready(7);
        assert_eq!(world.purgatory.check_each([1, 2, 3]), 1);
    });
    leaves_nothing(|world, _| assert_eq!(world.advance(3, 10), 1));
    leaves_nothing(|world, key| assert!(world.purgatory.complete(key)));
    leaves_nothing(|world, key| assert!(world.purgatory.cancel_one(key)));
    leaves_nothing(|world, _| assert_eq!(world.purgatory.cancel_on(&2), 1));
    leaves_nothing(|world, _| assert_eq!(world.purgatory.cancel_on(&3), 1));
    leaves_nothing(|world, _| world.clock.advance(HOUR));
    leaves_nothing(|world, _| {
        for op in world.purgatory.shutdown() {
            op.complete(Completion::ShutDown);
        }
    });
}

#[test]
fn a_displaced_operation_has_left_and_the_new_one_waits() {
    leaves(Seen { delayed: 1, watched: 1, keys: 1, pending: 1 }, |world, _| {
        let key = world.watch(8, [4]);
        assert!(world.purgatory.complete(key));
    });
}

#[test]
fn an_operation_that_a_shutdown_returned_has_left() {
    let world = World::new();
    world.any(7, [Events(1), Threshold(2, 3)]);
    let operations = world.purgatory.shutdown();
    assert_eq!(look(&world.purgatory), NOTHING);
    drop(operations);
    world.check_empty();
}

/// A key that owns memory, and counts its copies.
#[derive(Debug)]
struct Counted(u32, Arc<AtomicUsize>);

impl Counted {
    fn new(number: u32, count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(number, Arc::clone(count))
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(self.0, &self.1)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Counted {}

impl std::hash::Hash for Counted {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

struct Never;

impl delaywheel::DelayedOperation<Counted> for Never {
    fn complete(self, _: delaywheel::Completion) {}
}

#[test]
fn the_purgatory_keeps_one_copy_of_a_key_until_its_last_watcher_leaves() {
    let clock = delaywheel::ManualClock::new();
    let timer = delaywheel::Timer::builder().clock(clock.clone());
    let purgatory = delaywheel::Purgatory::builder().timer(timer).build().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let key = |number| Counted::new(number, &count);
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let watched = purgatory.watch(Never, [key(1), key(1), key(2)], HOUR);
        waiting.extend(watched.unwrap().key());
        let conditions = [Threshold(key(2), 5), Threshold(key(3), 5), Events(key(1))];
        waiting.extend(purgatory.watch(Never, Watch::all(conditions), HOUR).unwrap().key());
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
