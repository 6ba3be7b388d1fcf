//! Statistics of a timer.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

#[cfg(feature = "metrics")]
use std::mem;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

#[cfg(feature = "metrics")]
use rustc_hash::FxHashSet;

#[cfg(feature = "metrics")]
use super::Receipt;
#[cfg(feature = "metrics")]
use crate::{record::Name, store::QueueOverview, time::WallTime};

/// Most queues that are published.
#[cfg(feature = "metrics")]
pub(super) const QUEUES: usize = 100;

/// Most timeouts of a queue that are counted for one number.
#[cfg(feature = "metrics")]
pub(super) const COUNTED: usize = 10_000;

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
    /// Timeouts and occurrences that a policy skipped.
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
            metrics::gauge!(name).set(float(value));
        }
    }
}

/// Counts of queues at a time.
#[cfg(feature = "metrics")]
pub(super) type Queues = (WallTime, Vec<QueueOverview>);

#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
pub(super) struct QueueGauges {
    /// The counts to be published next.
    pub(super) asked: Option<Receipt<Queues>>,
    /// Queues of the counts that were published last.
    pub(super) published: FxHashSet<Name>,
}

/// Publishes counts. Queues that were published before, and have no counts now, get NaN: the
/// maximum over several processes then ignores them.
#[cfg(feature = "metrics")]
pub(super) fn publish_queues((now, queues): &Queues, mut before: FxHashSet<Name>) {
    for seen in queues {
        let name = &seen.queue.name;
        let waits = seen.oldest_waiting.map_or(Duration::ZERO, |oldest| now.since(oldest));
        let counts = [seen.live, seen.due, seen.delivering, seen.dead].map(float);
        set(name, counts, f64::from(u8::from(seen.queue.is_paused)), waits.as_secs_f64());
        before.remove(name);
    }
    for name in &before {
        set(name, [f64::NAN; 4], f64::NAN, f64::NAN);
    }
}

#[cfg(feature = "metrics")]
fn set(queue: &Name, [live, due, delivering, dead]: [f64; 4], is_paused: f64, waits: f64) {
    for (name, value) in [
        ("delaywheel_durable_queue_live", live),
        ("delaywheel_durable_queue_due", due),
        ("delaywheel_durable_queue_delivering", delivering),
        ("delaywheel_durable_queue_dead", dead),
        ("delaywheel_durable_queue_paused", is_paused),
        ("delaywheel_durable_queue_oldest_waiting_seconds", waits),
    ] {
        metrics::gauge!(name, "queue" => queue.to_string()).set(value);
    }
}

#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact past 2^53")]
fn float(value: usize) -> f64 {
    value as f64
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
