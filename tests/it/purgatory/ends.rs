//! Every way in which an operation ends: each operation ends once, with the right completion.

use std::{
    iter,
    sync::{Arc, mpsc},
    time::Duration,
};

use delaywheel::{
    Completion,
    Completion::{Cancelled, Expired, Satisfied, ShutDown},
    Condition::{Events, Threshold},
    DelayedOperation, OperationKey, Overload, Purgatory, Reaper, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, MS, Op, SECOND, World, YEAR, wait_until};
use crate::timer::support::{GENEROUS, Set};

type Call = fn(&World, OperationKey);

fn made_ready(world: &World) -> &World {
    world.make_ready(7);
    world
}

/// Announces events on key `by`, and on one that the operation does not watch.
fn event_on(world: &World, by: u32) {
    assert_eq!(world.purgatory.check_and_complete(&by), 0, "it cannot complete yet");
    assert_eq!(made_ready(world).purgatory.check_and_complete(&3), 0, "not one of its keys");
    assert_eq!(world.purgatory.check_and_complete(&by), 1);
}

fn shut_down(world: &World) {
    world.purgatory.shutdown().into_iter().for_each(|op| op.complete(ShutDown));
}

/// Ways to end operation 7 on the events of keys 1 and 2, the completion of each, and the number of
/// checks, of which two are those of the registration.
const WAYS: [(Call, Completion, usize); 11] = [
    (|world, _| event_on(world, 1), Satisfied, 4),
    (|world, _| event_on(world, 2), Satisfied, 4),
    (|world, _| assert_eq!(made_ready(world).purgatory.check_each([3, 2, 1]), 1), Satisfied, 3),
    (|world, _| assert_eq!(world.purgatory.advance(&4, 10), 1), Satisfied, 2),
    (|world, key| assert!(world.purgatory.complete(key)), Satisfied, 2),
    (|world, key| assert_eq!(world.purgatory.complete_all([key]), 1), Satisfied, 2),
    (|world, key| drop(world.purgatory.guard(key)), Cancelled, 2),
    (|world, key| assert!(world.purgatory.cancel_one(key)), Cancelled, 2),
    (|world, _| world.clock.advance(HOUR), Expired, 2),
    (|world, _| assert_eq!(world.purgatory.cancel_on(&1), 1), Cancelled, 2),
    (|world, _| shut_down(world), ShutDown, 2),
];

#[test]
fn an_operation_has_left_everything_before_it_completes() {
    for (call, end, checks) in WAYS {
        let world = World::new();
        let (log, purgatory) = (world.state.clone(), world.purgatory.clone());
        let held = Arc::clone(&world.held);
        let op = world.op(7).end(move |end| {
            let stats = purgatory.stats();
            let left = (stats.delayed, stats.watched, stats.keys, stats.timer.pending);
            assert_eq!(left, (0, 0, 0, 0), "it has left all lists and the timer");
            log.lock().unwrap().ended.push((7, end));
            drop(held);
        });
        let key = world.wait_on(op, Watch::any([Events(1), Events(2), Threshold(4, 10)]));
        assert!(world.purgatory.is_waiting(key));
        assert_eq!(world.purgatory.cancel_on(&3), 0, "not one of its keys");
        world.check_books();
        call(&world, key);
        assert_eq!((world.ended(), world.checked().len()), (vec![(7, end)], checks));
        assert_eq!(world.purgatory.stats().waits.count(), 1);
        assert!(!world.purgatory.is_waiting(key) && !world.purgatory.complete(key));
        world.check_empty();
    }
}

#[test]
fn an_operation_expires_exactly_at_its_tick() {
    for delay in [MS, 7 * MS, SECOND, 64 * SECOND, HOUR, YEAR] {
        let world = World::new();
        let key = world.waits(world.purgatory.watch(world.op(1), [1], delay));
        world.clock.advance(delay.saturating_sub(Duration::from_nanos(1)));
        assert!(world.purgatory.is_waiting(key) && world.ended().is_empty(), "early: {delay:?}");
        world.clock.advance(Duration::from_nanos(1));
        assert_eq!(world.ended(), [(1, Expired)]);
        world.check_empty();
    }
}

/// No thread reads the clock between the registration and the end.
#[test]
fn a_wait_in_a_quiet_purgatory_is_measured_however_it_ends() {
    for (call, end, _) in WAYS.into_iter().filter(|(_, end, _)| *end != Expired) {
        let clock = Set::quiet();
        let timer = Timer::builder().clock(clock.clone()).shards(1);
        let world = World::with(|builder| builder.timer(timer));
        let key = world.wait_on(world.op(7), Watch::any([Events(1), Events(2), Threshold(4, 10)]));
        clock.pass(10 * SECOND);
        call(&world, key);
        let waits = world.purgatory.stats().waits;
        assert_eq!((waits.count(), waits.max()), (1, 10 * SECOND), "{end:?}");
    }
}

