//! Operations of one key in two shards, because a thread leaves a locked shard.

use std::sync::{Arc, atomic};

use loom::thread;

use super::{
    Completion::{Cancelled, Satisfied},
    Limits, OperationKey, World, check, join,
};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence};

/// Makes a purgatory with two shards. The threads of a model begin with the first one.
fn two_shards() -> World {
    let timer = |timer: crate::timer::TimerBuilder| timer.shards(2).inline();
    World { checks_steps: false, ..World::with_timer(Limits::new(None, None, 8), timer) }
}

impl World {
    /// Registers an operation while the first shard is locked, so the thread uses the second one.
    fn watch_in_second_shard(&self, keys: &[usize]) -> OperationKey {
        let held = self.shared.lock(0);
        let key = self.watch(keys).expect("it waits");
        drop(held);
        assert_eq!(key.shard as usize, 1, "the shard is locked");
        key
    }
}

#[test]
fn an_event_completes_an_operation_that_takes_a_free_shard() {
    let shards = Arc::new([const { atomic::AtomicBool::new(false) }; 2]);
    let seen = Arc::clone(&shards);
    check(move || {
        let world = two_shards();
        world.watch(&[0]);
        let event = world.spawn(|world| world.satisfy(0));
        // The event may hold the lock of the first shard.
        if let Some(key) = world.watch(&[0]) {
            seen[key.shard as usize].store(true, atomic::Ordering::Relaxed);
        }
        join(event);
        assert_eq!(world.ends(), [Satisfied, Satisfied]);
        world.check_empty();
    });
    assert!(shards.iter().all(|seen| seen.load(atomic::Ordering::Relaxed)), "a shard was not used");
}

#[test]
fn an_event_in_two_shards_completes_an_operation_that_begins_to_wait_in_one_of_them() {
    check(|| {
        let world = two_shards();
        world.watch(&[0]);
        world.watch_in_second_shard(&[0]);
        let event = world.spawn(|world| world.satisfy(0));
        world.watch(&[0]);
        join(event);
        assert_eq!(world.ends(), [Satisfied; 3]);
        world.check_empty();
    });
}

#[test]
fn two_events_in_two_shards_complete_each_operation_once() {
    check(|| {
        let world = two_shards();
        world.watch(&[0]);
        world.watch_in_second_shard(&[0]);
        let event = world.spawn(|world| world.satisfy(0));
        let completed = world.satisfy(0);
        assert_eq!(completed + join(event), 2);
        assert_eq!(world.ends(), [Satisfied, Satisfied]);
        world.check_empty();
    });
}

#[test]
fn a_cancellation_by_key_leaves_or_cancels_an_operation_that_takes_a_free_shard() {
    check(|| {
        let world = two_shards();
        let first = world.watch_in_second_shard(&[0]);
        let cancel = world.spawn(|world| world.cancel_for_key(0));
        let second = world.watch(&[0]).expect("it waits");
        let cancelled = join(cancel);
        assert!(!world.is_waiting(first));
        // An operation that was out at its cancellation is not returned.
        assert!(!(world.cancel(second) && cancelled == 2));
        assert_eq!(world.ends(), [Cancelled, Cancelled]);
        world.check_empty();
    });
}

/// The filter of two shards, by hand: a thread registers in the second one while another announces.
fn watch_against_event(marks_shard_late: bool) {
    struct Filter {
        is_ready: AtomicBool,
        /// A bit for each shard that ever had a watched key.
        used: AtomicU64,
        counts: [AtomicU64; 2],
        lists: [Mutex<bool>; 2],
    }
    let filter = Arc::new(Filter {
        is_ready: AtomicBool::new(false),
        used: AtomicU64::new(0),
        counts: [AtomicU64::new(0), AtomicU64::new(0)],
        lists: [Mutex::new(false), Mutex::new(false)],
    });
    let other = Arc::clone(&filter);
    let announcer = thread::spawn(move || {
        other.is_ready.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let used = other.used.load(Ordering::Relaxed);
        (0..2).any(|shard| {
            used >> shard & 1 == 1
                && other.counts[shard].load(Ordering::Relaxed) > 0
                && *other.lists[shard].lock()
        })
    });
    {
        let mut list = filter.lists[1].lock();
        *list = true;
        if !marks_shard_late {
            filter.used.fetch_or(2, Ordering::Relaxed);
        }
        filter.counts[1].store(1, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    let is_seen = filter.is_ready.load(Ordering::Relaxed);
    if marks_shard_late {
        filter.used.fetch_or(2, Ordering::Relaxed);
    }
    assert!(join(announcer) || is_seen, "missed");
}

#[test]
fn the_protocol_of_the_filter_of_two_shards_by_hand_holds() {
    check(|| watch_against_event(false));
}

#[test]
#[should_panic(expected = "missed")]
fn broken_a_shard_that_is_marked_after_the_second_check_is_passed_over() {
    check(|| watch_against_event(true));
}

/// A thread that leaves a locked shard, by hand. It registers an operation and brings it back.
fn leave_locked_shard(chooses_twice: bool) {
    let shards = Arc::new([Mutex::new(0), Mutex::new(0)]);
    // Both threads use it, so the model checker stops one of them within its hold.
    let count = Arc::new(AtomicU64::new(0));
    let other = (Arc::clone(&shards), Arc::clone(&count));
    let other = thread::spawn(move || {
        let _shard = other.0[0].lock();
        other.1.store(1, Ordering::Relaxed);
    });
    let choose = || {
        count.load(Ordering::Relaxed);
        usize::from(shards[0].is_locked())
    };
    let chosen = choose();
    *shards[chosen].lock() += 1;
    let chosen = if chooses_twice { choose() } else { chosen };
    let mut shard = shards[chosen].lock();
    assert_eq!(*shard, 1, "the operation is in another shard");
    *shard = 0;
    drop(shard);
    join(other);
}

#[test]
fn a_thread_that_keeps_its_choice_of_a_shard_finds_its_operation() {
    check(|| leave_locked_shard(false));
}

#[test]
#[should_panic(expected = "the operation is in another shard")]
fn broken_a_thread_that_chooses_a_shard_again_does_not_find_its_operation() {
    check(|| leave_locked_shard(true));
}
