//! The wheel and its vocabulary.

use delaywheel::{BuildError, InsertError, Tick, wheel::WheelBuilder};

use super::NUMBERS;

#[test]
fn arithmetic_on_ticks_saturates_past_the_horizon() {
    for left in NUMBERS {
        for right in NUMBERS {
            let tick = Tick::new(left);
            assert_eq!(tick.saturating_add(right).get(), left.saturating_add(right));
            assert_eq!(tick.saturating_since(Tick::new(right)), left.saturating_sub(right));
        }
        assert_eq!(Tick::new(left).to_string(), left.to_string());
    }
}

#[test]
fn settings_out_of_range_are_refused_and_a_wheel_with_a_limit_of_0_refuses_every_value() {
    for size in [0, 1, 65537, usize::MAX] {
        let refused = WheelBuilder::default().size(size).build::<u8>();
        assert_eq!(refused.unwrap_err(), BuildError::SizeOutOfRange { size });
    }
    for (size, rounded) in [(2, 2), (3, 4), (200, 256), (65535, 65536), (65536, 65536)] {
        let wheel = WheelBuilder::new().size(size).build::<u8>().unwrap();
        assert!(format!("{wheel:?}").contains(&format!("size: {rounded}")));
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
