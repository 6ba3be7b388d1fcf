//! Operations of one key in two shards, because a thread leaves a locked shard.

use std::sync::{Arc, atomic};

use super::{
    Completion::{Cancelled, Satisfied},
    OperationKey, World, check, join,
};

/// Makes a purgatory with two shards. The threads of a model begin with the first one.
fn two_shards() -> World {
    World::with_timer(|timer| timer.shards(2).inline())
}

impl World {
    /// Registers an operation while the first shard is locked, so the thread uses the second one.
    fn watch_in_second_shard(&self, keys: &[usize]) -> OperationKey {
        let held = self.purgatory.shared.timer.shards.lock(0);
        let key = self.watch(keys).expect("it waits");
        drop(held);
        assert_eq!(key.shard as usize, 1, "the shard is locked");
        key
    }
}

#[test]
fn an_event_in_two_shards_completes_an_operation_that_begins_to_wait_in_one_of_them() {
    let shards = Arc::new([const { atomic::AtomicBool::new(false) }; 2]);
    let seen = Arc::clone(&shards);
    check(move || {
        let world = two_shards();
        world.watch(&[0]);
        world.watch_in_second_shard(&[0]);
        let event = world.spawn(|world| world.satisfy(0));
        // The event may hold the lock of the first shard.
        if let Some(key) = world.watch(&[0]) {
            seen[key.shard as usize].store(true, atomic::Ordering::Relaxed);
        }
        join(event);
        assert_eq!(world.ends(), [Satisfied; 3]);
        world.check_empty();
    });
    assert!(shards.iter().all(|seen| seen.load(atomic::Ordering::Relaxed)), "a shard was not used");
}

#[test]
fn a_cancellation_by_key_leaves_or_cancels_an_operation_that_takes_a_free_shard() {
    check(|| {
        let world = two_shards();
        let first = world.watch_in_second_shard(&[0]);
        let cancel = world.spawn(|world| world.cancel_for_key(0));
        let second = world.watch(&[0]).expect("it waits");
        let cancelled = join(cancel);
        assert!(!world.purgatory.is_waiting(first));
        // An operation that was out at its cancellation is not returned.
        assert!(!(world.cancel(second) && cancelled == 2));
        assert_eq!(world.ends(), [Cancelled, Cancelled]);
        world.check_empty();
    });
}
