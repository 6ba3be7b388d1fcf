//! User code that calls the purgatory or drops it: checks, completions, and drops of operations and
//! reasons.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use delaywheel::{
    Completion,
    Completion::{Cancelled, Expired, Satisfied, ShutDown},
    DelayedOperation, ManualClock, Purgatory, PurgatoryBuilder, Timer,
    Watch::{self, Events, Threshold},
    purgatory::OperationKey,
};

use super::support::{End, HOUR, Log, Op, SECOND, Shared, World, YEAR, all, must_return};

#[test]
fn a_completion_can_watch_check_advance_and_cancel() {
    must_return(|| {
        let world = World::new();
        world.watch(2, [2]);
        world.watch(3, [3]);
        world.any(4, [Threshold(4, 5)]);
        let (purgatory, state, again) = (world.purgatory.clone(), world.state.clone(), world.op(5));
        let op = world.op(1).end(move |end| {
            state.lock().unwrap().ended.push((1, end));
            state.lock().unwrap().ready.insert(2);
            state.lock().unwrap().accepted += 1;
            assert_eq!(purgatory.check_and_complete(&2), 1);
            assert_eq!(purgatory.cancel_for_key_with(&3, &"by another"), 1);
            assert_eq!(purgatory.advance(&4, 5), 1);
            let watched = purgatory.try_complete_else_watch(again, [1], SECOND).unwrap();
            assert!(purgatory.is_waiting(watched.key().unwrap()));
            assert_eq!(purgatory.delayed(), 1);
        });
        world.waits(world.purgatory.try_complete_else_watch(op, [1], HOUR));
        assert_eq!(
            world.purgatory.cancel_for_key(&1),
            1,
            "the completion's own operation is not cancelled"
        );
        let ended = world.ended();
        let expected =
            [(1, Cancelled("")), (2, Satisfied), (3, Cancelled("by another")), (4, Satisfied)];
        assert_eq!(ended, expected);
        world.clock.advance(SECOND);
        assert_eq!(world.ended(), [(5, Expired)]);
        world.check_empty();
    });
}

/// Waits again for a greater value when it is cancelled. Panics if it is cancelled too often.
struct Stubborn {
    purgatory: Shared,
    left: u32,
    next: u64,
}

impl Stubborn {
    fn op(self) -> Op {
        Op::new().end(move |end: End| {
            let Self { purgatory, left, next } = self;
            if end == Completion::ShutDown {
                return;
            }
            let left = left.checked_sub(1).expect("one cancellation cancels once");
            let again = Self { purgatory: purgatory.clone(), left, next: next + 1 }.op();
            let watches = [Events(1), Threshold(1, next), Threshold(2, next)];
            assert!(purgatory.watch_any(again, watches, HOUR).is_ok());
        })
    }
}

#[test]
fn a_cancel_by_key_does_not_cancel_operations_that_wait_again() {
    for key in [1, 2] {
        let world = World::new();
        let stubborn = Stubborn { purgatory: world.purgatory.clone(), left: 3, next: 1 };
        let watches = [Events(1), Threshold(1, 0), Threshold(2, 0)];
        world.waits(world.purgatory.watch_any(stubborn.op(), watches, HOUR));
        assert_eq!(world.purgatory.cancel_for_key(&key), 1);
        assert_eq!(world.purgatory.stats().panicked, 0);
        assert_eq!(world.purgatory.delayed(), 1);
        drop(world.purgatory.shutdown());
    }
}

/// A reason whose clone calls a function.
struct OnClone(Arc<dyn Fn() + Send + Sync>);

impl Clone for OnClone {
    fn clone(&self) -> Self {
        (self.0)();
        Self(Arc::clone(&self.0))
    }
}

