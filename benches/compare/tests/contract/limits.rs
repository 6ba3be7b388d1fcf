//! Limits that contestants declare, shown to be real.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    Promises, Timers,
    timers::{
        self, BitWheel, DelayQueue, HashWheel, Kafka, Netty, NexusTimer, RingQueue, SimpleWheel,
        TickingWheel, TimerQueue, UnorderedList, Wheel,
    },
};

use crate::{hold_paused_clock, panics};

const DAY: u64 = 86_400_000;

/// Returns the payloads that an advance hands out.
fn advance<T: Timers>(timers: &mut T, now: u64) -> Vec<u64> {
    let mut payloads = Vec::new();
    timers.advance(now, |payload| payloads.push(payload));
    payloads
}

/// Wakes a contestant as it asks until a timeout expires. Returns the tick, and the number of
/// wake-ups.
fn wake_until_expired<T: Timers>(timers: &mut T) -> (u64, u32) {
    for wakeups in 1.. {
        let now = timers.next_expiration().expect("a timeout is pending");
        if !advance(timers, now).is_empty() {
            return (now, wakeups);
        }
    }
    unreachable!("a timeout expires within 2^32 wake-ups")
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
fn lists_and_rings_and_rebalanced_wheels_expire_out_of_order() {
    let mut list = UnorderedList::default();
    list.insert(2, 2);
    list.insert(1, 1);
    assert_eq!(advance(&mut list, 2), [2, 1]);

    let mut ring = RingQueue::default();
    for deadline in 1..=1_000 {
        ring.insert(deadline, deadline);
    }
    assert!(!advance(&mut ring, 1_000).is_sorted());

    let mut nexus = NexusTimer::default();
    nexus.insert(70, 70);
    advance(&mut nexus, 60);
    nexus.insert(90, 90);
    assert_eq!(advance(&mut nexus, 100), [90, 70]);
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
fn kafkas_wheel_wakes_in_vain_after_an_idle_day_and_at_every_level() {
    fn wakeups<T: Timers + Default>() -> [(u64, u32); 2] {
        let (mut idle, mut far) = (T::default(), T::default());
        advance(&mut idle, DAY);
        idle.insert(DAY + 5, 0);
        far.insert(365 * DAY - 1, 0);
        [wake_until_expired(&mut idle), wake_until_expired(&mut far)]
    }
    assert_eq!(wakeups::<Kafka>(), [(DAY + 5, 2), (365 * DAY - 1, 9)]);
    assert_eq!(wakeups::<Wheel>(), [(DAY + 5, 1), (365 * DAY - 1, 1)]);
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
    let (fired, _) = wake_until_expired(&mut timers);
    assert!(fired < 1 << 18, "an hour was over at {fired}");
}

#[test]
fn bitwheel_counts_fired_timeouts_as_pending() {
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
    for (delay, is_refused) in
        [(0, false), (1, true), (2, false)].map(|(d, r)| ((1 << 32) - 2 + d, r))
    {
        assert_eq!(panics(|| HashWheel::default().insert(delay, 0)), is_refused, "{delay}");
    }
}

#[test]
fn a_hash_wheel_fires_after_hours_when_a_delay_is_nearly_a_round() {
    let mut timers = HashWheel::default();
    let now = 1 << 23;
    timers.insert(now, 0);
    assert_eq!(advance(&mut timers, now), [0]);
    let delay = (1 << 32) - (1 << 22);
    timers.insert(now + delay, 1);
    let (fired, _) = wake_until_expired(&mut timers);
    assert_eq!(fired - now, 3 << 22, "three and a half hours in place of 49 days");
}
