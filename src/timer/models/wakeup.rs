//! A reaper that falls asleep beside threads that insert, reset and cancel, and a clock that jumps.

use std::{sync::Arc, vec::Vec};

use super::{DUE, FAR, beside, check, expire_due, insert, join, new_shards, try_insert, values};
use crate::{
    clock::Reading,
    sync::{Mutex, Parker},
    tick::Tick,
    ticks::Nanos,
    timer::shards::Shards,
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
        let inserter = beside(&shards, |shards| insert(shards, 0, DUE, 2));
        assert_eq!(reap(&shards, &parker, 1), [2]);
        join(inserter);
    });
}

#[test]
fn a_reaper_that_falls_asleep_notices_inserts_into_two_shards() {
    check(|| {
        let (shards, parker) = new_shards(2, None);
        let inserters = [0, 1].map(|shard| {
            beside(&shards, move |shards| insert(shards, shard, DUE, u32::from(shard == 1)))
        });
        assert_eq!(reap(&shards, &parker, 2), [0, 1]);
        inserters.into_iter().for_each(|inserter| _ = join(inserter));
    });
}

#[test]
fn a_reaper_that_falls_asleep_notices_a_reset_to_an_earlier_deadline() {
    check(|| {
        let (shards, parker) = new_shards(1, None);
        let key = insert(&shards, 0, FAR, 1);
        let reset = move |shards: &Shards<_>| shards.reset(key, |_, read| read.now);
        let resetter = beside(&shards, reset);
        assert_eq!(reap(&shards, &parker, 1), [1]);
        assert!(join(resetter));
    });
}

/// The time after a jump of the clock.
const LATER: Tick = Tick::new(200);

/// A deadline that is not due after the jump.
const NEVER: Tick = Tick::new(300);

/// A clock that jumps from [`DUE`] to [`LATER`]. Its lock orders the memory accesses around two
/// reads.
type Jumping = Arc<Mutex<Tick>>;

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
        let clock = Jumping::new(Mutex::new(DUE));
        let shown = Arc::clone(&clock);
        let jumper = beside(&shards, move |shards| {
            *shown.lock() = LATER;
            let now = *shown.lock();
            then(shards, now);
        });
        assert_eq!(reap_by(&clock, &shards, &parker), [1]);
        join(jumper);
    });
}

#[test]
fn a_reaper_that_falls_asleep_notices_an_insert_into_any_shard_after_the_clock_jumped() {
    jump(|shards, now| assert!(try_insert(shards, 0, now, NEVER, 2).is_ok()));
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

/// A reaper that slept for a cancelled timeout raises the published expirations, by `raise`, while
/// another thread inserts a timeout.
fn raise_against_insert(raise: fn(&Shards<TimingWheel<u32>>)) {
    check(move || {
        let (shards, parker) = new_shards(1, None);
        let key = insert(&shards, 0, FAR, 1);
        shards.cancel(key);
        let inserter = beside(&shards, |shards| insert(shards, 0, DUE, 2));
        raise(&shards);
        assert_eq!(reap(&shards, &parker, 1), [2]);
        join(inserter);
        raise(&shards);
        assert_eq!(shards.next_expiration(), Tick::MAX, "a wake-up is left");
    });
}

#[test]
fn a_reaper_that_raises_the_published_expirations_notices_an_insert() {
    raise_against_insert(|shards| shards.lock_each().for_each(|shard| shard.raise_published()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_an_expiration_that_is_raised_without_the_lock_hides_an_insert() {
    raise_against_insert(|shards| {
        let next = shards.lock(0).state().next_expiration();
        shards.all[0].publish(next.unwrap_or(Tick::MAX));
    });
}
