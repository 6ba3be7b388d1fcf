//! A reaper that falls asleep beside threads that insert, reset and cancel, and a clock that jumps.

use std::{
    sync::{Arc, atomic},
    time::Duration,
    vec,
    vec::Vec,
};

use loom::thread;

use super::{DUE, FAR, check, insert, new_shards, values};
use crate::{
    sync::{AtomicU64, Mutex, Ordering, Parker, fence},
    tick::Tick,
    ticks::Nanos,
    timer::{shards::Shards, tick_clock::Reading},
};

/// Runs the loop of the reaper until `count` timeouts have expired. The time stands still.
fn reap(shards: &Shards<u32>, parker: &Parker, count: usize) -> Vec<u32> {
    let mut expired = Vec::new();
    loop {
        shards.expire(Reading::ZERO, 64, &mut expired);
        if expired.len() == count {
            return values(expired);
        }
        if shards.fall_asleep(DUE, Tick::MAX).is_some() {
            parker.park();
            shards.announce_awake();
        }
    }
}

#[test]
fn a_reaper_that_falls_asleep_notices_an_insert() {
    check(|| {
        let (shards, parker) = new_shards(1, None);
        insert(&shards, 0, FAR, 1);
        let inserter = Arc::clone(&shards);
        let inserter = thread::spawn(move || insert(&inserter, 0, DUE, 2));
        assert_eq!(reap(&shards, &parker, 1), [2]);
        inserter.join().expect("no thread panics");
    });
}

#[test]
fn a_reaper_that_falls_asleep_notices_inserts_into_two_shards() {
    check(|| {
        let (shards, parker) = new_shards(2, None);
        let inserters = [0, 1].map(|shard| {
            let shards = Arc::clone(&shards);
            thread::spawn(move || insert(&shards, shard, DUE, u32::from(shard == 1)))
        });
        assert_eq!(reap(&shards, &parker, 2), [0, 1]);
        for inserter in inserters {
            inserter.join().expect("no thread panics");
        }
    });
}

#[test]
fn a_reaper_that_expires_a_shard_notices_an_insert() {
    check(|| {
        let (shards, parker) = new_shards(1, None);
        insert(&shards, 0, DUE, 1);
        let inserter = Arc::clone(&shards);
        let inserter = thread::spawn(move || insert(&inserter, 0, DUE, 2));
        assert_eq!(reap(&shards, &parker, 2), [1, 2]);
        inserter.join().expect("no thread panics");
    });
}

#[test]
fn a_reaper_that_falls_asleep_notices_a_reset_to_an_earlier_deadline() {
    check(|| {
        let (shards, parker) = new_shards(1, None);
        let key = insert(&shards, 0, FAR, 1);
        let resetter = Arc::clone(&shards);
        let resetter = thread::spawn(move || assert!(resetter.reset(key, Duration::ZERO)));
        assert_eq!(reap(&shards, &parker, 1), [1]);
        resetter.join().expect("no thread panics");
    });
}

#[test]
fn a_reaper_sleeps_again_after_a_spurious_wakeup() {
    check(|| {
        let (shards, parker) = new_shards(1, None);
        let (inserter, unparker) = (Arc::clone(&shards), parker.unparker().clone());
        let spurious = thread::spawn(move || unparker.unpark());
        let inserter = thread::spawn(move || insert(&inserter, 0, DUE, 1));
        assert_eq!(reap(&shards, &parker, 1), [1]);
        inserter.join().expect("no thread panics");
        spurious.join().expect("no thread panics");
    });
}

#[test]
fn a_batch_wakes_the_reaper_before_its_last_timeout_is_inserted() {
    let is_early = Arc::new(atomic::AtomicBool::new(false));
    let seen = Arc::clone(&is_early);
    check(move || {
        let (shards, parker) = new_shards(1, None);
        insert(&shards, 0, FAR, 1);
        assert!(shards.fall_asleep(DUE, Tick::MAX).is_some());
        let inserter = Arc::clone(&shards);
        let hour = Duration::from_secs(3600);
        let batch = vec![(Duration::ZERO, 2), (hour, 3), (hour, 4)];
        let inserter = thread::spawn(move || inserter.insert_batch(batch));
        parker.park();
        shards.announce_awake();
        seen.fetch_or(shards.stats().scheduled < 4, atomic::Ordering::Relaxed);
        inserter.join().expect("no thread panics");
    });
    // The scheduler decides which thread runs. So one interleaving with an early wake-up is enough.
    assert!(is_early.load(atomic::Ordering::Relaxed), "the reaper always wakes after the batch");
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    NoSecondLoad,
    LoadsBeforePublishing,
    NoFences,
}

/// The wake-up protocol by hand, with a fault: one thread inserts, the other sleeps until then.
fn insert_against_sleep(fault: Fault) {
    const AWAKE: u64 = 0;
    let atomics = Arc::new((AtomicU64::new(9), AtomicU64::new(AWAKE)));
    let parker = Parker::new();
    let (shared, unparker) = (Arc::clone(&atomics), parker.unparker().clone());
    let order = move || (fault != Fault::NoFences).then(|| fence(Ordering::SeqCst));
    let inserter = thread::spawn(move || {
        let (published, asleep_until) = &*shared;
        let must_wake = || {
            order();
            1 < asleep_until.load(Ordering::Relaxed)
        };
        let asked = fault == Fault::LoadsBeforePublishing && must_wake();
        published.store(1, Ordering::Relaxed);
        if asked || (fault != Fault::LoadsBeforePublishing && must_wake()) {
            unparker.unpark();
        }
    });
    let (published, asleep_until) = &*atomics;
    while published.load(Ordering::Relaxed) != 1 {
        let until = 9;
        asleep_until.store(until, Ordering::Relaxed);
        order();
        if fault == Fault::NoSecondLoad || published.load(Ordering::Relaxed) >= until {
            parker.park();
        }
        asleep_until.store(AWAKE, Ordering::Relaxed);
    }
    inserter.join().expect("no thread panics");
}

