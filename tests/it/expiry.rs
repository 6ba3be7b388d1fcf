//! Edges of time and of keys that the oracle's scripts do not reach.

use std::mem::ManuallyDrop;

use delaywheel::{Key, Tick, TimingWheel};

use crate::support::{drain_at, wheel_of};

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

#[track_caller]
fn assert_is_dead(wheel: &mut TimingWheel<u64>, key: Key) {
    assert_eq!(wheel.get(key), None);
    assert_eq!(wheel.get_mut(key), None);
    assert_eq!(wheel.deadline(key), None);
    assert_eq!(wheel.cancel(key), None);
    assert_eq!(wheel.reset(key, Tick::ZERO), None);
}
