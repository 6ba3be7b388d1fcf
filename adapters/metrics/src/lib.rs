//! The counts of timers of [`delaywheel`], for the facade [`metrics`].
//!
//! A package of its own, so that a new version of the facade does not force a new version of
//! `delaywheel`.
#![forbid(unsafe_code)]

use std::time::Duration;

use delaywheel::{Histogram, TimerStats};
use metrics::{Counter, Gauge, Unit, counter, gauge, histogram};

/// Publishes the counts of a timer to the recorder of the `metrics` crate.
///
/// A timer always counts, under locks that it holds anyway. Publishing only reads the counts, so
/// scheduling, cancelling and expiring take no longer. Call [`publish`](Self::publish) before each
/// scrape, or every few seconds, with the stats of a `Timer`, `ValueTimer` or `DelayQueue`. A
/// repeated callback of a timer can do that. If it publishes its own timer, it holds a clone of the
/// timer, which keeps the timer running until it is shut down.
///
/// Each metric has a label `timer` with the given name:
///
/// | Metric | |
/// |-|-|
/// | `delaywheel_timer_pending` | gauge |
/// | `delaywheel_timer_waiting` | gauge: expired timeouts that wait for a thread or a receiver |
/// | `delaywheel_timer_scheduled_total` | counter |
/// | `delaywheel_timer_expired_total` | counter |
/// | `delaywheel_timer_cancelled_total` | counter |
/// | `delaywheel_timer_refused_total` | counter |
/// | `delaywheel_timer_returned_total` | counter |
/// | `delaywheel_timer_panicked_total` | counter |
/// | `delaywheel_timer_wakeups_total` | counter |
/// | `delaywheel_timer_lateness_seconds` | histogram of the timeouts that expired since the last call |
///
/// A recorder may store each value of a histogram. So a call records about 4096 values at most. If
/// more timeouts have expired, it records a sample in proportion, with at least one value of each
/// bucket of [`Histogram`]. The counter `delaywheel_timer_expired_total` is exact, unless sleeps
/// are reset to a later deadline: such a sleep may count as expired until its task polls it, and a
/// counter that never falls shows the greatest count so far.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{MissedTicks, Timer};
/// use delaywheel_metrics::TimerMetrics;
///
/// let requests = Timer::new();
/// // After the program has installed its recorder.
/// let mut metrics = TimerMetrics::new("requests");
/// metrics.publish(&requests.stats());
///
/// let upkeep = Timer::new();
/// upkeep.repeat(Duration::from_secs(10)).at_fixed_rate(MissedTicks::Skip, move |_| {
///     metrics.publish(&requests.stats());
/// })?;
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct TimerMetrics {
    pending: Gauge,
    waiting: Gauge,
    scheduled: Counter,
    expired: Counter,
    cancelled: Counter,
    refused: Counter,
    returned: Counter,
    panicked: Counter,
    wakeups: Counter,
    lateness: metrics::Histogram,
    /// The lateness that has been published.
    published: Histogram,
}

/// Values of the histogram that a call records, about.
const SAMPLES: u64 = 4096;

impl TimerMetrics {
    /// Registers the metrics of a timer with the installed recorder, under a name of the timer.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        describe();
        let labels = [("timer", name.into())];
        Self {
            pending: gauge!("delaywheel_timer_pending", &labels),
            waiting: gauge!("delaywheel_timer_waiting", &labels),
            scheduled: counter!("delaywheel_timer_scheduled_total", &labels),
            expired: counter!("delaywheel_timer_expired_total", &labels),
            cancelled: counter!("delaywheel_timer_cancelled_total", &labels),
            refused: counter!("delaywheel_timer_refused_total", &labels),
            returned: counter!("delaywheel_timer_returned_total", &labels),
            panicked: counter!("delaywheel_timer_panicked_total", &labels),
            wakeups: counter!("delaywheel_timer_wakeups_total", &labels),
            lateness: histogram!("delaywheel_timer_lateness_seconds", &labels),
            published: Histogram::default(),
        }
    }

    /// Publishes the counts, and the lateness of the timeouts that expired since the last call.
    ///
    /// # Complexity
    ///
    /// Takes a few microseconds without the recorder, and records up to 4608 values of lateness.
    pub fn publish(&mut self, stats: &TimerStats) {
        #[expect(clippy::cast_precision_loss, reason = "it need not be exact past 2^53")]
        let [pending, waiting] = [stats.pending, stats.waiting].map(|count| count as f64);
        self.pending.set(pending);
        self.waiting.set(waiting);
        self.scheduled.absolute(stats.scheduled);
        self.expired.absolute(stats.expired);
        self.cancelled.absolute(stats.cancelled);
        self.refused.absolute(stats.refused);
        self.returned.absolute(stats.returned);
        self.panicked.absolute(stats.panicked);
        self.wakeups.absolute(stats.wakeups);
        let total = stats.lateness.count().saturating_sub(self.published.count());
        for (lateness, count) in stats.lateness.since(&self.published) {
            self.record(lateness, sample(count, total));
        }
        self.published = stats.lateness.clone();
    }

    fn record(&self, lateness: Duration, count: u64) {
        self.lateness.record_many(lateness, usize::try_from(count).unwrap_or(usize::MAX));
    }
}

/// Returns how many of the `count` values of a bucket to record if there are `total` values.
fn sample(count: u64, total: u64) -> u64 {
    if total <= SAMPLES {
        return count;
    }
    let share = u128::from(count) * u128::from(SAMPLES) / u128::from(total);
    let sample = u64::try_from(share).unwrap_or(u64::MAX).max(1);
    debug_assert!(sample <= count, "a sample of {sample} of {count} values");
    sample
}

/// Registers the units and descriptions of the metrics.
fn describe() {
    metrics::describe_gauge!("delaywheel_timer_pending", Unit::Count, "Timeouts that are pending");
    let text = "Expired timeouts that wait for a thread or a receiver";
    metrics::describe_gauge!("delaywheel_timer_waiting", Unit::Count, text);
    let counters = [
        ("delaywheel_timer_scheduled_total", "Timeouts that were accepted"),
        ("delaywheel_timer_expired_total", "Timeouts that became due and were handed off"),
        ("delaywheel_timer_cancelled_total", "Timeouts that were cancelled"),
        ("delaywheel_timer_refused_total", "Timeouts that were refused"),
        ("delaywheel_timer_returned_total", "Pending timeouts that a shutdown returned"),
        ("delaywheel_timer_panicked_total", "Callbacks that panicked"),
        ("delaywheel_timer_wakeups_total", "Times that the reaper woke"),
    ];
    for (name, text) in counters {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    let text = "Time from the deadline, rounded up to a tick, to hand-off";
    metrics::describe_histogram!("delaywheel_timer_lateness_seconds", Unit::Seconds, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_in_proportion_and_has_a_value_of_each_bucket() {
        assert_eq!(sample(4096, 4096), 4096);
        assert_eq!((sample(1, 1_000_000), sample(500_000, 1_000_000)), (1, 2048));
        assert_eq!(sample(u64::MAX, u64::MAX), SAMPLES);
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
