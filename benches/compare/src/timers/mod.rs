//! The contestants that get the time from their caller.

mod bit_wheel;
mod btree;
mod delay_queue;
mod handles;
mod hash_wheel;
mod kafka;
mod lazy_heap;
pub(crate) mod lists;
pub(crate) mod netty;
mod nexus_timer;
mod priority_queue;
mod ring_queue;
pub(crate) mod rounded;
mod schemes;
mod timer_queue;
mod wheel;

use crate::measure::{
    Turn, memory,
    seen::{self, Seen},
    traffic::Traffic,
    wheel as measure,
    wheel::{AtWork, Drained, Filled},
};
use crate::prelude::*;

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

/// A contestant whose type is hidden: its promises, and every measurement.
#[derive(Clone, Copy)]
pub struct Entrant {
    pub promises: Promises,
    pub fill: fn(&[u64], Duration) -> Filled,
    pub reset: fn(&[u64], &[Pair]) -> f64,
    pub at_work: for<'a> fn(&'a Traffic, Duration) -> AtWork<'a>,
    pub drain: fn(&[u64], Duration) -> (Duration, Drained),
    pub seen: fn(u32, u64) -> Seen,
    pub memory: fn(&Turn, &memory::Heap) -> Vec<Figure>,
}

impl Entrant {
    fn of<T: Timers + Default + 'static>() -> Self {
        Self {
            promises: T::PROMISES,
            fill: |deadlines, long| measure::fill_once(T::default, deadlines, long),
            reset: measure::reset_once::<T>,
            at_work: measure::at_work::<T>,
            drain: |deadlines, patience| measure::drain_once(T::default, deadlines, patience),
            seen: seen::look::<T>,
            memory: memory::of_timers::<T>,
        }
    }

    pub fn name(&self) -> &'static str {
        self.promises.name
    }
}

/// A generic function for every type of contestant.
pub trait Visitor {
    fn visit<T: Timers + Default + 'static>(&mut self);
}

/// Visits all types, ours first.
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

impl Visitor for Vec<Entrant> {
    fn visit<T: Timers + Default + 'static>(&mut self) {
        self.push(Entrant::of::<T>());
    }
}

/// All contestants, ours first.
pub fn all() -> Vec<Entrant> {
    let mut all = Vec::new();
    visit_all(&mut all);
    all
}
