//! The contract's clauses on work: bounded steps, few cascades, no spurious wake-up.

use std::mem::ManuallyDrop;

use delaywheel::{Tick, TimingWheel};

use crate::support::{count_steps, drain_at, level_of_all, wheel_of};

const CENTURY: u64 = 3_155_760_000_000;
const DAY: u64 = 86_400_000;

#[test]
fn a_century_before_one_timeout_takes_no_more_steps_than_levels() {
    for size in [2, 64, 65536] {
        let mut wheel = wheel_of(size, 12_345);
        wheel.insert(Tick::new(CENTURY), ()).unwrap();
        assert_eq!(count_steps(&mut wheel, CENTURY - 1), 0);
        assert!(count_steps(&mut wheel, CENTURY) <= wheel.levels() as u64);
        assert!(wheel.is_empty());
    }
}

#[test]
fn an_advance_by_2_to_the_63_ticks_takes_at_most_one_step() {
    let mut wheel = wheel_of(64, 0);
    wheel.insert(Tick::MAX, ()).unwrap();
    assert_eq!(count_steps(&mut wheel, 1 << 63), 0);
    wheel.insert(Tick::new((1 << 63) + 5), ()).unwrap();
    assert_eq!(count_steps(&mut wheel, u64::MAX - 1), 1);
}

#[test]
fn a_lone_timeout_expires_without_a_cascade_at_every_distance() {
    for ahead in (1..63).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]) {
        for start in [0, 1, 63, 4095, 1 << 40] {
            let mut wheel = wheel_of(64, start);
            wheel.insert(Tick::new(start + ahead), ()).unwrap();
            assert_eq!(wheel.next_expiration(), Some(Tick::new(start + ahead)));
            assert_eq!(drain_at(&mut wheel, start + ahead).len(), 1);
            assert_eq!(wheel.cascades(), 0);
        }
    }
}

#[test]
fn a_crowd_cascades_at_most_once_for_each_level_below_it() {
    for (size, power) in [(2, 5), (4, 9), (64, 13), (64, 19), (256, 25)] {
        let mut wheel = wheel_of(size, 0);
        let crowd = size as u64 * 2 / 3 + 40;
        for _ in 0..crowd {
            wheel.insert(Tick::new((1 << power) + 1), ()).unwrap();
        }
        let levels = level_of_all(&mut wheel);
        assert!(levels > 0);
        while let Some(next) = wheel.next_expiration() {
            wheel.advance(next).for_each(drop);
            wheel.check_invariants();
        }
        assert!((1..=crowd * levels).contains(&wheel.cascades()), "{}", wheel.cascades());
    }
}

#[test]
fn a_sparse_bucket_expires_in_order_without_a_cascade() {
    for size in [4, 64, 256] {
        let mut wheel = wheel_of(size, 0);
        let span = (size * size) as u64;
        let deadlines: Vec<_> = (0..16).rev().map(|i| span + i * span / 16).collect();
        for &deadline in &deadlines {
            wheel.insert(Tick::new(deadline), deadline).unwrap();
        }
        assert_eq!(level_of_all(&mut wheel), 2);
        for &deadline in deadlines.iter().rev() {
            assert_eq!(wheel.next_expiration(), Some(Tick::new(deadline)));
            assert_eq!(drain_at(&mut wheel, deadline), [deadline]);
            wheel.check_invariants();
        }
        assert_eq!(wheel.cascades(), 0);
    }
}

#[test]
fn a_bucket_that_expires_sees_cancels_and_resets_of_its_timeouts() {
    let mut wheel = wheel_of(64, 0);
    let keys: Vec<_> = (0..8).map(|i| wheel.insert(Tick::new(4096 + 64 * i), i).unwrap()).collect();
    assert_eq!(level_of_all(&mut wheel), 2);
    assert_eq!(drain_at(&mut wheel, 4096), [0]);
    assert_eq!(wheel.cancel(keys[1]), Some(1));
    wheel.reset(keys[2], Tick::new(4096 + 400)).unwrap();
    wheel.check_invariants();
    wheel.reset(keys[7], Tick::new(4096 + 64)).unwrap();
    wheel.reset(keys[6], Tick::new(10_000)).unwrap();
    wheel.check_invariants();
    let mut seen = Vec::new();
    while let Some(next) = wheel.next_expiration() {
        seen.extend(wheel.advance(next).map(|due| (due.deadline.get(), due.value)));
        wheel.check_invariants();
    }
    assert_eq!(seen, [(4160, 7), (4288, 3), (4352, 4), (4416, 5), (4496, 2), (10_000, 6)]);
}