#[test]
fn a_cancel_by_key_does_not_follow_operations_that_come_later() {
    let watches: [fn(u64) -> Watch<u32>; 2] = [|at| Threshold(1, at), |_| Events(1)];
    for watch in watches {
        let timer = Timer::builder().clock(ManualClock::new()).shards(1);
        let purgatory: Purgatory<u32, Op<OnClone>, OnClone> =
            PurgatoryBuilder::new().timer(timer).build().unwrap();
        let next = Arc::new(AtomicU64::new(0));
        let add = {
            let (purgatory, next) = (purgatory.clone(), Arc::clone(&next));
            move || {
                let watches = [watch(next.fetch_add(1, Ordering::Relaxed))];
                assert!(purgatory.watch_any(Op::new(), watches, HOUR).is_ok());
            }
        };
        (0..10).for_each(|_| add());
        // More operations come between two holds than a hold passes over.
        let reason = OnClone(Arc::new(move || {
            assert!(next.load(Ordering::Relaxed) < 10_000, "the call continues without end");
            (0..300).for_each(|_| add());
        }));
        assert_eq!(purgatory.cancel_for_key_with(&1, &reason), 10);
        drop(purgatory.shutdown());
    }
}

#[test]
fn an_event_does_not_complete_operations_that_wait_again() {
    let world = World::new();
    let (purgatory, again) = (world.purgatory.clone(), world.op(2));
    let op = Op::new().reach(|_, _| false).end(move |_| {
        let watches = [Events(1), Threshold(1, 1)];
        assert!(purgatory.watch_any(again, watches, HOUR).is_ok());
    });
    world.state().accepted += 1;
    world.waits(world.purgatory.watch_any(op, [Threshold(1, 0)], HOUR));
    assert_eq!(
        world.purgatory.advance(&1, 1),
        1,
        "the new operation is not completed by this event"
    );
    assert_eq!(world.purgatory.delayed(), 1);
    assert_eq!(world.purgatory.advance(&1, 1), 1);
    world.check_empty();
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
        purgatory.watch_all(op, [Threshold(1, 5), Events(2)], HOUR)
    } else {
        purgatory.try_complete_else_watch(op, [1, 2], HOUR)
    };
    assert!(watched.is_ok());
}

#[test]
fn an_event_or_an_advance_does_not_end_operations_that_it_adds_to_other_shards() {
    type Way = fn(&Shared) -> usize;
    let ways: [(Way, bool); 4] = [
        (|purgatory| purgatory.check_and_complete(&1), false),
        (|purgatory| purgatory.check_and_complete_all([&2, &1]), false),
        (|purgatory| purgatory.checks(&[1, 2]).run(usize::MAX), false),
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
            assert_eq!((way(&purgatory), purgatory.delayed()), (all, all as u64));
            assert_eq!(purgatory.stats().panicked, 0);
            assert_eq!((way(&purgatory), purgatory.delayed()), (all, 0));
        });
    }
}

#[test]
fn an_operation_that_ends_during_its_check_leaves_its_slot_to_the_next() {
    for is_satisfied in [false, true] {
        let world = World::new();
        let (purgatory, mut next, mut checks) = (world.purgatory.clone(), Some(world.op(2)), 0);
        let op = world.op(1).check(move || {
            checks += 1;
            if checks < 3 {
                return false;
            }
            assert_eq!(purgatory.cancel_for_key_with(&1, &"moved"), 1);
            let next = next.take().expect("the third check is the last");
            assert!(purgatory.try_complete_else_watch(next, [2], HOUR).unwrap().key().is_some());
            is_satisfied
        });
        world.waits(world.purgatory.try_complete_else_watch(op, [1], HOUR));
        world.state().accepted += 1;
        assert_eq!(world.purgatory.check_and_complete(&1), 0);
        assert_eq!(world.ended(), [(1, Cancelled("moved"))]);
        world.check_books();
        world.make_ready(2);
        assert_eq!(world.purgatory.check_and_complete(&2), 1);
        assert_eq!(world.ended(), [(2, Satisfied)]);
        world.check_empty();
    }
}

