//! The metrics of a timer, by a recorder that stores them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use delaywheel::{ManualClock, Timer};
use delaywheel_metrics::TimerMetrics;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

const SECOND: Duration = Duration::from_secs(1);

/// Published values, by metric and timer.
#[derive(Debug, Default, Clone)]
struct Book {
    values: Arc<Mutex<BTreeMap<String, f64>>>,
    recorded: Arc<Mutex<Vec<f64>>>,
    described: Arc<Mutex<Vec<String>>>,
}

/// One metric in the book.
struct Entry(Book, String);

impl Entry {
    fn set(&self, value: f64) {
        self.0.values.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl CounterFn for Entry {
    fn increment(&self, _: u64) {
        panic!("counters are published as they are");
    }

    fn absolute(&self, value: u64) {
        self.set(f64::from(u32::try_from(value).unwrap()));
    }
}

impl GaugeFn for Entry {
    fn increment(&self, _: f64) {
        panic!("gauges are published as they are");
    }

    fn decrement(&self, _: f64) {
        panic!("gauges are published as they are");
    }

    fn set(&self, value: f64) {
        Self::set(self, value);
    }
}

impl HistogramFn for Entry {
    fn record(&self, value: f64) {
        self.0.recorded.lock().unwrap().push(value);
    }
}

impl Book {
    fn entry(&self, key: &Key) -> Arc<Entry> {
        let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
        assert_eq!(labels, [("timer", "requests")]);
        Arc::new(Entry(self.clone(), key.name().to_owned()))
    }

    fn value(&self, name: &str) -> f64 {
        self.values.lock().unwrap()[&format!("delaywheel_timer_{name}")]
    }

    fn recorded(&self) -> Vec<f64> {
        std::mem::take(&mut self.recorded.lock().unwrap())
    }

    fn describe(&self, name: &KeyName, text: &SharedString) {
        assert!(!text.is_empty());
        self.described.lock().unwrap().push(name.as_str().to_owned());
    }
}

impl Recorder for Book {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        assert_eq!(unit, Some(Unit::Seconds));
        self.describe(&name, &text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.entry(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.entry(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.entry(key))
    }
}

/// A timer in virtual time, its metrics, and where they go.
fn published() -> (ManualClock, Timer, TimerMetrics, Book) {
    let (clock, book) = (ManualClock::new(), Book::default());
    let timer = Timer::builder().clock(clock.clone()).max_pending(10_000).build().unwrap();
    let metrics = metrics::with_local_recorder(&book, || TimerMetrics::new("requests"));
    (clock, timer, metrics, book)
}

#[test]
fn every_count_of_a_timer_is_published_and_described() {
    let (clock, timer, mut metrics, book) = published();
    let timeouts: Vec<_> = (0..20).map(|_| timer.schedule(10 * SECOND, || ()).unwrap()).collect();
    for timeout in &timeouts[..3] {
        assert!(timeout.cancel());
    }
    timer.schedule(SECOND, || panic!("by a callback")).unwrap();
    clock.advance(SECOND);
    let refused = (0..10_000).filter(|_| timer.schedule(SECOND, || ()).is_err()).count();
    metrics.publish(&timer.stats());

    let stats = timer.stats();
    let counts = [
        ("pending", stats.pending),
        ("waiting", stats.waiting),
        ("scheduled_total", stats.scheduled),
        ("expired_total", stats.expired),
        ("cancelled_total", stats.cancelled),
        ("refused_total", stats.refused),
        ("returned_total", stats.returned),
        ("panicked_total", stats.panicked),
        ("wakeups_total", stats.wakeups),
    ];
    for (name, count) in counts {
        assert_eq!(book.value(name).to_bits(), f64::from(u32::try_from(count).unwrap()).to_bits());
    }
    assert_eq!((stats.cancelled, refused, stats.panicked), (3, 17, 1));
    let mut described = book.described.lock().unwrap().clone();
    described.retain(|name| name != "delaywheel_timer_lateness_seconds");
    described.sort();
    assert!(described.iter().eq(book.values.lock().unwrap().keys()));
}

#[test]
fn lateness_is_published_once_and_in_proportion_if_there_is_much_of_it() {
    let (clock, timer, mut metrics, book) = published();
    metrics.publish(&timer.stats());
    assert_eq!(book.recorded(), [0.0; 0]);
    // The first moves the clock, so that the others are late by then.
    let mover = clock.clone();
    timer.schedule(SECOND, move || mover.advance(9 * SECOND)).unwrap();
    timer.schedule(SECOND, || ()).unwrap();
    clock.advance(SECOND);
    metrics.publish(&timer.stats());
    assert_eq!(book.recorded(), [0.0, 0.0]);
    metrics.publish(&timer.stats());
    assert_eq!(book.recorded(), [0.0; 0], "it has been published");
    (0..9_999).for_each(|_| drop(timer.schedule(SECOND, || ()).unwrap()));
    clock.advance(SECOND);
    metrics.publish(&timer.stats());
    assert_eq!(book.recorded().len(), 4096);
    assert_eq!(book.value("expired_total").to_bits(), 10_001_f64.to_bits());
}
