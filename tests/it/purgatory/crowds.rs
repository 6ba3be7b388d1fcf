//! Operations of one batch of checks that affect each other.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
};

use delaywheel::{
    Completion::{Cancelled, Expired, Satisfied},
    OperationKey, Purgatory,
};

use super::support::{Cancel as _, HOUR, MS, Op, Shared, World, must_return};

/// More operations than one hold of the lock takes.
const CROWD: u32 = 100;

#[test]
fn a_completion_can_wait_for_a_cancel_and_an_expiry_of_others_of_its_batch() {
    must_return(|| {
        let purgatory: Shared = Purgatory::builder().build().expect("the defaults are valid");
        let last = Arc::<Mutex<Option<OperationKey>>>::default();
        let is_ready = Arc::<AtomicBool>::default();
        let (told, telling) = mpsc::channel();
        let (other, key, flag) = (purgatory.clone(), Arc::clone(&last), Arc::clone(&is_ready));
        let first = Op::new().check(move || flag.load(Ordering::Relaxed)).end(move |_| {
            let key = key.lock().unwrap().expect("the last one waits");
            assert!(thread::spawn(move || other.cancel_one(key)).join().unwrap());
            let ends = [telling.recv().unwrap(), telling.recv().unwrap()];
            assert!(ends.contains(&Cancelled) && ends.contains(&Expired), "{ends:?}");
        });
        let _ = purgatory.watch(first, [1], HOUR).unwrap();
        for number in 1..CROWD {
            let told = told.clone();
            let op = Op::new().end(move |end| told.send(end).unwrap_or_default());
            let delay = if number == 31 { 50 * MS } else { HOUR };
            *last.lock().unwrap() = purgatory.watch(op, [1], delay).unwrap().key();
        }
        is_ready.store(true, Ordering::Relaxed);
        assert_eq!(purgatory.check_and_complete(&1), 1);
        assert_eq!(purgatory.stats().panicked, 0);
    });
}

#[test]
fn an_ended_operation_completes_while_events_continue_for_its_key() {
    const EVENTS: u32 = 500;
    let world = World::new();
    let checks = Arc::new(AtomicU32::new(0));
    let (seen, state) = (Arc::clone(&checks), Arc::clone(&world.state));
    let op = world.op(1).end(move |end| {
        assert_eq!(seen.load(Ordering::Relaxed), 1, "the other one was checked first");
        state.lock().unwrap().ended.push((1, end));
    });
    world.waits(world.purgatory.watch(op, [1], HOUR));
    let (purgatory, state) = (world.purgatory.clone(), Arc::clone(&world.state));
    let counter = Arc::clone(&checks);
    let op = world.op(2).check(move || {
        let is_ready = state.lock().unwrap().ready.contains(&1);
        if is_ready && counter.fetch_add(1, Ordering::Relaxed) < EVENTS {
            purgatory.check_and_complete(&1);
        }
        false
    });
    let key = world.waits(world.purgatory.watch(op, [1], HOUR));
    world.make_ready(1);
    assert_eq!(world.purgatory.check_and_complete(&1), 1);
    assert_eq!(checks.load(Ordering::Relaxed), EVENTS + 1, "no event is missed");
    assert_eq!((world.ended(), world.purgatory.stats().panicked), (vec![(1, Satisfied)], 0));
    assert!(world.purgatory.is_waiting(key));
}