/// Ends an operation that watches the key of its name, in a way that depends on the name.
fn end_one(purgatory: &Shared, name: u32, key: OperationKey) {
    match name % 7 {
        0 => assert!(purgatory.complete(key)),
        1 => assert!(purgatory.cancel(key)),
        2 => assert_eq!(purgatory.advance(&name, 5), 1),
        3 => assert_eq!(purgatory.cancel_for_key(&name), 1),
        4 => drop(purgatory.guard(key)),
        5 => assert_eq!(purgatory.check_and_complete(&name), 1),
        _ => {
            // By the completion of an operation that completes at once.
            let by = purgatory.clone();
            let op = Op::new().check(|| true).end(move |_| assert!(by.complete(key)));
            let watched = purgatory.try_complete_else_watch(op, [], HOUR);
            assert!(watched.unwrap().is_completed());
        }
    }
}

#[test]
fn a_completion_that_another_one_causes_runs_after_the_first_returns() {
    const LENGTH: u32 = 30_000;
    must_return(|| {
        let world = World::new();
        let keys = Arc::new(Mutex::new(Vec::new()));
        let is_running = Arc::new(AtomicBool::new(false));
        for name in 0..LENGTH {
            let (purgatory, state) = (world.purgatory.clone(), Arc::clone(&world.state));
            let (others, is_running) = (Arc::clone(&keys), Arc::clone(&is_running));
            let op = world.op(name).end(move |end| {
                assert!(
                    !is_running.swap(true, Ordering::Relaxed),
                    "a completion runs inside another"
                );
                state.lock().unwrap().ended.push((name, end));
                state.lock().unwrap().ready.insert(name + 1);
                let next = others.lock().unwrap().get(name as usize + 1).copied();
                if let Some(next) = next {
                    end_one(&purgatory, name + 1, next);
                }
                is_running.store(false, Ordering::Relaxed);
            });
            let key = world.any_of(op, [Events(name), Threshold(name, 5)]);
            keys.lock().unwrap().push(key);
        }
        let first = keys.lock().unwrap()[0];
        end_one(&world.purgatory, 0, first);
        assert_eq!(world.purgatory.stats().panicked, 0);
        assert!(world.ended().into_iter().map(|(name, _)| name).eq(0..LENGTH));
        world.state().accepted += world.purgatory.stats().at_once;
        world.check_empty();
    });
}

#[test]
fn a_check_can_announce_events_for_other_keys() {
    must_return(|| {
        let world = World::new();
        world.watch(1, [1]);
        let (purgatory, state) = (world.purgatory.clone(), world.state.clone());
        let op = world.op(2).check(move || {
            let completed = purgatory.check_and_complete(&1);
            purgatory.check_and_complete_all([&3, &4]);
            purgatory.advance(&5, 9);
            state.lock().unwrap().checked.push(100 + u32::try_from(completed).unwrap());
            completed > 0
        });
        world.waits(world.purgatory.try_complete_else_watch(op, [2], HOUR));
        world.checked();
        world.make_ready(1);
        assert_eq!(world.purgatory.check_and_complete(&2), 1);
        assert_eq!((world.checked(), world.ended()), (vec![1, 101], all([1, 2], Satisfied)));
        drop(world.purgatory.shutdown());
    });
}

#[test]
fn checks_that_announce_events_for_each_other_end() {
    must_return(|| {
        let world = World::new();
        for name in [1, 2] {
            let (purgatory, state) = (world.purgatory.clone(), world.state.clone());
            let mut is_told = false;
            let op = world.op(name).check(move || {
                let is_ready = state.lock().unwrap().ready.contains(&name);
                // Announces once. Otherwise the two would announce events for each other without
                // end.
                if is_ready && !std::mem::replace(&mut is_told, true) {
                    purgatory.check_and_complete(&(3 - name));
                }
                is_ready
            });
            world.waits(world.purgatory.try_complete_else_watch(op, [name], HOUR));
        }
        world.state().ready.extend([1, 2]);
        assert_eq!(world.purgatory.check_and_complete(&1), 1);
        let mut ended = world.ended();
        ended.sort_by_key(|(name, _)| *name);
        assert_eq!(ended, all([1, 2], Satisfied));
        world.check_empty();
    });
}

