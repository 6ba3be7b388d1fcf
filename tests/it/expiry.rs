//! The contract's clauses on expiry: never early, never held, once, in order.

use std::mem::ManuallyDrop;

use delaywheel::{Key, Tick, TimingWheel};

use crate::support::{drain_at, wheel_of};

#[test]
fn nothing_expires_before_its_deadline_or_is_held_past_it() {
    for ahead in (0..63).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]) {
        for size in [2, 4, 64, 65536] {
            let mut wheel = wheel_of(size, 7);
            let deadline = Tick::new(7 + ahead);
            wheel.insert(deadline, ()).unwrap();
            if ahead > 0 {
                assert_eq!(wheel.advance(Tick::new(6 + ahead)).count(), 0, "early");
            }
            let expired = wheel.advance(deadline).next().expect("held");
            assert_eq!(expired.deadline, deadline);
        }
    }
}

#[test]
fn a_far_timeout_does_not_hide_a_near_one() {
    for far in [64, 4096, 1 << 30, u64::MAX] {
        let mut wheel = wheel_of(64, 0);
        wheel.insert(Tick::new(far), "far").unwrap();
        wheel.insert(Tick::new(3), "near").unwrap();
        assert_eq!(wheel.next_expiration(), Some(Tick::new(3)));
        assert_eq!(drain_at(&mut wheel, 3), ["near"]);
    }
}

#[test]
fn expiry_is_in_order_across_levels_and_calls() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut wheel = wheel_of(4, 0);
    let mut inserted: Vec<_> = (0..2000).map(|i| random.u64(..2 << (i % 40))).collect();
    for &deadline in &inserted {
        wheel.insert(Tick::new(deadline), deadline).unwrap();
    }
    let mut expired = Vec::new();
    while let Some(next) = wheel.next_expiration() {
        expired.extend(wheel.advance(next).limit(7).map(|expired| expired.value));
    }
    inserted.sort_unstable();
    assert_eq!(expired, inserted);
}

#[test]
fn a_dead_key_stays_dead_when_its_slot_is_reused() {
    let mut wheel = wheel_of(64, 0);
    let mut dead = Vec::new();
    for round in 0..1000 {
        let cancelled = wheel.insert(Tick::new(round + 1), round).unwrap();
        wheel.cancel(cancelled);
        let expired = wheel.insert(Tick::new(round + 1), round).unwrap();
        assert_eq!(drain_at(&mut wheel, round + 1), [round]);
        dead.extend([cancelled, expired]);
        let tenant = wheel.insert(Tick::new(round + 1), round).unwrap();
        for &key in &dead {
            assert_is_dead(&mut wheel, key);
        }
        assert_eq!(wheel.cancel(tenant), Some(round));
        dead.push(tenant);
    }
}

#[test]
fn a_dead_key_stays_dead_across_clear_drain_and_shrink() {
    let mut wheel = wheel_of(64, 0);
    let mut dead = Vec::new();
    for round in 0..20 {
        dead.extend((0..300).map(|i| wheel.insert(Tick::new(i * i), i).unwrap()));
        if round % 2 == 0 {
            wheel.clear();
        } else {
            wheel.drain().for_each(drop);
        }
        wheel.shrink();
        let tenants: Vec<_> = (0..9).map(|i| wheel.insert(Tick::new(i), i).unwrap()).collect();
        for &key in &dead {
            assert_is_dead(&mut wheel, key);
        }
        assert!(tenants.iter().all(|&key| wheel.get(key).is_some()));
        dead.extend(tenants);
    }
}

#[test]
fn a_key_is_good_until_it_is_taken_even_when_due() {
    let mut wheel = wheel_of(64, 0);
    let keys: Vec<_> = (1..=3).map(|i| wheel.insert(Tick::new(i), i).unwrap()).collect();
    assert_eq!(wheel.advance(Tick::new(9)).next().unwrap().value, 1);
    assert_is_dead(&mut wheel, keys[0]);
    assert_eq!(wheel.get(keys[1]), Some(&2));
    assert_eq!(wheel.cancel(keys[1]), Some(2), "due, and cancelled all the same");
    assert_eq!(wheel.reset(keys[2], Tick::new(20)), Some(Tick::new(3)), "due, and put off");
    assert!(drain_at(&mut wheel, 19).is_empty());
    assert_eq!(drain_at(&mut wheel, 20), [3]);
}

