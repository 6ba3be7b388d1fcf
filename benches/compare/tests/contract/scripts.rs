//! The same random scripts for every contestant.

use std::thread;

use delaywheel_compare::{
    Promises, Timers, Wakes,
    timers::{self, Visitor},
};
use fastrand::Rng;

use crate::{hold_paused_clock, oracle::Checked};

const SEEDS: u64 = 100;

const STEPS: u32 = 300;

/// The longest delays: forty years, or a span that can be stepped through.
const FORTY_YEARS: u64 = 40 * 365 * 86_400_000;
const STEPPED: u64 = 100_000;

#[test]
fn every_contestant_keeps_its_promises() {
    struct Scripts;
    impl Visitor for Scripts {
        fn visit<T: Timers + Default + 'static>(&mut self) {
            for seed in 0..SEEDS {
                let _printed = Printed { contestant: T::NAME, seed };
                Script::new(seed, &T::PROMISES).run::<T>();
            }
        }
    }
    let _clock = hold_paused_clock();
    timers::visit_all(&mut Scripts);
}

/// Prints the failed script when a test panics.
struct Printed {
    contestant: &'static str,
    seed: u64,
}

impl Drop for Printed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} failed with seed {}", self.contestant, self.seed);
        }
    }
}

struct Script {
    rng: Rng,
    /// The longest delay.
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
            57..69 => checked.reset(nth, self.deadline(checked.now())),
            69..75 => checked.disturb_dead(nth),
            75..85 => checked.advance(checked.now() + self.span() / 128),
            _ => drop(checked.wake()),
        }
    }

    /// Mostly ahead, at times just past or at the longest delay.
    fn deadline(&mut self, now: u64) -> u64 {
        match self.rng.u32(0..20) {
            0 => now.saturating_sub(self.rng.u64(0..3)),
            1 => now + self.reach,
            _ => now + self.span(),
        }
    }

    /// A span of any magnitude, up to the longest delay.
    fn span(&mut self) -> u64 {
        let magnitude = self.rng.u32(0..=self.reach.ilog2());
        self.rng.u64(0..=(1 << magnitude)).min(self.reach)
    }
}
