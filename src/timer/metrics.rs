//! What a timer counts, for the `metrics` facade.

use std::{string::String, time::Duration};

use metrics::{Counter, Gauge, Unit, counter, gauge, histogram};

use super::stats::TimerStats;
use crate::histogram::Histogram;

/// Publishes what a timer counts to the recorder of the `metrics` crate.
///
/// A timer counts anyway, under locks that it holds anyway. Publishing is looking at that, so that
/// scheduling, cancelling and expiring pay nothing for it. Call [`publish`](Self::publish) before
/// each scrape, or every few seconds, with the stats of a `Timer`, `ValueTimer` or `DelayQueue`:
/// from the program's own upkeep loop, or as a repeated callback of a timer. One that publishes its
/// own timer holds a clone of that, which keeps it running until it is shut down.
///
/// Each metric has a label `timer` with the name given:
///
/// | Metric | |
/// |-|-|
/// | `delaywheel_timer_pending` | gauge |
/// | `delaywheel_timer_scheduled_total` | counter |
/// | `delaywheel_timer_expired_total` | counter |
/// | `delaywheel_timer_cancelled_total` | counter |
/// | `delaywheel_timer_rejected_total` | counter |
/// | `delaywheel_timer_returned_total` | counter |
/// | `delaywheel_timer_panicked_total` | counter |
/// | `delaywheel_timer_wakeups_total` | counter |
/// | `delaywheel_timer_cascades_total` | counter |
/// | `delaywheel_timer_lateness_seconds` | histogram of what expired since the last time |
///
/// A histogram may store all that is recorded in it. So no more than about 4096 values are recorded
/// at a time: of more timeouts, a part in proportion, and at least one of each bucket of
/// [`Histogram`]. Their number is that of `expired`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{MissedTicks, Timer, TimerMetrics};
///
/// let requests = Timer::new();
/// // After the program has installed its recorder.
/// let mut metrics = TimerMetrics::new("requests");
/// metrics.publish(&requests.stats());
///
/// let upkeep = Timer::new();
/// upkeep.schedule_at_fixed_rate(Duration::from_secs(10), MissedTicks::Skip, move |_| {
///     metrics.publish(&requests.stats());
/// })?;
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct TimerMetrics {
    pending: Gauge,
    scheduled: Counter,
    expired: Counter,
    cancelled: Counter,
    rejected: Counter,
    returned: Counter,
    panicked: Counter,
    wakeups: Counter,
    cascades: Counter,
    lateness: metrics::Histogram,
    /// What has been published of it.
    published: Histogram,
}

/// How much of a histogram is recorded at a time, about.
const SAMPLES: u64 = 4096;

impl TimerMetrics {
    /// Registers the metrics of a timer at the recorder that is installed, under a name of the
    /// timer.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        describe();
        let labels = [("timer", name.into())];
        Self {
            pending: gauge!("delaywheel_timer_pending", &labels),
            scheduled: counter!("delaywheel_timer_scheduled_total", &labels),
            expired: counter!("delaywheel_timer_expired_total", &labels),
            cancelled: counter!("delaywheel_timer_cancelled_total", &labels),
            rejected: counter!("delaywheel_timer_rejected_total", &labels),
            returned: counter!("delaywheel_timer_returned_total", &labels),
            panicked: counter!("delaywheel_timer_panicked_total", &labels),
            wakeups: counter!("delaywheel_timer_wakeups_total", &labels),
            cascades: counter!("delaywheel_timer_cascades_total", &labels),
            lateness: histogram!("delaywheel_timer_lateness_seconds", &labels),
            published: Histogram::new(),
        }
    }

    /// Publishes the counts, and what of the lateness has come since the last time.
    ///
    /// # Complexity
    ///
    /// Takes a few microseconds, besides what the recorder does; up to 4608 values of lateness.
    pub fn publish(&mut self, stats: &TimerStats) {
        #[expect(clippy::cast_precision_loss, reason = "it need not be exact past 2^53")]
        self.pending.set(stats.pending as f64);
        self.scheduled.absolute(stats.scheduled);
        self.expired.absolute(stats.expired);
        self.cancelled.absolute(stats.cancelled);
        self.rejected.absolute(stats.rejected);
        self.returned.absolute(stats.returned);
        self.panicked.absolute(stats.panicked);
        self.wakeups.absolute(stats.wakeups);
        self.cascades.absolute(stats.cascades);
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

/// How many of `count` are recorded, if there are `total` in all.
fn sample(count: u64, total: u64) -> u64 {
    if total <= SAMPLES {
        return count;
    }
    let share = u128::from(count) * u128::from(SAMPLES) / u128::from(total);
    u64::try_from(share).unwrap_or(u64::MAX).max(1)
}

/// Tells the recorder what the metrics are.
fn describe() {
    metrics::describe_gauge!("delaywheel_timer_pending", Unit::Count, "Timeouts that are pending");
    let counters = [
        ("delaywheel_timer_scheduled_total", "Timeouts that were taken in"),
        ("delaywheel_timer_expired_total", "Timeouts that became due and were passed on"),
        ("delaywheel_timer_cancelled_total", "Timeouts that were cancelled"),
        ("delaywheel_timer_rejected_total", "Timeouts that were refused"),
        ("delaywheel_timer_returned_total", "Timeouts that a shutdown took out"),
        ("delaywheel_timer_panicked_total", "Callbacks that panicked"),
        ("delaywheel_timer_wakeups_total", "Times that the reaper was woken"),
        ("delaywheel_timer_cascades_total", "Moves of a timeout to a finer level"),
    ];
    for (name, text) in counters {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    let text = "How late timeouts were when they were passed on";
    metrics::describe_histogram!("delaywheel_timer_lateness_seconds", Unit::Seconds, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_in_proportion_and_leaves_no_step_out() {
        assert_eq!(sample(4096, 4096), 4096);
        assert_eq!((sample(1, 1_000_000), sample(500_000, 1_000_000)), (1, 2048));
        assert_eq!(sample(u64::MAX, u64::MAX), SAMPLES);
    }
}