#[test]
fn an_advance_that_is_leaked_midway_is_resumed() {
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
fn what_is_inserted_while_more_is_due_takes_its_turn() {
    let mut wheel = wheel_of(64, 0);
    for deadline in [10, 20, 30] {
        wheel.insert(Tick::new(deadline), deadline).unwrap();
    }
    assert_eq!(wheel.advance(Tick::new(100)).next().unwrap().value, 10);
    let late = wheel.insert(Tick::new(5), 5).unwrap();
    let clamped = wheel.deadline(late).unwrap().get();
    assert!((10..=100).contains(&clamped));
    wheel.insert(Tick::new(25), 25).unwrap();
    let rest: Vec<_> = wheel.advance(Tick::new(100)).map(|e| (e.deadline.get(), e.value)).collect();
    assert_eq!(rest, [(clamped, 5), (20, 20), (25, 25), (30, 30)]);
}

#[test]
fn a_passed_deadline_is_due_at_once() {
    let mut wheel = wheel_of(64, 1000);
    let key = wheel.insert(Tick::ZERO, ()).unwrap();
    assert_eq!(wheel.deadline(key), Some(Tick::new(1000)));
    assert_eq!(wheel.next_expiration(), Some(Tick::new(1000)));
    assert_eq!(wheel.advance(Tick::ZERO).count(), 1, "at an advance to any tick");
}

#[test]
fn a_now_that_goes_back_is_taken_as_the_latest() {
    let mut wheel = wheel_of(64, 0);
    wheel.insert(Tick::new(150), 150).unwrap();
    assert!(drain_at(&mut wheel, 100).is_empty());
    assert!(drain_at(&mut wheel, 3).is_empty());
    assert_eq!(wheel.now(), Tick::new(100));
    let key = wheel.insert(Tick::new(50), 50).unwrap();
    assert_eq!(wheel.deadline(key), Some(Tick::new(100)));
    assert_eq!(drain_at(&mut wheel, 0), [50]);
}

#[test]
fn observing_time_moves_the_clock_and_takes_nothing_out() {
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

#[test]
fn the_wheel_works_from_every_start_at_a_power_of_two() {
    for start in (1..64).flat_map(|power: u32| (0..5).map(move |i| (1_u64 << power) + i - 2)) {
        let ahead = [0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 1 << 20];
        let mut wheel = wheel_of(64, start);
        for span in ahead {
            wheel.insert(Tick::new(start + span), span).unwrap();
        }
        for span in ahead {
            assert!(
                drain_at(&mut wheel, (start + span).saturating_sub(1)).len()
                    <= usize::from(span == 0)
            );
            wheel.check_invariants();
            let due = drain_at(&mut wheel, start + span);
            assert!(span == 0 || due == [span]);
        }
        assert!(wheel.is_empty());
    }
}

#[test]
fn the_wheel_works_for_thousands_of_years() {
    const YEAR: u64 = 31_557_600_000;
    let mut wheel = wheel_of(64, YEAR * 2025);
    let mut random = fastrand::Rng::with_seed(2);
    let mut now = YEAR * 2025;
    for _ in 0..20_000 {
        let deadline = now + random.u64(1..YEAR);
        wheel.insert(Tick::new(deadline), deadline).unwrap();
        assert!(drain_at(&mut wheel, deadline - 1).is_empty());
        assert_eq!(drain_at(&mut wheel, deadline), [deadline]);
        now = deadline;
    }
    assert!(now > YEAR * (2025 + 5000));
}

#[test]
fn the_horizon_is_a_deadline_like_any_other() {
    let mut wheel = wheel_of(64, 0);
    wheel.insert(Tick::MAX, "horizon").unwrap();
    assert!(drain_at(&mut wheel, u64::MAX - 1).is_empty());
    assert_eq!(drain_at(&mut wheel, u64::MAX), ["horizon"]);
    wheel.insert(Tick::ZERO, "after").unwrap();
    assert_eq!(wheel.next_expiration(), Some(Tick::MAX));
    assert_eq!(drain_at(&mut wheel, u64::MAX), ["after"]);
}

#[test]
fn an_insert_or_reset_ahead_of_all_others_is_seen_at_once() {
    let mut wheel = wheel_of(64, 0);
    let last = wheel.insert(Tick::new(5000), 0).unwrap();
    for deadline in (1..200).rev() {
        wheel.insert(Tick::new(10 * deadline), deadline).unwrap();
        assert_eq!(wheel.next_expiration(), Some(Tick::new(10 * deadline)));
    }
    wheel.reset(last, Tick::new(9)).unwrap();
    assert_eq!(wheel.next_expiration(), Some(Tick::new(9)));
    assert_eq!(drain_at(&mut wheel, 9), [0]);
}

#[track_caller]
fn assert_is_dead(wheel: &mut TimingWheel<u64>, key: Key) {
    assert_eq!(wheel.get(key), None);
    assert_eq!(wheel.get_mut(key), None);
    assert_eq!(wheel.deadline(key), None);
    assert_eq!(wheel.cancel(key), None);
    assert_eq!(wheel.reset(key, Tick::ZERO), None);
}