/// Registers operations of which each check announces the event that completes the next operation.
/// Runs this chain on a small stack.
fn chain_of_checks(announce: fn(&Shared, u32)) {
    const LENGTH: u32 = 20_000;
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
                world.all_of(op, [Events(name), Threshold(name, 1)]);
            } else {
                world.any_of(op, [Events(name)]);
            }
        }
        world.make_ready(0);
        announce(&world.purgatory, 0);
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
fn a_chain_of_checks_runs_to_its_end_on_a_small_stack() {
    chain_of_checks(|purgatory, key| match key % 4 {
        0 => drop(purgatory.check_and_complete(&key)),
        1 => drop(purgatory.check_and_complete_all([&key, &(key + 1_000_000)])),
        2 => {
            let keys = [key];
            let mut checks = purgatory.checks(&keys);
            while !checks.is_done() {
                checks.run(1);
            }
        }
        _ => drop(purgatory.advance(&key, 1)),
    });
}

#[test]
fn a_check_can_end_its_own_operation_and_the_first_end_counts() {
    type Way = fn(&Shared, delaywheel::purgatory::OperationKey) -> bool;
    let ways: [(Way, End); 5] = [
        (Purgatory::complete, Satisfied),
        (|purgatory, key| purgatory.cancel_with(key, "by itself"), Cancelled("by itself")),
        (|purgatory, _| purgatory.cancel_for_key_with(&1, &"by key") == 1, Cancelled("by key")),
        (|purgatory, _| purgatory.cancel_for_key_with(&2, &"by value") == 1, Cancelled("by value")),
        (|purgatory, _| purgatory.advance(&2, 5) == 1, Satisfied),
    ];
    for (way, end) in ways {
        must_return(move || {
            let world = World::new();
            let own = Arc::new(OnceLock::new());
            let (slot, purgatory) = (Arc::clone(&own), world.purgatory.clone());
            let op = world.op(1).check(move || {
                let Some(&key) = slot.get() else { return false };
                assert!(purgatory.is_waiting(key));
                // An advance does not count an operation that is being checked.
                let is_counted = way(&purgatory, key);
                assert!(is_counted || purgatory.stats().delayed == 1);
                assert!(!purgatory.is_waiting(key));
                assert!(!purgatory.cancel(key) && !purgatory.complete(key));
                assert_eq!(purgatory.cancel_for_key(&1) + purgatory.cancel_for_key(&2), 0);
                false
            });
            let watches = [Events(1), Threshold(2, 5)];
            let key = world.waits(world.purgatory.watch_any(op, watches, HOUR));
            own.set(key).unwrap();
            let completed = world.purgatory.check_and_complete(&1);
            assert!(completed == 0 || end == Satisfied, "it counts a cancelled operation");
            assert_eq!(world.ended(), [(1, end)]);
            assert_eq!(world.purgatory.stats().panicked, 0);
            world.check_empty();
        });
    }
}

#[test]
fn a_check_or_completion_can_shut_the_purgatory_down() {
    must_return(|| {
        let world = World::new();
        world.watch(1, [1]);
        let purgatory = world.purgatory.clone();
        let mut checks = 0;
        let op = world.op(2).check(move || {
            checks += 1;
            if checks == 3 {
                let operations = purgatory.shutdown();
                assert_eq!(operations.len(), 1, "without operations that are being checked");
                for op in operations {
                    op.complete(ShutDown);
                }
            }
            false
        });
        world.waits(world.purgatory.try_complete_else_watch(op, [2], HOUR));
        world.watch(3, [2]);
        assert_eq!(world.purgatory.check_and_complete(&2), 0, "the shutdown ended both");
        let mut ended = world.ended();
        ended.sort_by_key(|(name, _)| *name);
        assert_eq!(ended, all(1..4, ShutDown));
        world.check_empty();
    });
    must_return(|| {
        let world = World::new();
        let (purgatory, state) = (world.purgatory.clone(), world.state.clone());
        let op = world.op(1).end(move |end| {
            state.lock().unwrap().ended.push((1, end));
            for op in purgatory.shutdown() {
                op.complete(ShutDown);
            }
        });
        world.waits(world.purgatory.try_complete_else_watch(op, [1], HOUR));
        world.watch(2, [2]);
        assert_eq!(world.purgatory.cancel_for_key(&1), 1);
        assert_eq!(world.ended(), [(1, Cancelled("")), (2, ShutDown)]);
        world.check_empty();
    });
}

