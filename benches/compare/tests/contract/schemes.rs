//! Tests that show which promises the classic schemes do not keep.

use delaywheel_compare::{
    Timers,
    timers::{Kafka, LazyHeap, Netty, RingQueue, SimpleWheel, TickingWheel, UnorderedList, Wheel},
};

use crate::{advance, panics, wake_until_expired};

const DAY: u64 = 86_400_000;

#[test]
fn kafkas_wheel_fires_early_by_up_to_a_tick() {
    let mut kafka = Kafka::with_tick(10);
    kafka.insert(19, 19);
    assert_eq!(kafka.next_expiration(), Some(10));
    assert_eq!(advance(&mut kafka, 10), [19]);
}

#[test]
fn kafkas_wheel_wakes_for_nothing_after_cancel() {
    let mut kafka = Kafka::default();
    let key = kafka.insert(DAY, 0);
    assert!(kafka.cancel(key));
    assert!(kafka.is_empty());
    let wakeup = kafka.next_expiration().expect("the bucket stays in the queue");
    assert!(advance(&mut kafka, wakeup).is_empty());
    assert_eq!(kafka.next_expiration(), None);

    let mut wheel = Wheel::default();
    let key = wheel.insert(DAY, 0);
    assert!(wheel.cancel(key));
    assert_eq!(wheel.next_expiration(), None);
}

#[test]
fn kafkas_wheel_wakes_at_once_for_a_timeout_after_an_idle_day() {
    let mut kafka = Kafka::default();
    advance(&mut kafka, DAY);
    kafka.insert(DAY + 5, 0);
    assert_eq!(kafka.next_expiration(), Some(DAY));
    assert_eq!(wake_until_expired(&mut kafka), (DAY + 5, 2));

    let mut wheel = Wheel::default();
    advance(&mut wheel, DAY);
    wheel.insert(DAY + 5, 0);
    assert_eq!(wake_until_expired(&mut wheel), (DAY + 5, 1));
}

#[test]
fn kafkas_wheel_wakes_at_every_level_for_a_lone_timeout() {
    let mut kafka = Kafka::default();
    kafka.insert(365 * DAY - 1, 0);
    assert_eq!(wake_until_expired(&mut kafka), (365 * DAY - 1, 9));

    let mut wheel = Wheel::default();
    wheel.insert(365 * DAY - 1, 0);
    assert_eq!(wake_until_expired(&mut wheel), (365 * DAY - 1, 1));
}

#[test]
fn nettys_wheel_is_late_by_a_tick() {
    let mut netty = Netty::default();
    netty.insert(5, 5);
    assert!(advance(&mut netty, 5).is_empty());
    assert_eq!(advance(&mut netty, 6), [5]);
}

#[test]
fn nettys_wheel_leaves_new_timeouts_beyond_100_000_to_later_ticks() {
    let mut netty = Netty::default();
    for payload in 0..300_000 {
        netty.insert(1, payload);
    }
    assert_eq!(advance(&mut netty, 1).len(), 0);
    assert_eq!(advance(&mut netty, 2).len(), 200_000);
    assert_eq!(advance(&mut netty, 3).len(), 100_000);
}

#[test]
fn nettys_wheel_wakes_at_every_tick() {
    let mut netty = Netty::default();
    netty.insert(10_000, 0);
    assert_eq!(wake_until_expired(&mut netty), (10_001, 10_001));
}

#[test]
fn a_ring_queue_is_late_by_up_to_a_second() {
    let mut ring = RingQueue::default();
    ring.insert(1_001, 0);
    assert!(advance(&mut ring, 1_999).is_empty());
    assert_eq!(advance(&mut ring, 2_000), [0]);
}

#[test]
fn bounded_wheels_refuse_delays_out_of_range() {
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
fn ticking_wheels_step_through_empty_slots() {
    fn wakes_at_every_tick<T: Timers + Default>() {
        let mut timers = T::default();
        timers.insert(10_000, 0);
        assert_eq!(wake_until_expired(&mut timers), (10_000, 10_000), "{}", T::NAME);
    }
    wakes_at_every_tick::<SimpleWheel>();
    wakes_at_every_tick::<TickingWheel>();
}

#[test]
fn an_unordered_list_hands_out_in_the_order_of_insertion() {
    let mut list = UnorderedList::default();
    list.insert(2, 2);
    list.insert(1, 1);
    assert_eq!(advance(&mut list, 2), [2, 1]);
}

#[test]
fn a_ring_queue_hands_out_a_second_in_no_order() {
    let mut ring = RingQueue::default();
    for deadline in (1..=1_000).rev() {
        ring.insert(deadline, deadline);
    }
    assert!(!advance(&mut ring, 1_000).is_sorted());
}

#[test]
fn a_lazy_heap_is_exact() {
    let mut heap = LazyHeap::default();
    let key = heap.insert(10, 10);
    heap.insert(20, 20);
    assert!(heap.cancel(key));
    assert_eq!(wake_until_expired(&mut heap), (20, 1));
}
