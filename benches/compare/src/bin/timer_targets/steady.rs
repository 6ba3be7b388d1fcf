//! A steady flow: a hundred thousand timeouts a second are scheduled, and as many expire.

use std::{sync::Arc, time::Duration};

use delaywheel::Timer;
use delaywheel_compare::{
    delivered::{Delivered, draw, histogram, millis, nanos},
    real::{Usage, process_cpu, sleep_until, threads, wait_until},
    report::{
        rounds::{Contestant, Medians},
        settings::Settings,
        table::Row,
    },
};
use fastrand::Rng;

/// Timeouts scheduled in each millisecond.
const PER_MILLI: u32 = 100;

const MILLI: Duration = Duration::from_millis(1);

/// The least delay.
const LEAST: Duration = Duration::from_millis(100);

/// By how much delays differ.
const SPREAD: Duration = Duration::from_millis(900);

/// How the names of the timer's threads begin.
const THREADS: &str = "steady";

/// Lateness, and processor time.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let millis = if settings.is_quick { 500 } else { 3_000 };
    let contestants: Vec<Box<dyn Contestant<5>>> = vec![
        Box::new(Steady { name: "1 ms", tick: MILLI, millis }),
        Box::new(Steady { name: "100 us", tick: MILLI / 10, millis }),
    ];
    let medians = Medians::of(settings.rounds.min(5), contestants);
    let row = |tick, what, unit, index| {
        let name = format!("100,000/s, ticks of {tick}: {what}");
        Row::new(name, unit, medians.figure_of(tick, index))
    };
    let mut rows = vec![
        row("1 ms", "lateness, p50", "ms", 0),
        row("1 ms", "lateness, p99", "ms", 1).at_most(2.0),
        row("1 ms", "lateness, p99.9", "ms", 2).at_most(2.2),
        row("100 us", "lateness, p50", "ms", 0),
        row("100 us", "lateness, p99", "ms", 1).at_most(0.3),
        row("100 us", "lateness, p99.9", "ms", 2),
    ];
    if process_cpu().is_some() {
        rows.push(row("1 ms", "CPU of the timer's threads", "ms/s", 3).at_most(60.0));
        rows.push(row("1 ms", "CPU of all the process", "ms/s", 4));
        rows.push(row("100 us", "CPU of the timer's threads", "ms/s", 3));
        rows.push(row("100 us", "CPU of all the process", "ms/s", 4));
    }
    rows
}

/// A timer with ticks of some length, and how long it is looked at.
struct Steady {
    name: &'static str,
    tick: Duration,
    millis: u32,
}

impl Contestant<5> for Steady {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Milliseconds of lateness: the median, the 99th and the 99.9th percentile; milliseconds of
    /// processor time in each second, of the timer's threads and of all.
    fn measure(&mut self) -> [f64; 5] {
        // Once the longest delay is over, as many expire as are scheduled.
        let warm_up = LEAST + SPREAD + 50 * MILLI;
        let (start, end) = (warm_up, warm_up + self.millis * MILLI);
        let steps = schedule_of(end);
        let delivered = Delivered::with_capacity(steps.as_flattened().len());
        let handler = Arc::clone(&delivered);
        let settings = Timer::builder().tick(self.tick).name(THREADS);
        let timer = settings.build_with(move |due| handler.take_down(due));
        let timer = timer.expect("the settings are valid");
        let mut before = None;
        for (step, dues) in (0..).zip(&steps) {
            let time = step * MILLI;
            sleep_until(delivered.instant(nanos(time)));
            for &due in dues {
                let instant = delivered.instant(due);
                timer.schedule_at(instant, due).expect("the timer takes 2^32 timeouts");
            }
            if time == start {
                before = usage();
            }
        }
        let after = usage();
        let all = delivered.settle(steps.into_flattened());
        let stats = timer.stats();
        assert_eq!((stats.scheduled, stats.pending), (all.len() as u64, 0));
        let window = nanos(start)..nanos(end);
        let lateness = all.into_iter().filter(|(due, _)| window.contains(due));
        let histogram = histogram(lateness.map(|(_, late)| late));
        let [p50, p99, p999] = [50.0, 99.0, 99.9].map(|percentile| millis(&histogram, percentile));
        let [own, whole] = self.per_second(before, after);
        [p50, p99, p999, own, whole]
    }
}

impl Steady {
    /// Milliseconds of processor time in each second between two looks.
    fn per_second(&self, before: Option<Cpu>, after: Option<Cpu>) -> [f64; 2] {
        let Some((before, after)) = before.zip(after) else { return [f64::NAN; 2] };
        let spent = [(before.own, after.own), (before.whole, after.whole)];
        spent.map(|(before, after)| {
            after.saturating_sub(before).as_secs_f64() * 1e3 / (self.millis * MILLI).as_secs_f64()
        })
    }
}

/// When the timeouts are due that are scheduled in each millisecond until `end`.
fn schedule_of(end: Duration) -> Vec<[u64; PER_MILLI as usize]> {
    let mut rng = Rng::with_seed(1);
    let steps = u32::try_from(end.as_millis()).expect("it takes some seconds");
    let step = |step| {
        let due = draw(&mut rng, PER_MILLI, step * MILLI + LEAST, SPREAD);
        due.try_into().expect("as many were drawn")
    };
    (0..steps).map(step).collect()
}

/// Processor time that has been spent so far.
struct Cpu {
    /// By the timer's threads.
    own: Duration,
    /// By all the process.
    whole: Duration,
}

/// What has been spent; `None` if the system does not tell. Waits for the threads of a timer of the
/// same name to end, that was there before.
fn usage() -> Option<Cpu> {
    let mut usage = Usage::default();
    wait_until("there are a reaper and an executor", || {
        usage = threads(THREADS).unwrap_or(Usage { threads: 2, ..Usage::default() });
        usage.threads == 2
    });
    Some(Cpu { own: usage.cpu, whole: process_cpu()? })
}
