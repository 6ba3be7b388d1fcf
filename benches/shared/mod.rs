//! Shared by the three benchmarks: settings, names of sizes, and time per operation.

use std::time::Duration;

use criterion::{Bencher, Criterion};

/// Seed of all random numbers.
pub(crate) const SEED: u64 = 7;

/// Numbers of pending timeouts or waiting operations, with their names.
pub(crate) const SIZES: [(u32, &str); 3] = [(1_000, "1e3"), (100_000, "1e5"), (1_000_000, "1e6")];

/// Returns settings with few samples, since the untimed part of a batch takes longer than the timed
/// one.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args()
}

/// Reports the time of one operation. A batch performs `count` operations and returns the time they
/// took.
pub(crate) fn per_operation(
    bencher: &mut Bencher<'_>,
    count: u32,
    mut batch: impl FnMut() -> Duration,
) {
    bencher.iter_custom(|iterations| {
        let batches = iterations.div_ceil(u64::from(count));
        let total: Duration = (0..batches).map(|_| batch()).sum();
        total.mul_f64(ratio(iterations, batches * u64::from(count)))
    });
}

#[expect(clippy::cast_precision_loss, reason = "criterion asks for far fewer than 2^53 iterations")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
