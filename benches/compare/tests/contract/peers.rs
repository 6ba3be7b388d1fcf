//! Tests that show which promises other crates do not keep.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    Timers,
    timers::{BitWheel, DelayQueue, HashWheel, NexusTimer, TimerQueue, Wheel},
};

use crate::{advance, hold_paused_clock, panics, wake_until_expired};

#[test]
fn nexus_timer_fires_early_by_up_to_a_tick() {
    let epoch = Instant::now();
    let mut wheel = nexus_timer::Wheel::unbounded(64, epoch);
    wheel.schedule_forget(epoch + Duration::from_nanos(7_999_999), 7);
    let mut expired = Vec::new();
    assert_eq!(wheel.poll(epoch + Duration::from_nanos(7_000_001), &mut expired), 1);
    assert_eq!(expired, [7]);
}

#[test]
fn nexus_timer_expires_near_timeouts_before_far_ones() {
    let mut timers = NexusTimer::default();
    timers.insert(70, 70);
    advance(&mut timers, 60);
    timers.insert(90, 90);
    assert_eq!(advance(&mut timers, 100), [90, 70]);
}

#[test]
fn bitwheel_fires_early_by_the_span_of_a_slot() {
    let mut timers = BitWheel::default();
    timers.insert(8_191, 0);
    assert_eq!(wake_until_expired(&mut timers), (4_096, 1));
}

#[test]
fn bitwheel_fires_late_when_a_slot_is_full() {
    let mut timers = BitWheel::default();
    for payload in 0..8 * 32 {
        timers.insert(4_096, payload);
    }
    let (mut now, mut last) = (0, 0);
    while !timers.is_empty() {
        now = timers.next_expiration().unwrap();
        last = if advance(&mut timers, now).is_empty() { last } else { now };
    }
    assert_eq!(last, now);
    assert_eq!(last, 8 * 4_096);
}

#[test]
fn bitwheel_counts_expired_timeouts_as_pending() {
    struct Nothing;
    impl bitwheel::timer::Timer for Nothing {
        type Context = ();

        fn fire(&mut self, (): &mut ()) {}
    }
    let epoch = Instant::now();
    let mut wheel = bitwheel::timer::PreciseWheel::boxed_with_epoch(epoch);
    wheel.insert(epoch + Duration::from_millis(5), Nothing).expect("an empty wheel has room");
    assert_eq!(wheel.poll(epoch + Duration::from_millis(5), &mut ()), 1);
    assert_eq!((wheel.is_empty(), wheel.len()), (true, 1));
}

#[test]
fn bitwheel_wraps_delays_beyond_its_range() {
    let mut timers = BitWheel::default();
    let hour = 3_600_000;
    timers.insert(hour, 0);
    let (fired, _) = wake_until_expired(&mut timers);
    assert!(fired < 1 << 18, "an hour was over at {fired}");
}

#[test]
fn a_delay_queue_uses_a_key_again() {
    let _clock = hold_paused_clock();
    let mut queue = DelayQueue::default();
    let gone = queue.insert(1, 1);
    assert!(queue.cancel(gone));
    queue.insert(2, 2);
    assert!(queue.cancel(gone), "the key is that of the other timeout");
    assert!(queue.is_empty());
}

#[test]
fn a_delay_queue_panics_beyond_two_years() {
    let _clock = hold_paused_clock();
    let mut queue = DelayQueue::default();
    queue.insert((1 << 36) - 1, 0);
    assert!(panics(|| queue.insert(1 << 36, 0)));
}

#[test]
fn a_delay_queue_panics_at_any_timeout_after_two_idle_years() {
    let _clock = hold_paused_clock();
    let mut queue = DelayQueue::default();
    let now = 1 << 36;
    advance(&mut queue, now);
    assert!(panics(|| queue.insert(now + 1, 0)));
}

#[test]
fn a_timer_queue_uses_a_key_again() {
    let mut queue = TimerQueue::default();
    let gone = queue.insert(1, 1);
    assert!(queue.cancel(gone));
    queue.insert(2, 2);
    assert!(queue.cancel(gone), "the key is that of the other timeout");
    assert!(panics(|| queue.cancel(gone)));
}

#[test]
fn a_hash_wheel_wakes_for_nothing_after_cancel() {
    let mut timers = HashWheel::default();
    let key = timers.insert(10, 0);
    assert!(timers.cancel(key));
    let mut wakeups = 0;
    while let Some(now) = timers.next_expiration() {
        wakeups += 1;
        advance(&mut timers, now);
    }
    assert_eq!(wakeups, 10);
}

#[test]
fn a_hash_wheel_ticks_while_a_timeout_is_near() {
    let mut timers = HashWheel::default();
    timers.insert(200, 0);
    assert_eq!(wake_until_expired(&mut timers), (200, 200));

    let mut wheel = Wheel::default();
    wheel.insert(200, 0);
    assert!(wake_until_expired(&mut wheel).1 <= 2);
}

#[test]
fn a_hash_wheel_panics_at_a_delay_of_just_under_2_pow_32() {
    let delay = u64::from(u32::MAX);
    assert!(panics(|| HashWheel::default().insert(delay, 0)));
    assert!(!panics(|| HashWheel::default().insert(delay - 1, 0)));
    assert!(!panics(|| HashWheel::default().insert(delay + 1, 0)));
}

#[test]
fn a_hash_wheel_fires_after_hours_when_a_delay_is_nearly_a_lap() {
    let mut timers = HashWheel::default();
    let now = 1 << 23;
    timers.insert(now, 0);
    assert_eq!(advance(&mut timers, now), [0]);
    let delay = (1 << 32) - (1 << 22);
    timers.insert(now + delay, 1);
    let (fired, _) = wake_until_expired(&mut timers);
    assert_eq!(fired - now, 3 << 22, "three and a half hours in place of 49 days");
}