#[test]
fn a_wait_is_measured_up_to_its_end_though_other_operations_run_before_it_in_the_call() {
    let passes = |world: &World, at: u32| {
        let (clock, mut checks) = (world.clock.clone(), 0);
        move || {
            checks += 1;
            if checks == at {
                clock.advance(SECOND);
            }
            checks
        }
    };
    let longest = |world: &World| world.purgatory.stats().waits.max();

    // A hold of `complete_all` ends 32 operations, which complete before the next hold.
    let world = World::new();
    let mut pass = passes(&world, 1);
    let first = world.wait_on(Op::new().end(move |_| _ = pass()), [1]);
    let others: Vec<_> = (1..=32).map(|name| world.watch(name, [1])).collect();
    assert_eq!(world.purgatory.complete_all(iter::once(first).chain(others)), 33);
    assert_eq!(longest(&world), SECOND);
    assert!(world.purgatory.complete(world.watch(33, [1])));
    assert_eq!(world.purgatory.stats().waits.percentile(97.0), Duration::ZERO, "only one waited");

    let world = World::new();
    let mut pass = passes(&world, 2);
    world.wait_on(Op::new().check(move || pass() == 2), [1]);
    assert_eq!((world.purgatory.stats().satisfied, longest(&world)), (1, SECOND));

    let world = World::with(|builder| builder.max_delayed(1, Overload::DisplaceOldest));
    world.watch(1, [1]);
    let mut pass = passes(&world, 2);
    world.wait_on(Op::new().check(move || pass() == 0), [1]);
    assert_eq!((world.purgatory.stats().displaced, longest(&world)), (1, SECOND));
}

#[test]
fn a_shutdown_returns_the_operations_that_have_expired_behind_a_slow_one() {
    let reaper = Reaper::new("ends");
    let (timer, clock) = (|| Timer::builder().reaper(&reaper), Set::quiet());
    let builder = Purgatory::<u32, Op>::builder().timer(timer().clock(clock.clone()));
    let purgatory = builder.build().unwrap();
    // After each has begun to wait. One that expires before runs on the thread of this test.
    let expire = || {
        clock.pass(HOUR);
        purgatory.wake();
    };
    let (release, released) = mpsc::channel::<()>();
    let (send, ends) = mpsc::channel();
    let told = send.clone();
    let slow = Op::new().end(move |end| {
        told.send(end).unwrap();
        released.recv_timeout(GENEROUS).expect("the test releases it");
    });
    assert!(purgatory.watch(slow, [1], HOUR).is_ok());
    expire();
    assert_eq!(ends.recv_timeout(GENEROUS), Ok(Expired));
    for _ in 0..9 {
        let told = send.clone();
        let op = Op::new().end(move |end| told.send(end).unwrap());
        assert!(purgatory.watch(op, [1], HOUR).is_ok());
    }
    expire();
    wait_until("all have expired", || purgatory.stats().expired == 10);
    // The reaper runs this after it has handed all of them off.
    let (other, (ran, runs)) = (timer().inline().build().unwrap(), mpsc::channel());
    other.schedule(MS, move || ran.send(()).unwrap()).unwrap();
    runs.recv_timeout(GENEROUS).unwrap();
    assert_eq!((purgatory.stats().delayed, purgatory.stats().watched), (0, 0));
    let operations = purgatory.shutdown();
    let stats = purgatory.stats();
    assert_eq!((operations.len(), stats.expired, stats.shut_down), (9, 1, 9));
    for op in operations {
        op.complete(ShutDown);
    }
    release.send(()).unwrap();
    drop((purgatory, send));
    assert!(ends.iter().eq([ShutDown; 9]), "each of the others completes once, as shut down");
}

#[test]
fn an_expired_operation_is_completed_if_the_pool_drops_it() {
    let timer = Timer::builder().executor(drop);
    let purgatory = Purgatory::<u32, _>::builder().timer(timer).build().unwrap();
    let (send, ends) = mpsc::channel();
    let op = Op::new().end(move |end| send.send(end).unwrap());
    assert!(purgatory.watch(op, [1], MS).is_ok());
    assert_eq!(ends.recv_timeout(GENEROUS), Ok(Expired));
    assert_eq!((purgatory.stats().expired, purgatory.stats().delayed), (1, 0));
}
