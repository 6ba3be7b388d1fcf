//! When requests arrive and complete, and on which keys they wait: drawn before anything is timed.

use std::{f64::consts::TAU, time::Duration};

use delaywheel_compare::delivered::nanos;
use fastrand::Rng;

use crate::options::{Latency, Options};

/// What happens in a run; times are nanoseconds from its beginning.
pub(crate) struct Schedule {
    /// When each request arrives, in order.
    pub(crate) arrivals: Vec<u64>,
    /// When requests complete, in order, and which; only those that do before their timeout.
    pub(crate) completions: Vec<(u64, u32)>,
    /// Keys of the requests, one request after the other.
    keys: Vec<u32>,
    keys_each: usize,
}

impl Schedule {
    pub(crate) fn new(options: &Options, latency: Latency) -> Self {
        let mut rng = Rng::with_seed(1);
        let (timeout, num) = (nanos(options.timeout), options.num());
        let mut arrivals = Vec::with_capacity(num as usize);
        let mut completions = Vec::new();
        let mut arrival = 0.0;
        for request in 0..num {
            // An interval of a Poisson process.
            arrival -= (1.0 - rng.f64()).ln() / f64::from(options.rate);
            let at = nanos(Duration::from_secs_f64(arrival));
            arrivals.push(at);
            let latency = latency.draw(&mut rng);
            if latency < timeout {
                completions.push((at + latency, request));
            }
        }
        completions.sort_unstable();
        let keys_each = options.keys;
        let keys = (0..num as usize * keys_each).map(|_| rng.u32(0..options.key_space)).collect();
        Self { arrivals, completions, keys, keys_each }
    }

    #[inline]
    pub(crate) fn keys(&self, request: usize) -> &[u32] {
        &self.keys[request * self.keys_each..][..self.keys_each]
    }
}

impl Latency {
    /// Draws one, in nanoseconds.
    fn draw(self, rng: &mut Rng) -> u64 {
        /// Of the normal distribution.
        const PCT75: f64 = 0.674_490;
        let deviation = (self.pct75 / self.pct50).ln() / PCT75;
        let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (TAU * rng.f64()).cos();
        nanos(Duration::from_secs_f64(self.pct50 / 1e3 * (normal * deviation).exp()))
    }
}