#[test]
fn a_completion_can_drop_the_last_handle() {
    // The clock does not keep the purgatory alive, so the completion drops its last handle.
    must_return(|| {
        let World { clock, purgatory, state, .. } = World::new();
        let last = Arc::new(Mutex::new(None));
        let (slot, ended) = (Arc::clone(&last), Arc::clone(&state));
        let op = Op::new().end(move |end: End| {
            let dropped = slot.lock().unwrap().take();
            drop::<Option<Shared>>(dropped);
            ended.lock().unwrap().ended.push((1, end));
        });
        let _ = purgatory.try_complete_else_watch(op, [1], SECOND).unwrap();
        for name in 2..10 {
            let ended = Arc::clone(&state);
            let op = Op::new().end(move |end| ended.lock().unwrap().ended.push((name, end)));
            let _ = purgatory.try_complete_else_watch(op, [1], SECOND).unwrap();
        }
        *last.lock().unwrap() = Some(purgatory);
        clock.advance(YEAR);
        let ended = std::mem::take(&mut state.lock().unwrap().ended);
        // They have the same deadline, so they all expire before the first of them completes.
        assert_eq!(ended, all(1..10, Expired));
    });
}

/// Uses the purgatory when it is dropped.
struct Meddler {
    purgatory: Arc<OnceLock<Meddled>>,
    log: Log<&'static str>,
    what: &'static str,
}

type Meddled = Purgatory<u32, MeddlingOp, Option<Meddler>>;

impl Drop for Meddler {
    fn drop(&mut self) {
        self.log.push(self.what);
        let Some(purgatory) = self.purgatory.get() else { return };
        purgatory.check_and_complete(&1);
        purgatory.advance(&1, 5);
        assert_eq!(purgatory.stats().panicked, 0);
        if let Ok(watched) =
            purgatory.try_complete_else_watch(MeddlingOp { _meddler: None }, [1], SECOND)
        {
            assert!(purgatory.cancel_with(watched.key().unwrap(), None));
        }
    }
}

struct MeddlingOp {
    _meddler: Option<Meddler>,
}

impl DelayedOperation<u32, Option<Meddler>> for MeddlingOp {
    fn complete(self, _: Completion<Option<Meddler>>) {}
}

