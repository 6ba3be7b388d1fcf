//! What requests wait for: keys and delays from a seed, drawn before anything is timed.

use std::{
    ops::{Range, RangeInclusive},
    time::Duration,
};

use fastrand::Rng;

/// Delays in milliseconds: longer than anything here takes.
const DELAYS_MS: RangeInclusive<u32> = 30_000..=90_000;

/// What a request waits for.
#[derive(Debug, Clone, Copy)]
pub struct Demand<const KEYS: usize> {
    /// Different ones.
    pub keys: [u32; KEYS],
    delay_ms: u32,
}

impl<const KEYS: usize> Demand<KEYS> {
    /// For how long it waits.
    #[inline]
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_millis(u64::from(self.delay_ms))
    }
}

/// Draws what requests wait for: different keys of a range, and delays of 30 to 90 s.
#[must_use]
pub fn demands<const KEYS: usize>(seed: u64, keys: Range<u32>, count: usize) -> Vec<Demand<KEYS>> {
    let mut rng = Rng::with_seed(seed);
    let demand = |_| Demand { keys: distinct(&mut rng, &keys), delay_ms: rng.u32(DELAYS_MS) };
    (0..count).map(demand).collect()
}

/// Draws what requests wait for, each on keys of its own.
///
/// # Panics
///
/// If there are not enough numbers.
#[must_use]
pub fn demands_apart<const KEYS: usize>(seed: u64, count: usize) -> Vec<Demand<KEYS>> {
    let mut rng = Rng::with_seed(seed);
    let mut numbers = 0..u32::MAX;
    let demand = |_| {
        let keys = [(); KEYS].map(|()| numbers.next().expect("fewer than 2^32 keys are needed"));
        Demand { keys, delay_ms: rng.u32(DELAYS_MS) }
    };
    (0..count).map(demand).collect()
}

fn distinct<const KEYS: usize>(rng: &mut Rng, range: &Range<u32>) -> [u32; KEYS] {
    assert!(range.len() >= KEYS, "there are not {KEYS} different keys in {range:?}");
    let mut keys = [0; KEYS];
    for index in 0..KEYS {
        keys[index] = rng.u32(range.clone());
        while keys[..index].contains(&keys[index]) {
            keys[index] = rng.u32(range.clone());
        }
    }
    keys
}
