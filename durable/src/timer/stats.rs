//! Statistics of a timer.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

#[cfg(feature = "metrics")]
use std::mem;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::policy::Left;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since a timer was built, and the numbers of records that it holds now.
        ///
        /// They do not include other processes. [`DurableTimer::count`](crate::DurableTimer::count)
        /// and [`DurableTimer::count_due`](crate::DurableTimer::count_due) return numbers of the
        /// store.
        #[derive(Debug, Clone, Default)]
        #[non_exhaustive]
        pub struct DurableStats {
            /// Timeouts in memory that are not due.
            pub window: usize,
            /// Timeouts in memory that are due and whose delivery has not begun.
            pub due: usize,
            /// Deliveries under way.
            pub delivering: usize,
            $($(#[$doc])* pub $name: u64,)*
            /// Time from the due time to the begin of the delivery.
            pub lateness: Latency,
            /// Time that a transaction of the group commit takes.
            pub store_latency: Latency,
        }

        #[cfg(feature = "metrics")]
        impl DurableStats {
            fn publish_counters(&self) {
                $(
                    let name = concat!("delaywheel_durable_", stringify!($name), "_total");
                    metrics::counter!(name).absolute(self.$name);
                )*
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(super) $name: Counter,)*
            /// Records in the window, due, and being delivered.
            held: Mutex<(usize, usize, usize)>,
            pub(super) lateness: Durations,
            pub(super) store_latency: Durations,
            pub(super) left: Left,
        }

        impl Counters {
            pub(super) fn hold(&self, held: (usize, usize, usize)) {
                *self.held.lock() = held;
            }

            /// Publishes the counts, and the durations since they were published last.
            #[cfg(feature = "metrics")]
            pub(super) fn publish(&self) {
                self.read().publish();
                self.lateness.publish("delaywheel_durable_lateness_seconds");
                self.store_latency.publish("delaywheel_durable_store_latency_seconds");
            }

            pub(super) fn read(&self) -> DurableStats {
                let (window, due, delivering) = *self.held.lock();
                DurableStats {
                    window,
                    due,
                    delivering,
                    $($name: self.$name.get(),)*
                    lateness: self.lateness.summary(),
                    store_latency: self.store_latency.summary(),
                }
            }
        }
    };
}

counters! {
    /// Deliveries that began, attempts after the first included.
    deliveries,
    /// Acknowledged deliveries.
    acknowledged,
    /// Attempts that failed and are tried again.
    retries,
    /// Timeouts that became dead.
    dead,
    /// Timeouts and occurrences that a policy skipped. Those that [`Missed`](crate::Missed) passes
    /// over at once count as one, or none after a delivery.
    skipped,
    /// Claims and settlements that the store refused, because the record was cancelled, replaced or
    /// taken over by another worker. SQLite also refuses a claim made while a commit changes the
    /// record, such as the one that schedules it. The record is then claimed again.
    fenced,
    /// Deliveries that exceeded the handler limit.
    overruns,
    /// Leases that were lost.
    lost_leases,
    /// Steps of the wall clock that were noticed: backward, or reported by the system.
    clock_steps,
    /// Operations of the store that failed.
    store_errors,
    /// Claims of records.
    claims,
    /// Claims that found no record, because another worker had claimed it or none was due.
    empty_claims,
    /// Transactions of the group commit, and the commands in them.
    commits,
    /// Commands in these transactions.
    commands,
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
    fn publish(&self) {
        self.publish_counters();
        let held = [
            ("delaywheel_durable_window", self.window),
            ("delaywheel_durable_due", self.due),
            ("delaywheel_durable_delivering", self.delivering),
        ];
        for (name, value) in held {
            metrics::gauge!(name).set(super::gauges::float(value));
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A distribution of durations, in microseconds and to two digits.
#[derive(Debug)]
pub(super) struct Durations {
    all: Mutex<Histogram<u64>>,
    /// Those that were not published yet. So the recorder of the user runs where the user
    /// publishes, and under no lock.
    #[cfg(feature = "metrics")]
    unpublished: Mutex<Histogram<u64>>,
}

impl Durations {
    pub(super) fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.all.lock().saturating_record(micros);
        #[cfg(feature = "metrics")]
        self.unpublished.lock().saturating_record(micros);
    }

    #[cfg(feature = "metrics")]
    fn publish(&self, name: &'static str) {
        let unpublished = mem::replace(&mut *self.unpublished.lock(), empty());
        let histogram = metrics::histogram!(name);
        for value in unpublished.iter_recorded() {
            let duration = Duration::from_micros(value.value_iterated_to());
            let count = usize::try_from(value.count_at_value()).unwrap_or(usize::MAX);
            histogram.record_many(duration.as_secs_f64(), count);
        }
    }

    fn summary(&self) -> Latency {
        let histogram = self.all.lock();
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
        Self {
            all: Mutex::new(empty()),
            #[cfg(feature = "metrics")]
            unpublished: Mutex::new(empty()),
        }
    }
}

fn empty() -> Histogram<u64> {
    const YEAR: u64 = 366 * 86_400 * 1_000_000;
    Histogram::new_with_bounds(1, YEAR, 2).expect("the bounds are valid")
}