/// Runs a test with a purgatory and a function that makes meddlers. Returns the names of dropped
/// ones.
fn meddle(
    test: impl FnOnce(&ManualClock, &Meddled, &dyn Fn(&'static str) -> Meddler) + Send + 'static,
) -> Vec<&'static str> {
    must_return(move || {
        let (clock, log) = (ManualClock::new(), Log::new());
        let timer = Timer::builder().clock(clock.clone()).shards(1);
        let purgatory: Meddled = PurgatoryBuilder::new().timer(timer).build().unwrap();
        let slot = Arc::new(OnceLock::new());
        slot.set(purgatory.clone()).ok().unwrap();
        let meddler = |what| Meddler { purgatory: Arc::clone(&slot), log: log.clone(), what };
        test(&clock, &purgatory, &meddler);
        log.take()
    })
}

#[test]
fn the_drop_of_an_operation_can_use_the_purgatory() {
    let dropped = meddle(|clock, purgatory, meddler| {
        let watch = |what| {
            let op = MeddlingOp { _meddler: Some(meddler(what)) };
            purgatory.try_complete_else_watch(op, [2], SECOND).unwrap().key().unwrap()
        };
        assert!(purgatory.cancel_with(watch("cancelled"), None));
        assert!(purgatory.complete(watch("completed")));
        watch("expired");
        clock.advance(SECOND);
        watch("closed");
        assert_eq!(purgatory.shutdown().len(), 1);
        let refused = purgatory.try_complete_else_watch(
            MeddlingOp { _meddler: Some(meddler("refused")) },
            [2],
            SECOND,
        );
        assert!(refused.is_err());
    });
    assert_eq!(dropped, ["cancelled", "completed", "expired", "closed", "refused"]);
}

#[test]
fn the_drop_of_a_reason_that_is_delivered_or_comes_too_late_can_use_the_purgatory() {
    let dropped = meddle(|_, purgatory, meddler| {
        let op = MeddlingOp { _meddler: None };
        let watched = purgatory.try_complete_else_watch(op, [2], SECOND).unwrap();
        let key = watched.key().unwrap();
        assert!(purgatory.cancel_with(key, Some(meddler("told"))));
        assert!(!purgatory.cancel_with(key, Some(meddler("late"))));
    });
    assert_eq!(dropped, ["told", "late"]);
}

/// A reason that uses the purgatory when it is cloned or dropped.
#[derive(Default)]
struct Echo {
    purgatory: Option<Purgatory<u32, EchoOp, Self>>,
}

impl Clone for Echo {
    fn clone(&self) -> Self {
        if let Some(purgatory) = &self.purgatory {
            purgatory.check_and_complete(&1);
        }
        Self { purgatory: self.purgatory.clone() }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        if let Some(purgatory) = &self.purgatory {
            purgatory.check_and_complete(&1);
        }
    }
}

/// Its check cancels all operations on two keys, also its own.
struct EchoOp(Option<Purgatory<u32, Self, Echo>>);

impl DelayedOperation<u32, Echo> for EchoOp {
    fn try_complete(&mut self) -> bool {
        if let Some(purgatory) = self.0.take_if(|purgatory| purgatory.delayed() == 4) {
            for key in [2, 3] {
                purgatory.cancel_for_key_with(&key, &Echo { purgatory: Some(purgatory.clone()) });
            }
        }
        false
    }

    fn complete(self, _: Completion<Echo>) {}
}

#[test]
fn the_clone_and_drop_of_an_undelivered_reason_can_use_the_purgatory() {
    must_return(|| {
        let timer = Timer::builder().clock(ManualClock::new()).shards(1);
        let purgatory: Purgatory<u32, EchoOp, Echo> =
            PurgatoryBuilder::new().timer(timer).build().unwrap();
        for _ in 0..4 {
            let op = EchoOp(Some(purgatory.clone()));
            // When the walk reaches the third list, the operations of the second one are being
            // checked and have been cancelled.
            let watches = [Events(1), Events(2), Events(3), Threshold(3, 5)];
            let _ = purgatory.watch_any(op, watches, HOUR).unwrap();
        }
        purgatory.check_and_complete(&2);
        assert_eq!((purgatory.delayed(), purgatory.stats().cancelled), (0, 4));
        let reason = Echo { purgatory: Some(purgatory.clone()) };
        assert_eq!(purgatory.cancel_for_key_with(&1, &reason), 0);
    });
}

#[test]
fn a_cancel_by_key_includes_operations_that_were_checked_meanwhile() {
    let world = World::new();
    let purgatory = world.purgatory.clone();
    let op = Op::new().end(move |_| {
        purgatory.check_and_complete(&1);
    });
    world.waits(world.purgatory.try_complete_else_watch(op, [1], HOUR));
    for name in 2..10 {
        world.watch(name, [1]);
    }
    assert_eq!(world.purgatory.cancel_for_key(&1), 9);
    assert_eq!(world.ended(), all(2..10, Cancelled("")));
    world.check_empty();
}
