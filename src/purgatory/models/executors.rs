//! Operations that the reaper expires while an executor thread completes others.

use std::{sync::Arc, vec, vec::Vec};

use loom::thread;

use super::{
    Completion::{Expired, ShutDown},
    Limits, World, check, join,
};
use crate::sync::Mutex;

/// Makes a purgatory whose completions run on an executor thread, if they follow an expiration.
fn with_executor() -> World {
    let timer = |timer: crate::timer::TimerBuilder| timer.shards(1).executor_threads(1);
    World { checks_steps: false, ..World::with_timer(Limits::new(None, None, 8), timer) }
}

impl World {
    /// Shuts the purgatory down, and completes the operations that this returns.
    fn shut_down(&self) {
        self.shared.shut_down_now();
    }
}

#[test]
fn an_executor_completes_one_operation_while_the_reaper_expires_another() {
    check(|| {
        let world = with_executor();
        world.watch_for_delay(&[0]);
        world.expire();
        world.watch_for_delay(&[1]);
        let executor = world.spawn(|world| world.shared.timer.run_executor());
        world.expire();
        world.shut_down();
        join(executor);
        let ends = world.ends();
        assert_eq!(ends.len(), 2, "each ends once");
        let expired = ends.iter().filter(|end| **end == Expired).count() as u64;
        let stats = world.shared.stats();
        assert_eq!([stats.expired, stats.shut_down], [expired, 2 - expired]);
        world.check_empty();
    });
}

#[test]
fn an_executor_or_a_shutdown_completes_an_operation_that_the_reaper_expires() {
    check(|| {
        let world = with_executor();
        world.watch_for_delay(&[0]);
        let reaper = world.spawn(World::expire);
        world.shut_down();
        world.shared.timer.run_executor();
        join(reaper);
        assert!(matches!(world.ends()[..], [Expired | ShutDown]), "lost");
        world.check_empty();
    });
}

/// A reaper hands an expired operation to an executor during a shutdown, by hand.
fn hand_off_against_shutdown(holds_shard: bool) {
    struct Timer {
        wheel: Mutex<Option<u32>>,
        backlog: Mutex<Vec<u32>>,
    }
    let timer = Arc::new(Timer { wheel: Mutex::new(Some(1)), backlog: Mutex::new(Vec::new()) });
    let other = Arc::clone(&timer);
    let reaper = thread::spawn(move || {
        let mut shard = other.wheel.lock();
        let expired = shard.take();
        let shard = holds_shard.then_some(shard);
        other.backlog.lock().extend(expired);
        drop(shard);
    });
    let mut ended = Vec::from_iter(timer.wheel.lock().take());
    ended.append(&mut timer.backlog.lock());
    join(reaper);
    assert_eq!(ended, vec![1], "lost");
}

#[test]
fn the_hand_off_under_the_lock_of_the_shard_by_hand_loses_no_operation() {
    check(|| hand_off_against_shutdown(true));
}

#[test]
#[should_panic(expected = "lost")]
fn broken_a_hand_off_after_the_release_of_the_shard_loses_an_operation() {
    check(|| hand_off_against_shutdown(false));
}
