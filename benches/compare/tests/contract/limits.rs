//! Limits that contestants declare, shown to be real.

use delaywheel_compare::{
    Promises, Timers,
    timers::{
        self, BitWheel, DelayQueue, HashWheel, Netty, RingQueue, SimpleWheel, TickingWheel,
        TimerQueue, Wheel,
    },
};

use crate::{hold_paused_clock, panics};

/// Returns the payloads that an advance hands out.
fn advance<T: Timers>(timers: &mut T, now: u64) -> Vec<u64> {
    let mut payloads = Vec::new();
    timers.advance(now, |payload| payloads.push(payload));
    payloads
}

/// Wakes a contestant as it asks until a timeout expires. Returns the tick.
fn wake_until_expired<T: Timers>(timers: &mut T) -> u64 {
    loop {
        let now = timers.next_expiration().expect("a timeout is pending");
        if !advance(timers, now).is_empty() {
            return now;
        }
    }
}

/// Times in tenths of a tick show how a contestant rounds. Stepping contestants wake at every tick,
/// 54,321 times.
#[test]
fn behaviour_is_as_described() {
    let _clock = hold_paused_clock();
    // The greatest earliness and lateness in ticks, and idle wake-ups with one timeout and after
    // its cancel.
    let table = [
        ("delaywheel", 0.0, 0.9, 0, 0),
        ("unordered_list", 0.0, 0.0, 0, 0),
        ("ordered_list", 0.0, 0.0, 0, 0),
        ("lazy_heap", 0.0, 0.0, 0, 0),
        ("priority_queue", 0.0, 0.0, 0, 0),
        ("btree", 0.0, 0.0, 0, 0),
        ("simple_wheel", 0.0, 0.9, 54_320, 0),
        ("sorted_hashed_wheel", 0.0, 0.9, 54_320, 0),
        ("netty", 0.0, 1.0, 54_321, 0),
        ("ring_queue", 0.0, 999.0, 54, 0),
        ("ticking_wheel", 0.0, 0.9, 54_320, 0),
        ("kafka", 0.9, 0.0, 3, 1),
        ("delay_queue", 0.0, 0.9, 2, 0),
        ("hash_wheel", 1.8, 0.0, 260, 212),
        ("nexus_timer", 0.9, 0.0, 0, 0),
        ("timer_queue", 0.0, 0.0, 2, 0),
        ("bitwheel", 4_095.0, 28_672.0, 0, 1),
    ];
    let all = timers::all();
    assert_eq!(all.len(), table.len());
    for (one, (name, early, late, with_one, with_none)) in all.iter().zip(table) {
        let seen = (one.seen)(500, 3);
        assert_eq!(one.name(), name);
        // A random deadline comes close to the greatest.
        assert!(seen.early <= early && seen.early >= early / 2.0, "{name}: {seen:?}");
        assert!(seen.late <= late && seen.late >= late / 2.0, "{name}: {seen:?}");
        assert_eq!((seen.wakeups_one, seen.wakeups_none), (with_one, with_none), "{name}");
        assert_eq!((seen.lost, seen.cancelled), (0, 100), "{name}");
        assert!(seen.unordered == 0 || !one.promises.ordered, "{name}: {seen:?}");
    }
}

#[test]
fn ours_promises_everything() {
    assert_eq!(Wheel::PROMISES, Promises { name: Wheel::NAME, ..Promises::STRICT });
}

#[test]
fn bounded_wheels_refuse_delays_beyond_their_range() {
    fn refuses_beyond<T: Timers + Default>(range: u64) {
        assert_eq!(T::PROMISES.max_delay, Some(range));
        let mut timers = T::default();
        advance(&mut timers, 77);
        let key = timers.insert(77 + range, 0);
        assert!(panics(|| timers.insert(77 + range + 1, 0)), "{}", T::NAME);
        assert!(panics(|| timers.reset(key, 77 + range + 1)), "{}", T::NAME);
        assert_eq!(timers.len(), 1);
    }
    refuses_beyond::<SimpleWheel>(65_535);
    refuses_beyond::<RingQueue>(60_000);
    refuses_beyond::<TickingWheel>((1 << 32) - 1);
}

#[test]
fn slabs_use_a_key_again() {
    fn uses_a_key_again<T: Timers + Default>() {
        let mut timers = T::default();
        let gone = timers.insert(1, 1);
        assert_eq!(timers.cancel(gone), Some(1));
        timers.insert(2, 2);
        assert_eq!(timers.cancel(gone), Some(2), "the key is that of the other timeout");
        assert!(timers.is_empty());
    }
    let _clock = hold_paused_clock();
    uses_a_key_again::<DelayQueue>();
    uses_a_key_again::<TimerQueue>();
}

#[test]
fn nettys_wheel_leaves_more_than_100_000_new_timeouts_to_later_ticks() {
    let mut netty = Netty::default();
    for payload in 0..300_000 {
        netty.insert(1, payload);
    }
    let expired = [1, 2, 3].map(|now| advance(&mut netty, now).len());
    assert_eq!(expired, [0, 200_000, 100_000]);
}

#[test]
fn bitwheel_wraps_delays_out_of_its_range() {
    let mut timers = BitWheel::default();
    timers.insert(3_600_000, 0);
    let fired = wake_until_expired(&mut timers);
    assert!(fired < 1 << 18, "an hour was over at {fired}");
}

#[test]
fn a_delay_queue_panics_beyond_two_years_also_after_two_idle_years() {
    let _clock = hold_paused_clock();
    let mut queue = DelayQueue::default();
    queue.insert((1 << 36) - 1, 0);
    assert!(panics(|| queue.insert(1 << 36, 0)));
    let (mut queue, now) = (DelayQueue::default(), 1 << 36);
    advance(&mut queue, now);
    assert!(panics(|| queue.insert(now + 1, 0)));
}

#[test]
fn a_hash_wheel_panics_at_a_delay_of_2_pow_32_minus_1() {
    let is_refused = |delay| panics(|| HashWheel::default().insert(delay, 0));
    assert_eq!([2, 1, 0].map(|less| is_refused((1 << 32) - less)), [false, true, false]);
}

#[test]
fn a_hash_wheel_fires_after_hours_when_a_delay_is_nearly_a_round() {
    let mut timers = HashWheel::default();
    let now = 1 << 23;
    timers.insert(now, 0);
    assert_eq!(advance(&mut timers, now), [0]);
    let delay = (1 << 32) - (1 << 22);
    timers.insert(now + delay, 1);
    let fired = wake_until_expired(&mut timers);
    assert_eq!(fired - now, 3 << 22, "three and a half hours in place of 49 days");
}
