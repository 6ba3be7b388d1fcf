//! Ticks from a nanosecond to a day, at every end of the scale.

use std::time::Duration;

use delaywheel::{Tick, Ticks};

use super::DELAYS;

const NS: Duration = Duration::from_nanos(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The last representable time: the horizon of ticks of a nanosecond.
const LAST: Duration = Duration::from_nanos(u64::MAX - 1);

fn lengths() -> [Duration; 7] {
    let millis = Duration::from_millis;
    [NS, 2 * NS, 999 * NS, Duration::from_micros(1), millis(1), millis(10), DAY]
}

#[test]
fn times_before_the_origin_count_as_the_origin_and_times_after_the_horizon_never_come() {
    for length in lengths() {
        let ticks = Ticks::new(DAY, length);
        for early in [Duration::ZERO, NS, DAY.saturating_sub(NS), DAY] {
            assert_eq!((ticks.now(early), ticks.deadline(early)), (Tick::ZERO, Tick::ZERO));
        }
        for never in [Duration::MAX, DAY + LAST + NS] {
            assert_eq!(ticks.deadline(never), Tick::MAX);
        }
        assert!(ticks.deadline(DAY + LAST) >= ticks.now(DAY + LAST));
        assert_eq!(ticks.start(Tick::MAX), Duration::MAX);
        assert!(DELAYS.iter().all(|&at| Ticks::new(at, length).start(Tick::ZERO) == at));
        assert_eq!(ticks.wait(DAY, Tick::MAX), Duration::MAX);
    }
}

#[test]
fn the_present_is_rounded_down_and_a_deadline_up_exactly_over_the_whole_scale() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let mut draw = || random.u64(1..u64::MAX) >> random.u32(..64);
        let (length, time, origin) = (draw().max(1), draw(), Duration::from_nanos(draw()));
        let ticks = Ticks::new(origin, Duration::from_nanos(length));
        let multiple = time - time % length;
        for time in [time, multiple, multiple.saturating_sub(1)] {
            let at = origin + Duration::from_nanos(time);
            assert_eq!(ticks.now(at), Tick::new(time / length), "{time} ns by {length} ns");
            assert_eq!(ticks.deadline(at), Tick::new(time.div_ceil(length)));
        }
        let start = origin + Duration::from_nanos(multiple);
        assert_eq!(ticks.start(Tick::new(time / length)), start);
    }
}

#[test]
fn a_wait_ends_exactly_when_the_tick_begins() {
    let mut random = fastrand::Rng::with_seed(1);
    for length in lengths() {
        let ticks = Ticks::new(DAY, length);
        for _ in 0..1000 {
            let end = 1 << random.u32(1..60);
            let now = DAY + Duration::from_nanos(random.u64(..end));
            let until = ticks.deadline(now + Duration::from_nanos(random.u64(..1 << 40)));
            let wait = ticks.wait(now, until);
            assert!(ticks.now(now + wait) >= until, "early");
            assert!(wait.is_zero() || ticks.now((now + wait).saturating_sub(NS)) < until, "late");
            assert_eq!(ticks.wait(now, ticks.now(now)), Duration::ZERO);
        }
    }
}

#[test]
fn a_tick_longer_than_the_horizon_counts_as_the_horizon() {
    let ticks = Ticks::new(Duration::ZERO, Duration::MAX);
    assert_eq!((ticks.now(LAST), ticks.deadline(LAST)), (Tick::ZERO, Tick::new(1)));
    assert_eq!(ticks, Ticks::new(Duration::ZERO, LAST + NS));
    assert_ne!(ticks, Ticks::new(NS, LAST + NS));
    assert_eq!(format!("{:?}", Ticks::new(NS, DAY)), "Ticks { origin: 1ns, tick: 86400s, .. }");
}

#[test]
#[should_panic(expected = "a tick of 0ns has no length")]
fn a_tick_without_a_length_panics() {
    let _ = Ticks::new(Duration::ZERO, Duration::ZERO);
}
