//! User code that calls the purgatory or drops it: checks and completions.

use std::sync::{Arc, Mutex};

use delaywheel::{
    Completion,
    Completion::{Cancelled, Expired, Satisfied},
    Condition::{Events, Threshold},
    OperationKey, Watch,
};

use super::support::{Cancel as _, HOUR, Op, SECOND, Shared, World, YEAR, all, must_return};

#[test]
fn a_completion_can_watch_check_advance_and_cancel() {
    must_return(|| {
        let world = World::new();
        world.watch(2, [2]);
        world.watch(3, [3]);
        world.wait_on(world.op(4), Watch::any([Threshold(4, 5)]));
        let (purgatory, state, again) = (world.purgatory.clone(), world.state.clone(), world.op(5));
        let op = world.op(1).end(move |end| {
            state.lock().unwrap().ended.push((1, end));
            state.lock().unwrap().ready.insert(2);
            state.lock().unwrap().accepted += 1;
            assert_eq!(purgatory.check_and_complete(&2), 1);
            assert_eq!(purgatory.cancel_on(&3), 1);
            assert_eq!(purgatory.advance(&4, 5), 1);
            let watched = purgatory.watch(again, [1], SECOND).unwrap();
            assert!(purgatory.is_waiting(watched.key().unwrap()));
            assert_eq!(purgatory.stats().delayed, 1);
        });
        world.waits(world.purgatory.watch(op, [1], HOUR));
        assert_eq!(world.purgatory.cancel_on(&1), 1, "and not that of its completion");
        let expected = [(1, Cancelled), (2, Satisfied), (3, Cancelled), (4, Satisfied)];
        assert_eq!(world.ended(), expected);
        world.clock.advance(SECOND);
        assert_eq!(world.ended(), [(5, Expired)]);
        world.check_empty();
    });
}

/// Makes an operation wait for an event on two keys, or for an advance of key 1 to 5. If `again`,
/// its completion makes another one wait in the same way.
fn wait(purgatory: &Shared, is_for_value: bool, again: bool) {
    let (other, mut checks) = (purgatory.clone(), 0);
    let check = move || {
        checks += 1;
        is_for_value || checks > 2
    };
    let end = move |_| {
        if again {
            wait(&other, is_for_value, false);
        }
    };
    let op = Op::new().check(check).end(end);
    let watched = if is_for_value {
        purgatory.watch(op, Watch::all([Threshold(1, 5), Events(2)]), HOUR)
    } else {
        purgatory.watch(op, [1, 2], HOUR)
    };
    assert!(watched.is_ok());
}

#[test]
fn an_event_or_an_advance_does_not_end_operations_that_it_adds_to_other_shards() {
    type Way = fn(&Shared) -> usize;
    let ways: [(Way, bool); 2] = [
        (|purgatory| purgatory.check_and_complete(&1), false),
        (|purgatory| purgatory.advance(&1, 5), true),
    ];
    // In the rounds, the calling thread has different shards. In the last ones, there are more
    // operations in each shard than one hold ends.
    for (round, (way, is_for_value)) in ways.into_iter().cycle().take(64).enumerate() {
        let count = if round < 60 { 1 } else { 20 };
        must_return(move || {
            let purgatory = World::new().purgatory;
            for _ in 0..8 {
                let other = purgatory.clone();
                let watch = move || (0..count).for_each(|_| wait(&other, is_for_value, true));
                std::thread::spawn(watch).join().unwrap();
            }
            let all = 8 * count;
            assert_eq!((way(&purgatory), purgatory.stats().delayed), (all, all as u64));
            assert_eq!(purgatory.stats().panicked, 0);
            assert_eq!((way(&purgatory), purgatory.stats().delayed), (all, 0));
        });
    }
}

/// Ends an operation that watches the key of its name, in a way that depends on the name.
fn end_one(purgatory: &Shared, name: u32, key: OperationKey) {
    match name % 7 {
        0 => assert!(purgatory.complete(key)),
        1 => assert_eq!(purgatory.complete_all([key]), 1),
        2 => assert_eq!(purgatory.advance(&name, 5), 1),
        3 | 4 => drop(purgatory.guard(key)),
        5 => assert_eq!(purgatory.check_and_complete(&name), 1),
        _ => {
            // By the completion of an operation that completes at once.
            let by = purgatory.clone();
            let op = Op::new().check(|| true).end(move |_| assert!(by.complete(key)));
            let watched = purgatory.watch(op, [], HOUR);
            assert!(watched.unwrap().key().is_none());
        }
    }
}