#[test]
fn an_earlier_bucket_of_another_level_interrupts_a_bucket_that_expires() {
    let mut wheel = wheel_of(64, 0);
    for deadline in [4096, 4200, 4300] {
        wheel.insert(Tick::new(deadline), deadline).unwrap();
    }
    assert_eq!(level_of_all(&mut wheel), 2);
    assert_eq!(drain_at(&mut wheel, 4096), [4096]);
    for deadline in [4100, 4101, 4250] {
        wheel.insert(Tick::new(deadline), deadline).unwrap();
    }
    wheel.shrink();
    let mut seen = Vec::new();
    while let Some(next) = wheel.next_expiration() {
        seen.extend(drain_at(&mut wheel, next.get()));
        wheel.check_invariants();
    }
    assert_eq!(seen, [4100, 4101, 4200, 4250, 4300]);
}

#[test]
fn a_crowd_is_spread_ahead_of_its_first_deadline() {
    let mut wheel = wheel_of(64, 0);
    for i in 0..100 {
        wheel.insert(Tick::new(4100 + i % 50), i).unwrap();
    }
    let start = wheel.next_expiration().unwrap();
    assert!(start < Tick::new(4100));
    assert!(drain_at(&mut wheel, start.get()).is_empty());
    assert!(wheel.cascades() >= 100, "the whole bucket cascades at once");
}

#[test]
fn a_timeout_scheduled_after_the_last_due_one_goes_to_the_finest_level() {
    for is_reset in [false, true] {
        let mut wheel = wheel_of(64, 0);
        wheel.insert(Tick::new(5), "due").unwrap();
        let far = is_reset.then(|| wheel.insert(Tick::MAX, "far").unwrap());
        // The iterator was dropped before it ended, so the clock is still at 5.
        assert_eq!(wheel.advance(Tick::new(DAY)).next().unwrap().value, "due");
        let near = Tick::new(DAY + 9);
        match far {
            Some(far) => assert!(wheel.reset(far, near).is_some()),
            None => assert!(wheel.insert(near, "near").is_ok()),
        }
        assert_eq!(level_of_all(&mut wheel), 0);
        assert_eq!(drain_at(&mut wheel, DAY + 9).len(), 1);
        assert_eq!(wheel.cascades(), 0);
    }
}

#[test]
fn a_timeout_reset_to_earlier_after_a_quiet_day_goes_to_the_finest_level() {
    let mut wheel = wheel_of(64, 0);
    let key = wheel.insert(Tick::new(10 * DAY), ()).unwrap();
    assert!(drain_at(&mut wheel, DAY).is_empty());
    wheel.reset(key, Tick::new(DAY + 5)).unwrap();
    assert_eq!(level_of_all(&mut wheel), 0);
    assert_eq!(drain_at(&mut wheel, DAY + 5).len(), 1);
    assert_eq!(wheel.cascades(), 0);
}

#[test]
fn an_emptied_bucket_leaves_no_wake_up() {
    let mut wheel = wheel_of(64, 0);
    let keys: Vec<_> = (0..60).map(|i| wheel.insert(Tick::new(1 << i), ()).unwrap()).collect();
    for (i, key) in keys.into_iter().enumerate() {
        assert_eq!(wheel.next_expiration(), Some(Tick::new(1 << i)));
        wheel.cancel(key).unwrap();
    }
    assert_eq!(wheel.next_expiration(), None);
    assert_eq!(count_steps(&mut wheel, u64::MAX), 0);
}

#[test]
fn a_bucket_emptied_of_a_crowd_is_sparse_again() {
    let mut wheel = wheel_of(64, 0);
    let keys: Vec<_> = (0..100).map(|_| wheel.insert(Tick::new(5000), ()).unwrap()).collect();
    for key in keys {
        wheel.cancel(key).unwrap();
    }
    for deadline in [5000, 5010] {
        wheel.insert(Tick::new(deadline), ()).unwrap();
    }
    for deadline in [5000, 5010] {
        assert_eq!(wheel.next_expiration(), Some(Tick::new(deadline)));
        assert_eq!(drain_at(&mut wheel, deadline).len(), 1);
    }
    assert_eq!(wheel.cascades(), 0, "no timeout moves");
}

#[test]
fn a_limit_is_exact_if_every_step_expires_a_timeout() {
    let mut wheel = wheel_of(64, 0);
    fill(&mut wheel, 100, 10);
    for limit in [0, 1, 7, 64] {
        let left = wheel.len();
        assert_eq!(wheel.advance(Tick::new(10)).limit(limit).count() as u64, limit);
        assert_eq!((left - wheel.len()) as u64, limit);
    }
}

