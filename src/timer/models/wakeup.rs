//! A reaper that falls asleep beside threads that insert, reset and cancel, and a clock that jumps.

use std::{array, sync::Arc, time::Duration, vec::Vec};

use loom::thread;

use super::{DUE, FAR, check, end, expire_due, insert, new_shards, try_insert, values};
use crate::{
    sync::{AtomicU64, Mutex, Ordering, Parker, fence},
    tick::Tick,
    ticks::Nanos,
    timer::{shards::Shards, tick_clock::Reading},
    wheel::TimingWheel,
};

/// Runs the loop of the reaper until `count` timeouts have expired. The time stands still.
fn reap(shards: &Shards<TimingWheel<u32>>, parker: &Parker, count: usize) -> Vec<u32> {
    let mut expired = Vec::new();
    loop {
        expire_due(shards, Reading { elapsed: Nanos::ZERO, now: Tick::ZERO }, &mut expired);
        if expired.len() == count {
            return values(expired);
        }
        if shards.fall_asleep(DUE, Tick::MAX).is_some() {
            parker.park();
            shards.wakeup.stay_awake();
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

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    NoSecondLoad,
    LoadsBeforePublishing,
    NoFences,
    /// The reaper announces its sleep to one timer.
    AnnouncesToOne,
    /// The reaper loads the published expiration of one timer again.
    LoadsOneAgain,
}

/// The wake-up protocol by hand, with a fault: a thread inserts into each of two timers, and the
/// reaper of both sleeps until then.
fn inserts_against_sleep(fault: Fault) {
    const AWAKE: u64 = 0;
    let timers: [_; 2] = array::from_fn(|_| Arc::new((AtomicU64::new(9), AtomicU64::new(AWAKE))));
    let parker = Parker::new();
    let order = move || (fault != Fault::NoFences).then(|| fence(Ordering::SeqCst));
    let inserters = timers.clone().map(|timer| {
        let unparker = parker.unparker().clone();
        thread::spawn(move || {
            let must_wake = || {
                order();
                1 < timer.1.load(Ordering::Relaxed)
            };
            let asked = fault == Fault::LoadsBeforePublishing && must_wake();
            timer.0.store(1, Ordering::Relaxed);
            if asked || (fault != Fault::LoadsBeforePublishing && must_wake()) {
                unparker.unpark();
            }
        })
    });
    let published = |timer: &(AtomicU64, AtomicU64)| timer.0.load(Ordering::Relaxed);
    loop {
        let waiting = timers.iter().enumerate().filter(|(_, timer)| published(timer) != 1);
        let waiting: Vec<_> = waiting.collect();
        if waiting.is_empty() {
            break;
        }
        let mut may_sleep = true;
        for (index, timer) in waiting {
            if index == 0 || fault != Fault::AnnouncesToOne {
                timer.1.store(9, Ordering::Relaxed);
            }
            order();
            let is_left_out = index == 1 && fault == Fault::LoadsOneAgain;
            if !is_left_out && fault != Fault::NoSecondLoad {
                may_sleep &= published(timer) == 9;
            }
        }
        if may_sleep {
            parker.park();
        }
        timers.iter().for_each(|timer| timer.1.store(AWAKE, Ordering::Relaxed));
    }
    end(inserters);
}

#[test]
fn the_wakeup_protocol_by_hand_holds() {
    check(|| inserts_against_sleep(Fault::None));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_reaper_without_a_second_load_sleeps_too_long() {
    check(|| inserts_against_sleep(Fault::NoSecondLoad));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_an_inserter_that_loads_before_it_publishes_does_not_wake_the_reaper() {
    check(|| inserts_against_sleep(Fault::LoadsBeforePublishing));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_without_fences_a_wakeup_is_lost() {
    check(|| inserts_against_sleep(Fault::NoFences));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_reaper_that_announces_its_sleep_to_one_timer_misses_the_other() {
    check(|| inserts_against_sleep(Fault::AnnouncesToOne));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_reaper_that_checks_one_timer_again_misses_the_other() {
    check(|| inserts_against_sleep(Fault::LoadsOneAgain));
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
fn reap_by(clock: &Jumping, shards: &Shards<TimingWheel<u32>>, parker: &Parker) -> Vec<u32> {
    let mut expired = Vec::new();
    loop {
        let now = *clock.lock();
        expire_due(&shards, Reading { elapsed: Nanos::ZERO, now }, &mut expired);
        if !expired.is_empty() {
            return values(expired);
        }
        if let Some(until) = shards.fall_asleep(now, Tick::MAX) {
            if *clock.lock() < until {
                parker.park();
            }
            shards.wakeup.stay_awake();
        }
    }
}

/// A clock jumps past a deadline, and its thread then calls `then`.
fn jump(then: fn(&Shards<TimingWheel<u32>>, now: Tick)) {
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
    jump(|shards, now| assert!(try_insert(shards, 0, now, NEVER, 2).is_ok()));
}

#[test]
fn a_reaper_that_falls_asleep_notices_an_insert_into_another_shard_after_the_clock_jumped() {
    jump(|shards, now| assert!(try_insert(shards, 1, now, NEVER, 2).is_ok()));
}

#[test]
fn a_reaper_that_falls_asleep_notices_a_wake_after_the_clock_jumped() {
    jump(|shards, _| shards.wakeup.wake());
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
fn raise_against_insert(raise: fn(&Shards<TimingWheel<u32>>)) {
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
    raise_against_insert(|shards| {
        let next = shards.lock(0).state().next_expiration();
        shards.all[0].published.set(next.unwrap_or(Tick::MAX));
    });
}