/// Ends an operation in the way of its name, and in its completion the next, and so on.
#[test]
fn a_completion_that_another_one_causes_runs_after_the_first_returns() {
    const LENGTH: u32 = if cfg!(debug_assertions) { 1_000 } else { 5_000 };
    let chain = |first| {
        let world = World::new();
        let keys = Arc::new(Mutex::new(Vec::new()));
        let running = Arc::new(Mutex::new(()));
        for name in first..first + LENGTH {
            let (purgatory, state) = (world.purgatory.clone(), Arc::clone(&world.state));
            let (others, running) = (Arc::clone(&keys), Arc::clone(&running));
            let op = world.op(name).end(move |end| {
                let _running = running.try_lock().expect("none runs inside another");
                state.lock().unwrap().ended.push((name, end));
                state.lock().unwrap().ready.insert(name + 1);
                let next = others.lock().unwrap().get((name - first) as usize + 1).copied();
                if let Some(next) = next {
                    end_one(&purgatory, name + 1, next);
                }
            });
            let key = world.wait_on(op, Watch::any([Events(name), Threshold(name, 5)]));
            keys.lock().unwrap().push(key);
        }
        world.make_ready(first);
        let key = keys.lock().unwrap()[0];
        end_one(&world.purgatory, first, key);
        assert_eq!(world.purgatory.stats().panicked, 0);
        assert!(world.ended().into_iter().map(|(name, _)| name).eq(first..first + LENGTH));
        world.state().accepted += world.purgatory.stats().at_once;
        world.check_empty();
    };
    (0..7).for_each(|first| must_return(move || chain(first)));
}

/// Each check announces the event that completes the next operation.
#[test]
fn a_chain_of_checks_runs_to_its_end_on_a_small_stack() {
    const LENGTH: u32 = 20_000;
    let announce = |purgatory: &Shared, key| match key % 4 {
        0 | 2 => drop(purgatory.check_and_complete(&key)),
        1 => drop(purgatory.check_each([key, (key + 1_000_000)])),
        _ => drop(purgatory.advance(&key, 1)),
    };
    let chain = move || {
        let world = World::new();
        for name in 0..LENGTH {
            let (purgatory, state) = (world.purgatory.clone(), Arc::clone(&world.state));
            let op = world.op(name).check(move || {
                let mut locked = state.lock().unwrap();
                let is_ready = locked.ready.contains(&name);
                // Announces once. Otherwise the operations would check each other again and again.
                let is_news = is_ready && locked.ready.insert(name + 1);
                drop(locked);
                if is_news {
                    announce(&purgatory, name + 1);
                }
                is_ready
            });
            let op = op.reach(|_, _| false);
            if name % 4 == 3 {
                world.wait_on(op, Watch::all([Events(name), Threshold(name, 1)]));
            } else {
                world.wait_on(op, Watch::any([Events(name)]));
            }
        }
        world.make_ready(0);
        // The chain begins in the first check of another operation.
        let purgatory = world.purgatory.clone();
        let first = Op::new().check(move || {
            announce(&purgatory, 0);
            true
        });
        assert!(world.at_once(world.purgatory.watch(first, [], HOUR)));
        let mut ended = world.ended();
        ended.sort_by_key(|(name, _)| *name);
        assert_eq!(ended, all(0..LENGTH, Satisfied));
        assert_eq!(world.purgatory.stats().panicked, 0);
        world.check_empty();
    };
    let small = std::thread::Builder::new().stack_size(512 << 10).spawn(chain);
    small.expect("a thread starts").join().expect("the chain runs to its end");
}

#[test]
fn checks_run_within_checks_at_most_eight_deep() {
    let world = World::new();
    let depths = Arc::new(Mutex::new((0, Vec::new())));
    for name in 0..30 {
        let (purgatory, depths, mut checks) = (world.purgatory.clone(), Arc::clone(&depths), 0);
        let op = world.op(name).check(move || {
            checks += 1;
            if checks < 3 {
                return false;
            }
            let mut held = depths.lock().unwrap();
            held.0 += 1;
            let depth = held.0;
            held.1.push(depth);
            drop(held);
            purgatory.check_and_complete(&(name + 1));
            depths.lock().unwrap().0 -= 1;
            true
        });
        world.waits(world.purgatory.watch(op, [name], HOUR));
    }
    assert_eq!(world.purgatory.check_and_complete(&0), 1);
    assert_eq!(world.ended().len(), 30);
    let expected = (0..30).map(|name| name % 8 + 1);
    assert!(expected.eq(depths.lock().unwrap().1.drain(..)), "deeper ones run after the outermost");
    assert_eq!(world.purgatory.stats().panicked, 0);
}

#[test]
fn a_completion_can_drop_the_last_handle() {
    // The clock does not keep the purgatory alive, so the completion drops its last handle.
    must_return(|| {
        let World { clock, purgatory, state, .. } = World::new();
        let last = Arc::new(Mutex::new(None));
        let (slot, ended) = (Arc::clone(&last), Arc::clone(&state));
        let op = Op::new().end(move |end: Completion| {
            let dropped = slot.lock().unwrap().take();
            drop::<Option<Shared>>(dropped);
            ended.lock().unwrap().ended.push((1, end));
        });
        let _ = purgatory.watch(op, [1], SECOND).unwrap();
        for name in 2..10 {
            let ended = Arc::clone(&state);
            let op = Op::new().end(move |end| ended.lock().unwrap().ended.push((name, end)));
            let _ = purgatory.watch(op, [1], SECOND).unwrap();
        }
        *last.lock().unwrap() = Some(purgatory);
        clock.advance(YEAR);
        let ended = std::mem::take(&mut state.lock().unwrap().ended);
        // They have the same deadline, so they all expire before the first of them completes.
        assert_eq!(ended, all(1..10, Expired));
    });
}