#[test]
fn a_limited_advance_reports_whether_it_is_drained() {
    let mut wheel = wheel_of(64, 0);
    fill(&mut wheel, 3, 10);
    fill(&mut wheel, 1, 11);
    let mut due = wheel.advance(Tick::new(10)).limit(2);
    assert_eq!(due.by_ref().count(), 2);
    assert!(!due.is_drained());
    let mut due = wheel.advance(Tick::new(10)).limit(1);
    assert_eq!(due.by_ref().count(), 1);
    assert!(due.is_drained());
}

/// Inserts a number of timeouts at one tick.
fn fill(wheel: &mut TimingWheel<()>, count: usize, deadline: u64) {
    for _ in 0..count {
        wheel.insert(Tick::new(deadline), ()).unwrap();
    }
}

#[test]
fn a_late_cancel_skips_few_dead_entries() {
    let mut wheel = wheel_of(256, 0);
    let insert = |i: u64| wheel.insert(Tick::new(256 + i % 256), i).unwrap();
    let keys: Vec<_> = (0..2000).map(insert).collect();
    assert_eq!(drain_at(&mut wheel, 256).len(), 8);
    for (count, &key) in keys.iter().enumerate().skip(1000) {
        wheel.cancel(key);
        if count % 100 == 0 {
            // A long run has few dead entries.
            wheel.check_invariants();
        }
    }
    wheel.check_invariants();
    assert_eq!(drain_at(&mut wheel, 511).len(), 1000 - 4);
}

#[test]
fn an_advance_after_a_leaked_one_continues_where_it_stopped() {
    let mut wheel = wheel_of(4, 0);
    for deadline in 1..=40 {
        wheel.insert(Tick::new(deadline), deadline).unwrap();
    }
    let mut seen = Vec::new();
    while !wheel.is_empty() {
        let mut due = ManuallyDrop::new(wheel.advance(Tick::new(100)));
        seen.extend(due.by_ref().take(3).map(|expired| expired.value));
        wheel.check_invariants();
    }
    assert!(seen.into_iter().eq(1..=40));
}

#[test]
fn observe_moves_the_clock_and_expires_nothing() {
    let mut wheel = wheel_of(64, 0);
    let due = wheel.insert(Tick::new(5), 5).unwrap();
    wheel.observe(Tick::new(100));
    wheel.observe(Tick::new(50));
    assert_eq!((wheel.now(), wheel.len()), (Tick::new(100), 1));
    assert_eq!(wheel.next_expiration(), Some(Tick::new(5)));
    assert_eq!(wheel.cancel(due), Some(5));
    let late = wheel.insert(Tick::new(7), 7).unwrap();
    assert_eq!(wheel.deadline(late), Some(Tick::new(100)), "nothing was due");
    wheel.check_invariants();
    assert_eq!(drain_at(&mut wheel, 0), [7]);
}

/// Long and short runs take turns in one wheel, beside cancels, resets and shrinks.
#[test]
fn runs_of_any_length_expire_in_order_beside_cancels_and_resets() {
    let (mut wheel, mut random) = (wheel_of(256, 0), fastrand::Rng::with_seed(1));
    // Longer runs than these are long.
    let longest = if cfg!(debug_assertions) { 64 } else { 8192 };
    for (turn, count) in
        [1, 0, 1, 16, 33, 0, 4].map(|times| times * longest + 40).iter().enumerate()
    {
        let (start, mut ended, mut last) = (turn as u64 * 1024 + 256, 0, 0);
        // The first ticks have many timeouts, more than a list of a long run holds.
        let mut deadline = || start + random.u64(..256) * random.u64(..2);
        let insert = |_| wheel.insert(Tick::new(deadline()), 0).unwrap();
        let mut keys: Vec<_> = (0..*count).map(insert).collect();
        random.shuffle(&mut keys);
        let mut now = start;
        while !wheel.is_empty() {
            for due in wheel.advance(Tick::new(now)).limit(random.u64(..*count as u64 / 4)) {
                assert!((last..=now).contains(&due.deadline.get()));
                (last, ended) = (due.deadline.get(), ended + 1);
            }
            wheel.check_invariants();
            for _ in 0..random.usize(..count / 8) {
                let Some(key) = keys.pop() else { break };
                match wheel.deadline(key) {
                    Some(at) if random.bool() => drop(wheel.reset(key, at.max(wheel.now()))),
                    Some(_) => ended += usize::from(wheel.cancel(key).is_some()),
                    None => {}
                }
            }
            wheel.check_invariants();
            if random.u8(..8) == 0 {
                wheel.shrink();
            }
            let levels = wheel.shape().levels;
            let buckets = levels.iter().flat_map(|level| &level.buckets);
            let latest = wheel.shape().latest.map_or(0, |latest| latest.pending);
            assert_eq!(buckets.map(|bucket| bucket.pending).sum::<usize>() + latest, wheel.len());
            now += random.u64(..16);
        }
        assert_eq!(ended, *count);
    }
}
