//! The wheel and its vocabulary.

use delaywheel::{
    BuildError, InsertError, Tick, TickSpan,
    wheel::{Key, TimingWheel, WheelBuilder},
};

use super::NUMBERS;

#[test]
fn arithmetic_on_ticks_saturates_past_the_horizon() {
    for left in NUMBERS {
        for right in NUMBERS {
            let (tick, span) = (Tick::new(left), TickSpan::new(right));
            assert_eq!(tick.saturating_add(span).get(), left.saturating_add(right));
            assert_eq!(tick.saturating_since(Tick::new(right)).get(), left.saturating_sub(right));
        }
        assert_eq!(
            format!("{} {}", Tick::new(left), TickSpan::new(left)),
            format!("{left} {left}")
        );
    }
}

#[test]
fn settings_out_of_range_are_refused_and_a_wheel_with_a_limit_of_0_refuses_every_value() {
    for size in [0, 1, 65537, usize::MAX] {
        let refused = WheelBuilder::new().size(size).build::<u8>();
        assert_eq!(refused.unwrap_err(), BuildError::SizeOutOfRange { size });
    }
    for (size, rounded) in [(2, 2), (3, 4), (200, 256), (65535, 65536), (65536, 65536)] {
        assert_eq!(WheelBuilder::new().size(size).build::<u8>().unwrap().size(), rounded);
    }
    let mut wheel = WheelBuilder::new().max_pending(0).build().unwrap();
    for tick in NUMBERS {
        let refused: InsertError<u64> = wheel.insert(Tick::new(tick), tick).unwrap_err();
        assert_eq!(refused.into_value(), tick);
    }
    assert!(wheel.is_empty() && wheel.next_expiration().is_none());
    for limit in [1, u32::MAX] {
        let mut wheel = WheelBuilder::new().max_pending(limit).build().unwrap();
        assert!(wheel.insert(Tick::MAX, 'a').is_ok());
    }
}

#[test]
fn every_function_accepts_every_tick() {
    for size in [2, 4, 64, 1024] {
        for start in NUMBERS {
            let mut wheel = WheelBuilder::new().size(size).start(Tick::new(start)).build().unwrap();
            assert_eq!((wheel.now().get(), wheel.size()), (start, size));
            let keys: Vec<_> =
                NUMBERS.map(|tick| wheel.insert(Tick::new(tick), tick).unwrap()).into();
            look(&mut wheel, &keys);
            for (index, now) in NUMBERS.into_iter().enumerate() {
                wheel.observe(Tick::new(now));
                for limit in [0, 1, index as u64] {
                    let _ = wheel.advance(Tick::new(now)).limit(limit).count();
                }
                for &key in &keys {
                    wheel.reset(key, Tick::new(NUMBERS[(index * 5) % NUMBERS.len()]));
                }
                look(&mut wheel, &keys);
                wheel.shrink();
            }
            let mut due = wheel.advance(Tick::MAX).limit(u64::MAX);
            due.by_ref().for_each(drop);
            assert!(due.is_drained() && wheel.is_empty(), "{size} {start}");
            look(&mut wheel, &keys);
            assert!(wheel.insert(Tick::ZERO, 0).is_ok(), "time has ended, and all is due");
            assert_eq!(wheel.advance(Tick::ZERO).count(), 1);
        }
    }
}

/// Calls every function that does not change the pending timeouts.
fn look(wheel: &mut TimingWheel<u64>, keys: &[Key]) {
    wheel.check_invariants();
    let pending = wheel.len();
    for &key in keys {
        let is_pending = wheel.get(key).is_some();
        assert_eq!(wheel.get_mut(key).is_some(), is_pending);
        assert_eq!(wheel.deadline(key).is_some(), is_pending);
    }
    assert_eq!((wheel.iter().count(), wheel.is_empty()), (pending, pending == 0));
    assert!(!format!("{wheel:?}").is_empty());
}

#[test]
fn dead_keys_and_keys_of_other_wheels_find_nothing() {
    let mut wheel = TimingWheel::new(Tick::MAX);
    let mut other = TimingWheel::new(Tick::ZERO);
    let foreign: Vec<_> = (0..5000).map(|_| other.insert(Tick::MAX, 'b').unwrap()).collect();
    let own = wheel.insert(Tick::ZERO, 'a').unwrap();
    for key in foreign.into_iter().skip(1) {
        assert!(wheel.get(key).is_none() && wheel.get_mut(key).is_none());
        assert!(wheel.reset(key, Tick::MAX).is_none() && wheel.cancel(key).is_none());
    }
    assert_eq!(wheel.cancel(own), Some('a'));
    assert_eq!((wheel.cancel(own), wheel.reset(own, Tick::ZERO)), (None, None));
    assert_eq!((wheel.drain().count(), other.drain().count()), (0, 5000));
    wheel.clear();
    other.clear();
    other.shrink();
    assert!(other.advance(Tick::MAX).next().is_none() && wheel.iter().next().is_none());
}
