//! The contestants.

mod btree;
mod delay_queue;
mod lazy_heap;
mod wheel;

pub use self::{btree::BTree, delay_queue::DelayQueue, lazy_heap::LazyHeap, wheel::Wheel};
use crate::Timers;

/// Something to do with each contestant.
pub trait Visitor {
    /// Does it with one.
    fn visit<T: Timers + Default>(&mut self);
}

/// Has a visitor visit every contestant, ours first.
pub fn visit_all(visitor: &mut impl Visitor) {
    visitor.visit::<Wheel>();
    visitor.visit::<LazyHeap>();
    visitor.visit::<BTree>();
    visitor.visit::<DelayQueue>();
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