#[test]
fn the_wakeup_protocol_by_hand_holds() {
    check(|| insert_against_sleep(Fault::None));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_reaper_without_a_second_load_sleeps_too_long() {
    check(|| insert_against_sleep(Fault::NoSecondLoad));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_an_inserter_that_loads_before_it_publishes_does_not_wake_the_reaper() {
    check(|| insert_against_sleep(Fault::LoadsBeforePublishing));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_without_fences_a_wakeup_is_lost() {
    check(|| insert_against_sleep(Fault::NoFences));
}

/// The time after a jump of the clock.
const LATER: Tick = Tick::new(200);

/// A deadline that is not due after the jump.
const NEVER: Tick = Tick::new(300);

/// A clock that jumps from [`DUE`] to [`LATER`]. Its lock orders the memory accesses around two
/// reads.
type Jumping = Arc<Mutex<Tick>>;

fn jumping() -> Jumping {
    Jumping::new(Mutex::new(DUE))
}

/// Runs the loop of the reaper, by a clock that jumps, until a timeout has expired.
fn reap_by(clock: &Jumping, shards: &Shards<u32>, parker: &Parker) -> Vec<u32> {
    let mut expired = Vec::new();
    loop {
        let now = *clock.lock();
        shards.expire(Reading { elapsed: Nanos::ZERO, now }, 64, &mut expired);
        if !expired.is_empty() {
            return values(expired);
        }
        if let Some(until) = shards.fall_asleep(now, Tick::MAX) {
            if *clock.lock() < until {
                parker.park();
            }
            shards.announce_awake();
        }
    }
}

/// A clock jumps past a deadline, and its thread then calls `then`.
fn jump(then: fn(&Shards<u32>, now: Tick)) {
    check(move || {
        let (shards, parker) = new_shards(2, None);
        insert(&shards, 0, FAR, 1);
        let (clock, jumper) = (jumping(), Arc::clone(&shards));
        let shown = Arc::clone(&clock);
        let jumper = thread::spawn(move || {
            *shown.lock() = LATER;
            let now = *shown.lock();
            then(&jumper, now);
        });
        assert_eq!(reap_by(&clock, &shards, &parker), [1]);
        jumper.join().expect("no thread panics");
    });
}

#[test]
fn a_reaper_that_falls_asleep_notices_an_insert_after_the_clock_jumped() {
    jump(|shards, now| assert!(shards.insert(0, now, NEVER, 2).is_ok()));
}

#[test]
fn a_reaper_that_falls_asleep_notices_an_insert_into_another_shard_after_the_clock_jumped() {
    jump(|shards, now| assert!(shards.insert(1, now, NEVER, 2).is_ok()));
}

#[test]
fn a_reaper_that_falls_asleep_notices_a_wake_after_the_clock_jumped() {
    jump(|shards, _| shards.unpark_reaper());
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_jump_without_a_wakeup_leaves_the_reaper_asleep() {
    jump(|_, _| ());
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_reaper_that_reads_the_clock_before_it_announces_misses_the_jump() {
    check(|| {
        let parker = Parker::new();
        let shared = Arc::new((Mutex::new(0), AtomicU64::new(0)));
        let (own, unparker) = (Arc::clone(&shared), parker.unparker().clone());
        let jumper = thread::spawn(move || {
            *own.0.lock() = 9;
            let now = *own.0.lock();
            if own.1.load(Ordering::Relaxed).wrapping_sub(1) < now {
                unparker.unpark();
            }
        });
        let (clock, asleep_until) = &*shared;
        let now = *clock.lock();
        asleep_until.store(5, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if now < 5 {
            parker.park();
        }
        jumper.join().expect("no thread panics");
    });
}

/// A reaper that slept for a cancelled timeout raises the published expirations, by `raise`, while
/// another thread inserts a timeout.
fn raise_against_insert(raise: fn(&Shards<u32>)) {
    check(move || {
        let (shards, parker) = new_shards(1, None);
        let key = insert(&shards, 0, FAR, 1);
        shards.cancel(key);
        let inserter = Arc::clone(&shards);
        let inserter = thread::spawn(move || insert(&inserter, 0, DUE, 2));
        raise(&shards);
        assert_eq!(reap(&shards, &parker, 1), [2]);
        inserter.join().expect("no thread panics");
        raise(&shards);
        assert_eq!(
            shards.next_expiration(),
            Tick::MAX,
            "a wake-up is left for a cancelled timeout"
        );
    });
}

#[test]
fn a_reaper_that_raises_the_published_expirations_notices_an_insert() {
    raise_against_insert(Shards::raise_published);
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_an_expiration_that_is_raised_without_the_lock_hides_an_insert() {
    raise_against_insert(Shards::raise_published_unlocked);
}
