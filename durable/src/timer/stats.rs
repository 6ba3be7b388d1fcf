//! Statistics of a timer.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Counts since a timer was built, and the numbers of records that it holds now.
///
/// [`DurableTimer::count`](crate::DurableTimer::count) returns the numbers of the store.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DurableStats {
    /// Timeouts in memory that are not due.
    pub window: usize,
    /// Timeouts in memory that are due and whose delivery has not begun.
    pub due: usize,
    /// Deliveries under way.
    pub delivering: usize,
    /// Deliveries that began, attempts after the first included.
    pub deliveries: u64,
    /// Acknowledged deliveries.
    pub acknowledged: u64,
    /// Attempts that failed and are tried again.
    pub retries: u64,
    /// Timeouts that became dead.
    pub dead: u64,
    /// Timeouts and occurrences that a policy skipped.
    pub skipped: u64,
    /// Claims and settlements that the store refused, because the record was cancelled, replaced or
    /// taken over by another worker.
    pub fenced: u64,
    /// Deliveries that exceeded the handler limit.
    pub overruns: u64,
    /// Leases that were lost.
    pub lost_leases: u64,
    /// Steps of the wall clock that were noticed: backward, or reported by the system.
    pub clock_steps: u64,
    /// Operations of the store that failed.
    pub store_errors: u64,
    /// Transactions of the group commit, and the commands in them.
    pub commits: u64,
    /// Commands in these transactions.
    pub commands: u64,
    /// Time from the due time to the begin of the delivery.
    pub lateness: Latency,
    /// Time that a transaction of the group commit takes.
    pub store_latency: Latency,
}

/// Summary of a distribution of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// Number of durations.
    pub count: u64,
    /// Median.
    pub p50: Duration,
    /// 99 of 100 are not longer.
    pub p99: Duration,
    /// Longest.
    pub max: Duration,
}

#[cfg(feature = "metrics")]
impl DurableStats {
    /// Publishes the counts through the facade `metrics`.
    pub(super) fn publish(&self) {
        let counters = [
            ("delaywheel_durable_deliveries_total", self.deliveries),
            ("delaywheel_durable_acknowledged_total", self.acknowledged),
            ("delaywheel_durable_retries_total", self.retries),
            ("delaywheel_durable_dead_total", self.dead),
            ("delaywheel_durable_skipped_total", self.skipped),
            ("delaywheel_durable_fenced_total", self.fenced),
            ("delaywheel_durable_store_errors_total", self.store_errors),
        ];
        for (name, value) in counters {
            metrics::counter!(name).absolute(value);
        }
        let gauges = [
            ("delaywheel_durable_window", self.window),
            ("delaywheel_durable_due", self.due),
            ("delaywheel_durable_delivering", self.delivering),
        ];
        for (name, value) in gauges {
            #[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact past 2^53")]
            metrics::gauge!(name).set(value as f64);
        }
        let latencies = [
            ("delaywheel_durable_lateness_p99_seconds", self.lateness.p99),
            ("delaywheel_durable_store_latency_p99_seconds", self.store_latency.p99),
        ];
        for (name, value) in latencies {
            metrics::gauge!(name).set(value.as_secs_f64());
        }
    }
}

/// Counters of a timer.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(super) deliveries: Counter,
    pub(super) acknowledged: Counter,
    pub(super) retries: Counter,
    pub(super) dead: Counter,
    pub(super) skipped: Counter,
    pub(super) fenced: Counter,
    pub(super) overruns: Counter,
    pub(super) lost_leases: Counter,
    pub(super) clock_steps: Counter,
    pub(super) store_errors: Counter,
    pub(super) commits: Counter,
    pub(super) commands: Counter,
    pub(super) lateness: Durations,
    pub(super) store_latency: Durations,
}

impl Counters {
    pub(super) fn read(&self) -> DurableStats {
        DurableStats {
            deliveries: self.deliveries.get(),
            acknowledged: self.acknowledged.get(),
            retries: self.retries.get(),
            dead: self.dead.get(),
            skipped: self.skipped.get(),
            fenced: self.fenced.get(),
            overruns: self.overruns.get(),
            lost_leases: self.lost_leases.get(),
            clock_steps: self.clock_steps.get(),
            store_errors: self.store_errors.get(),
            commits: self.commits.get(),
            commands: self.commands.get(),
            lateness: self.lateness.summary(),
            store_latency: self.store_latency.summary(),
            ..DurableStats::default()
        }
    }
}

/// A number that only grows.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A distribution of durations, in microseconds and to two digits.
#[derive(Debug)]
pub(super) struct Durations(Mutex<Histogram<u64>>);

impl Durations {
    pub(super) fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.0.lock().saturating_record(micros);
    }

    fn summary(&self) -> Latency {
        let histogram = self.0.lock();
        let at = |quantile| Duration::from_micros(histogram.value_at_quantile(quantile));
        Latency {
            count: histogram.len(),
            p50: at(0.5),
            p99: at(0.99),
            max: Duration::from_micros(histogram.max()),
        }
    }
}

impl Default for Durations {
    fn default() -> Self {
        const YEAR: u64 = 366 * 86_400 * 1_000_000;
        Self(Mutex::new(Histogram::new_with_bounds(1, YEAR, 2).expect("the bounds are valid")))
    }
}
