//! Operations that the reaper expires while an executor thread completes others.

use super::{
    Completion::{Expired, ShutDown},
    World, check, join,
};

/// Makes a purgatory that completes expired operations on an executor thread.
fn with_executor() -> World {
    World::with_timer(|timer| timer.shards(1).executor_threads(1))
}

#[test]
fn an_executor_completes_one_operation_while_the_reaper_expires_another() {
    check(|| {
        let world = with_executor();
        world.watch_for_delay(&[0]);
        world.expire();
        world.watch_for_delay(&[1]);
        let executor = world.spawn(|world| world.purgatory.shared.timer.run_executor());
        world.expire();
        world.purgatory.shared.shut_down();
        join(executor);
        let ends = world.ends();
        assert_eq!(ends.len(), 2, "each ends once");
        let expired = ends.iter().filter(|end| **end == Expired).count() as u64;
        let stats = world.purgatory.stats();
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
        world.purgatory.shared.shut_down();
        world.purgatory.shared.timer.run_executor();
        join(reaper);
        assert!(matches!(world.ends()[..], [Expired | ShutDown]), "lost");
        world.check_empty();
    });
}
