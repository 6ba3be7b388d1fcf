//! The contestants.

mod bit_wheel;
mod btree;
mod delay_queue;
mod handles;
mod hash_wheel;
mod kafka;
mod lazy_heap;
mod lists;
mod netty;
mod nexus_timer;
mod ordered_list;
mod priority_queue;
mod ring_queue;
mod rounded;
mod simple_wheel;
mod sorted_hashed_wheel;
mod ticking_wheel;
mod timer_queue;
mod unordered_list;
mod wheel;

pub(crate) use self::lists::Lists;
pub use self::{
    bit_wheel::BitWheel, btree::BTree, delay_queue::DelayQueue, hash_wheel::HashWheel,
    kafka::Kafka, lazy_heap::LazyHeap, netty::Netty, nexus_timer::NexusTimer,
    ordered_list::OrderedList, priority_queue::IndexedHeap, ring_queue::RingQueue,
    simple_wheel::SimpleWheel, sorted_hashed_wheel::SortedHashedWheel, ticking_wheel::TickingWheel,
    timer_queue::TimerQueue, unordered_list::UnorderedList, wheel::Wheel,
};
use crate::Timers;

/// Something to do with each contestant.
pub trait Visitor {
    /// Does it with one.
    fn visit<T: Timers + Default>(&mut self);
}

/// Has a visitor visit every contestant, ours first.
pub fn visit_all(visitor: &mut impl Visitor) {
    visitor.visit::<Wheel>();
    visitor.visit::<UnorderedList>();
    visitor.visit::<OrderedList>();
    visitor.visit::<LazyHeap>();
    visitor.visit::<IndexedHeap>();
    visitor.visit::<BTree>();
    visitor.visit::<SimpleWheel>();
    visitor.visit::<SortedHashedWheel>();
    visitor.visit::<Netty>();
    visitor.visit::<RingQueue>();
    visitor.visit::<TickingWheel>();
    visitor.visit::<Kafka>();
    visitor.visit::<DelayQueue>();
    visitor.visit::<HashWheel>();
    visitor.visit::<NexusTimer>();
    visitor.visit::<TimerQueue>();
    visitor.visit::<BitWheel>();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Spread, Workload};

    /// What each tick handed out, sorted since the order of equal deadlines is free.
    fn script<T: Timers + Default>() -> Vec<(u64, Vec<u64>)> {
        let (mut timers, mut keys, mut outcome) = (T::default(), Vec::new(), Vec::new());
        let mut workload = Workload::new(Spread::Minute, 8);
        for (&deadline, payload) in workload.deadlines(3_000).iter().zip(0..) {
            keys.push(timers.insert(deadline, payload));
        }
        for (&deadline, victims) in workload.deadlines(1_000).iter().zip(keys.chunks_mut(3)) {
            assert!(timers.cancel(victims[0]));
            victims[1] = timers.reset(victims[1], deadline).unwrap();
        }
        for now in (0..=60_000).step_by(25) {
            let mut due = Vec::new();
            assert_eq!(timers.advance(now, |payload| due.push(payload)), due.len());
            due.sort_unstable();
            outcome.push((now, due));
        }
        assert!(timers.is_empty());
        outcome
    }

    #[test]
    fn contestants_do_the_same() {
        let expected = script::<BTree>();
        assert_eq!(expected.iter().map(|(_, due)| due.len()).sum::<usize>(), 2_000);
        assert_eq!(script::<Wheel>(), expected);
        assert_eq!(script::<LazyHeap>(), expected);
        assert_eq!(script::<DelayQueue>(), expected);
    }
}
