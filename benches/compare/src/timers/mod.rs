//! The contestants in virtual time: the caller passes the time to them.

mod bit_wheel;
mod btree;
mod delay_queue;
mod handles;
mod hash_wheel;
mod kafka;
mod lazy_heap;
pub(crate) mod lists;
mod netty;
mod nexus_timer;
mod priority_queue;
mod ring_queue;
mod rounded;
mod schemes;
mod timer_queue;
mod wheel;

use std::time::Duration;

pub use self::{
    bit_wheel::BitWheel,
    btree::BTree,
    delay_queue::DelayQueue,
    hash_wheel::HashWheel,
    kafka::Kafka,
    lazy_heap::LazyHeap,
    netty::Netty,
    nexus_timer::NexusTimer,
    priority_queue::IndexedHeap,
    ring_queue::RingQueue,
    schemes::{OrderedList, SimpleWheel, SortedHashedWheel, TickingWheel, UnorderedList},
    timer_queue::TimerQueue,
    wheel::Wheel,
};
use crate::{
    Promises, Timers,
    measure::{
        memory,
        seen::{self, Seen},
        traffic::{AtWork, Traffic},
        wheel::{self as measure, Churning, Drained, Filled},
    },
    workload::Pair,
};

/// A contestant whose type is hidden: its name, and every measurement.
pub trait Entrant {
    /// Name in the report.
    fn name(&self) -> &'static str;

    /// Structure and limits.
    fn promises(&self) -> Promises;

    /// See [`measure::fill_once`].
    fn fill(&self, deadlines: &[u64], long: Duration) -> Filled;

    /// See [`measure::churning`].
    fn churning(&self, deadlines: Vec<u64>) -> Box<dyn Churning>;

    /// See [`measure::reset_once`].
    fn reset(&self, deadlines: &[u64], moves: &[Pair]) -> f64;

    /// See [`measure::at_work`].
    fn at_work<'a>(&self, traffic: &'a Traffic, limit: Duration) -> (bool, Box<dyn AtWork + 'a>);

    /// See [`measure::drain_once`].
    fn drain(&self, deadlines: &[u64], patience: Duration) -> (Duration, Drained);

    /// See [`seen::look`].
    fn seen(&self, pending: u32, seed: u64) -> Seen;

    /// See [`memory::told`].
    fn memory(&self, turn: &memory::Turn, heap: &memory::Heap) -> Vec<crate::bench::Figure>;
}

/// A contestant, and how to make one.
#[derive(Debug, Clone, Copy)]
pub struct Told<T> {
    /// Name in the report.
    pub name: &'static str,
    /// Makes an empty one.
    pub make: fn() -> T,
}

impl<T: Timers + Default + 'static> Entrant for Told<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn promises(&self) -> Promises {
        T::PROMISES
    }

    fn fill(&self, deadlines: &[u64], long: Duration) -> Filled {
        measure::fill_once(self.make, deadlines, long)
    }

    fn churning(&self, deadlines: Vec<u64>) -> Box<dyn Churning> {
        measure::churning(self.make, deadlines)
    }

    fn reset(&self, deadlines: &[u64], moves: &[Pair]) -> f64 {
        measure::reset_once(self.make, deadlines, moves)
    }

    fn at_work<'a>(&self, traffic: &'a Traffic, limit: Duration) -> (bool, Box<dyn AtWork + 'a>) {
        measure::at_work(self.make, traffic, limit)
    }

    fn drain(&self, deadlines: &[u64], patience: Duration) -> (Duration, Drained) {
        measure::drain_once(self.make, deadlines, patience)
    }

    fn seen(&self, pending: u32, seed: u64) -> Seen {
        seen::look::<T>(pending, seed)
    }

    fn memory(&self, turn: &memory::Turn, heap: &memory::Heap) -> Vec<crate::bench::Figure> {
        memory::told(self.make, turn, heap)
    }
}

/// All contestants, ours first.
pub fn all() -> Vec<Box<dyn Entrant>> {
    fn told<T: Timers + Default + 'static>() -> Box<dyn Entrant> {
        Box::new(Told { name: T::NAME, make: T::default })
    }
    vec![
        told::<Wheel>(),
        told::<UnorderedList>(),
        told::<OrderedList>(),
        told::<LazyHeap>(),
        told::<IndexedHeap>(),
        told::<BTree>(),
        told::<SimpleWheel>(),
        told::<SortedHashedWheel>(),
        told::<Netty>(),
        told::<RingQueue>(),
        told::<TickingWheel>(),
        told::<Kafka>(),
        told::<DelayQueue>(),
        told::<HashWheel>(),
        told::<NexusTimer>(),
        told::<TimerQueue>(),
        told::<BitWheel>(),
    ]
}
