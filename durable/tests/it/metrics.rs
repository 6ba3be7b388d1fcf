//! What `publish_metrics` publishes, and the dashboard that shows it.

use std::collections::BTreeSet;

use ::metrics::{
    Counter, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};
use parking_lot::Mutex;

use super::{
    simulation::{Call, RemoteStore},
    waits::{is_other, slow, wait_for_calls},
    *,
};

/// The published metrics, with their labels and the values of the histograms and gauges.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<String, Arc<Values>>>);

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().push(value);
    }
}

impl GaugeFn for Values {
    fn increment(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn set(&self, value: f64) {
        *self.0.lock() = vec![value];
    }
}

impl Seen {
    fn note(&self, key: &Key) -> Arc<Values> {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = key.name().to_owned() + &labels.collect::<String>();
        Arc::clone(self.0.lock().entry(name).or_default())
    }

    /// Returns the gauges of a queue, without the common part of their names.
    fn queue(&self, name: &str) -> BTreeMap<String, f64> {
        let gauges = self.0.lock();
        let gauges = gauges.iter().filter_map(|(gauge, values)| {
            let (gauge, queue) =
                gauge.strip_prefix("delaywheel_durable_queue_")?.split_once(' ')?;
            (queue == format!("queue={name}")).then(|| (gauge.to_owned(), values.0.lock()[0]))
        });
        gauges.collect()
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
        Gauge::from_arc(self.note(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.note(key))
    }
}

fn names() -> BTreeSet<String> {
    let seen = Seen::default();
    let timer = acknowledging(SqliteStore::in_memory(), &ManualClock::new());
    with_local_recorder(&seen, || (0..2).for_each(|_| timer.publish_metrics()));
    let names = seen.0.into_inner().into_keys();
    names.map(|name| name.split(' ').take(1).collect()).collect()
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
    let queues = shown.iter().filter(|name| name.contains("_queue_")).count();
    assert_eq!((shown.len() - queues, totals, queues), (19, 14, 6), "{shown:?}");
}

/// No worker serves `charges`.
#[test]
fn each_queue_of_the_store_is_published_as_it_was_when_the_call_before_asked() {
    let (clock, seen) = (ManualClock::new(), Seen::default());
    let builder = DurableTimer::builder(SqliteStore::in_memory());
    let builder = builder.backoff(Backoff::default().attempts(1));
    let (timer, deliveries) = crate::timer::held(builder, &clock);
    let publish = || with_local_recorder(&seen, || timer.publish_metrics());
    let deliver = |id| {
        timer.schedule(id, Duration::ZERO, b"").wait().expect("schedule");
        clock.advance(Duration::ZERO);
        deliveries.try_recv().expect("delivery")
    };
    deliver("fails").retry("no route");
    let _running = deliver("runs");
    for (id, delay) in [("charge", Duration::ZERO), ("renewal", DAY)] {
        let due = timer.now().saturating_add(delay);
        let new = NewTimeout::new(id, due, b"").and_then(|new| new.queue("charges"));
        timer.schedule_new(new.expect("valid")).wait().expect("schedule");
    }
    clock.advance(300 * SECOND);
    publish();
    assert!(seen.queue("charges").is_empty(), "the answer is for the next call");
    clock.advance(SECOND);
    timer.pause("charges").wait().expect("pause");
    let figures = |paused, waiting, [live, due, delivering, dead]: [f64; 4]| {
        let names = ["paused", "oldest_waiting_seconds", "live", "due", "delivering", "dead"];
        let values = [paused, waiting, live, due, delivering, dead];
        names.map(str::to_owned).into_iter().zip(values).collect::<BTreeMap<_, _>>()
    };
    publish();
    assert_eq!(seen.queue(""), figures(0.0, 0.0, [1.0, 1.0, 1.0, 1.0]));
    assert_eq!(seen.queue("charges"), figures(0.0, 300.0, [2.0, 1.0, 0.0, 0.0]));
    publish();
    assert_eq!(seen.queue("charges"), figures(1.0, 301.0, [2.0, 1.0, 0.0, 0.0]));
}

#[test]
fn metrics_do_not_wait_for_a_store_that_is_silent_and_ask_it_one_question_at_a_time() {
    let (store, calls, go) = slow(&SqliteStore::in_memory(), is_other);
    let (timer, seen) = (DurableTimer::builder(store).build().expect("start"), Seen::default());
    let publish = || with_local_recorder(&seen, || timer.publish_metrics());
    publish();
    wait_for_calls(&calls);
    (0..9).for_each(|_| publish());
    assert!(seen.queue("").is_empty());
    assert_eq!(calls.load(SeqCst), 1);
    drop(go);
    while seen.queue("").is_empty() {
        publish();
        thread::yield_now();
    }
    assert!(timer.finish(20 * SECOND).wait().expect("finish"));
}

#[test]
fn a_question_of_metrics_that_fails_counts_and_the_next_call_asks_again() {
    let store = RemoteStore::hooked(&SqliteStore::in_memory(), |call| match call {
        Call::Other => Err(StoreError::new(StoreErrorReason::Unavailable)),
        _ => Ok(()),
    });
    let timer = DurableTimer::builder(store).clock(ManualClock::new()).build().expect("start");
    for failed in 1..3 {
        timer.publish_metrics();
        assert_eq!(timer.stats().store_errors, failed);
    }
    timer.shutdown();
    timer.publish_metrics();
    assert_eq!(timer.stats().store_errors, 2, "a timer that has ended asks nothing");
}

/// The question waits for an earlier read.
#[test]
fn a_timer_that_is_dropped_takes_the_question_of_its_metrics_back() {
    let (store, calls, go) = slow(&SqliteStore::in_memory(), is_other);
    let timer = DurableTimer::builder(store).build().expect("start");
    let read = timer.count();
    wait_for_calls(&calls);
    timer.publish_metrics();
    drop(timer);
    drop(go);
    read.wait().expect("count");
    // The store has the other reference.
    while Arc::strong_count(&calls) > 1 {
        thread::yield_now();
    }
    assert_eq!(calls.load(SeqCst), 1);
}

/// The 100 queues that are published are the first ones by name.
#[test]
fn a_queue_that_others_push_out_and_each_queue_after_the_end_is_not_a_number() {
    let (clock, seen) = (ManualClock::new(), Seen::default());
    let timer = acknowledging(SqliteStore::in_memory(), &clock);
    let publish = || with_local_recorder(&seen, || (0..2).for_each(|_| timer.publish_metrics()));
    let live = |queue: &str| seen.queue(queue)["live"];
    timer.pause("z").wait().expect("pause");
    publish();
    assert_eq!((live("z"), live("")), (0.0, 0.0));
    for number in 0..99 {
        timer.pause(format!("q{number}")).wait().expect("pause");
    }
    publish();
    assert!(seen.queue("z").values().all(|value| value.is_nan()), "{:?}", seen.queue("z"));
    assert!(!live("q98").is_nan());
    timer.shutdown();
    publish();
    assert!(live("q98").is_nan() && live("").is_nan());
}
