//! What `publish_metrics` publishes, and the dashboard that shows it.

use std::collections::BTreeSet;

use ::metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use parking_lot::Mutex;

use super::*;

/// The published metrics, with the values of the histograms.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<String, Arc<Values>>>);

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().push(value);
    }
}

impl Seen {
    fn note(&self, key: &Key) -> Arc<Values> {
        Arc::clone(self.0.lock().entry(key.name().to_owned()).or_default())
    }

    /// Returns the values of a histogram since the last call.
    fn values(&self, name: &str) -> Vec<f64> {
        std::mem::take(&mut self.0.lock()[name].0.lock())
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.note(key))
    }
}

fn names() -> BTreeSet<String> {
    let seen = Seen::default();
    let timer = acknowledging(SqliteStore::in_memory(), &ManualClock::new());
    with_local_recorder(&seen, || timer.publish_metrics());
    seen.0.into_inner().into_keys().collect()
}

#[test]
fn each_duration_is_published_once_as_a_value_of_a_histogram() {
    let (clock, seen) = (ManualClock::new(), Seen::default());
    let timer = acknowledging(SqliteStore::in_memory(), &clock);
    let publish = || with_local_recorder(&seen, || timer.publish_metrics());
    let lateness = || seen.values("delaywheel_durable_lateness_seconds");
    for (id, delay) in [("a", 10), ("b", 13), ("c", 13)] {
        timer.schedule(id, delay * SECOND, b"").wait().expect("schedule");
    }
    // Without a stop in between, so the first is late by 4 seconds and the others by one.
    clock.jump(14 * SECOND);
    publish();
    let values = lateness();
    assert!(values.is_sorted() && values.len() == 3, "{values:?}");
    for (value, expected) in values.iter().zip([1.0, 1.0, 4.0]) {
        assert!((value / expected - 1.0).abs() < 0.01, "{values:?}");
    }
    let commits = seen.values("delaywheel_durable_store_latency_seconds").len();
    assert_eq!(commits as u64, timer.stats().store_latency.count);
    publish();
    assert_eq!(lateness(), [0.0; 0]);
    timer.schedule("d", SECOND, b"").wait().expect("schedule");
    clock.advance(SECOND);
    publish();
    assert_eq!(lateness().len(), 1);
}

/// The names in the expressions of the dashboard. Prometheus adds `_bucket` to a histogram.
#[test]
fn the_dashboard_shows_what_is_published_and_nothing_else() {
    let lines = include_str!("../../grafana.json").lines();
    let expressions = lines.filter(|line| line.contains("\"expr\":"));
    let words = expressions.flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let shown = words.filter(|word| word.starts_with("delaywheel_durable_"));
    let shown: BTreeSet<_> =
        shown.map(|name| name.trim_end_matches("_bucket").to_owned()).collect();
    assert_eq!(shown, names());
    // Two histograms, and three gauges: numbers of timeouts in memory.
    let totals = shown.iter().filter(|name| name.ends_with("_total")).count();
    assert_eq!((shown.len(), totals), (19, 14), "{shown:?}");
}
