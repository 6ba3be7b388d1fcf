//! The contestants that get the time from their caller.

mod btree;
mod delay_queue;
mod lazy_heap;
mod timer_queue;
mod wheel;

use crate::measure::{
    Turn, memory,
    traffic::Traffic,
    wheel as measure,
    wheel::{AtWork, Drained},
};
use crate::prelude::*;

pub use self::{
    btree::BTree,
    delay_queue::{DelayQueue, advance_clock, enter},
    lazy_heap::LazyHeap,
    timer_queue::TimerQueue,
    wheel::Wheel,
};

/// A contestant whose type is hidden: its name, and every measurement.
#[derive(Clone, Copy)]
pub struct Entrant {
    pub name: &'static str,
    pub at_work: for<'a> fn(&'a Traffic, Duration) -> AtWork<'a>,
    pub drain: fn(&[u64]) -> (Duration, Drained),
    pub memory: fn(&Turn, &memory::Heap) -> Vec<Figure>,
}

impl Entrant {
    const fn of<T: Timers + Default + 'static>() -> Self {
        Self {
            name: T::NAME,
            at_work: measure::at_work::<T>,
            drain: measure::drain_once::<T>,
            memory: memory::of_timers::<T>,
        }
    }
}

/// All contestants, ours first.
pub const ALL: [Entrant; 5] = [
    Entrant::of::<Wheel>(),
    Entrant::of::<LazyHeap>(),
    Entrant::of::<BTree>(),
    Entrant::of::<DelayQueue>(),
    Entrant::of::<TimerQueue>(),
];
