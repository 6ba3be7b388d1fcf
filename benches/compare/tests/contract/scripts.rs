//! The same random scripts for every contestant.

use std::thread;

use delaywheel_compare::{
    Promises, Timers, Wakes,
    timers::{
        self, BTree, BitWheel, DelayQueue, HashWheel, IndexedHeap, Kafka, LazyHeap, Netty,
        NexusTimer, OrderedList, RingQueue, SimpleWheel, SortedHashedWheel, TickingWheel,
        TimerQueue, UnorderedList, Wheel,
    },
};
use fastrand::Rng;

use crate::{hold_paused_clock, oracle::Checked};

const SEEDS: u64 = 100;

const STEPS: u32 = 300;

/// The longest delay: forty years, or as many ticks as a test can step through.
const FORTY_YEARS: u64 = 40 * 365 * 86_400_000;
const STEPPED: u64 = 100_000;

#[test]
fn every_contestant_keeps_its_promises() {
    let _clock = hold_paused_clock();
    let all: &[(&str, fn())] = &[
        (Wheel::NAME, scripts::<Wheel>),
        (UnorderedList::NAME, scripts::<UnorderedList>),
        (OrderedList::NAME, scripts::<OrderedList>),
        (LazyHeap::NAME, scripts::<LazyHeap>),
        (IndexedHeap::NAME, scripts::<IndexedHeap>),
        (BTree::NAME, scripts::<BTree>),
        (SimpleWheel::NAME, scripts::<SimpleWheel>),
        (SortedHashedWheel::NAME, scripts::<SortedHashedWheel>),
        (Netty::NAME, scripts::<Netty>),
        (RingQueue::NAME, scripts::<RingQueue>),
        (TickingWheel::NAME, scripts::<TickingWheel>),
        (Kafka::NAME, scripts::<Kafka>),
        (DelayQueue::NAME, scripts::<DelayQueue>),
        (HashWheel::NAME, scripts::<HashWheel>),
        (NexusTimer::NAME, scripts::<NexusTimer>),
        (TimerQueue::NAME, scripts::<TimerQueue>),
        (BitWheel::NAME, scripts::<BitWheel>),
    ];
    let names: Vec<_> = timers::all().iter().map(|one| one.name()).collect();
    assert_eq!(all.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    all.iter().for_each(|(_, scripts)| scripts());
}

#[test]
fn ours_promises_everything() {
    let strict = Promises { scheme: Wheel::PROMISES.scheme, ..Promises::STRICT };
    assert_eq!(Wheel::PROMISES, strict);
}

fn scripts<T: Timers + Default>() {
    for seed in 0..SEEDS {
        let _told = ToldOnPanic { contestant: T::NAME, seed };
        Script::new(seed, &T::PROMISES).run::<T>();
    }
}

/// Prints the script that failed.
struct ToldOnPanic {
    contestant: &'static str,
    seed: u64,
}

impl Drop for ToldOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} failed with seed {}", self.contestant, self.seed);
        }
    }
}

struct Script {
    rng: Rng,
    /// How far ahead timeouts lie.
    reach: u64,
}

impl Script {
    fn new(seed: u64, promises: &Promises) -> Self {
        let reach = match promises.wakes {
            Wakes::Every(_) => STEPPED,
            Wakes::WhenBusy | Wakes::ForCancelled => FORTY_YEARS,
        };
        let reach = promises.max_delay.map_or(reach, |max_delay| max_delay.min(reach));
        Self { rng: Rng::with_seed(seed), reach }
    }

    fn run<T: Timers + Default>(mut self) {
        let mut checked = Checked::<T>::new();
        for _ in 0..STEPS {
            self.step(&mut checked);
        }
        while checked.wake() {}
    }

    fn step<T: Timers + Default>(&mut self, checked: &mut Checked<T>) {
        let nth = self.rng.usize(..);
        match self.rng.u32(0..100) {
            0..45 => checked.insert(self.deadline(checked.now())),
            45..57 => checked.cancel(nth),
            57..69 => {
                checked.reset(nth, self.deadline(checked.now()));
            }
            69..75 => checked.disturb_dead(nth),
            75..85 => checked.advance(checked.now() + self.span() / 128),
            _ => drop(checked.wake()),
        }
    }

    /// Mostly ahead; at times just past, or at the limit of the contestant.
    fn deadline(&mut self, now: u64) -> u64 {
        match self.rng.u32(0..20) {
            0 => now.saturating_sub(self.rng.u64(0..3)),
            1 => now + self.reach,
            _ => now + self.span(),
        }
    }

    /// A span of any magnitude, up to the reach.
    fn span(&mut self) -> u64 {
        let magnitude = self.rng.u32(0..=self.reach.ilog2());
        self.rng.u64(0..=(1 << magnitude)).min(self.reach)
    }
}
