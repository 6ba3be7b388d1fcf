//! Single calls to `schedule` while a bucket of very many timeouts moves to a finer level.

use std::{
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Timer, ValueTimer};
use delaywheel_compare::{
    delivered::{draw, histogram, millis, nanos},
    drive::timed,
    report::{
        rounds::{Contestant, Medians},
        settings::Settings,
        table::{Row, count},
    },
};
use fastrand::Rng;

const TICK: Duration = Duration::from_micros(100);

/// A bucket of the third level, when levels have 64.
const BUCKET: Duration = Duration::from_micros(100 * 64 * 64);

/// Which bucket of its level is filled. It is due two seconds after the timer was made.
const INDEX: u32 = 5;

/// Calls between two looks at how many have moved.
const CHUNK: u32 = 64;

/// Microseconds of a call.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let crowd = if settings.is_quick { 200_000 } else { 1_000_000 };
    let contestants: Vec<Box<dyn Contestant<4>>> = vec![Box::new(Cascade { crowd })];
    let medians = Medians::of(settings.rounds.min(5), contestants);
    let row = |what, unit, index| {
        let name = format!("schedule while {crowd} cascade: {what}");
        Row::new(name, unit, medians.figure(index))
    };
    vec![
        row("p50", "us", 0),
        row("p99.9", "us", 1).at_most(20.0),
        row("max", "us", 2),
        row("calls meanwhile", "", 3),
    ]
}

/// A crowd in one bucket, of a timer with one shard: all share its lock.
struct Cascade {
    crowd: u32,
}

impl Contestant<4> for Cascade {
    fn name(&self) -> &'static str {
        "typed"
    }

    /// Microseconds of a call: the median, the 99.9th percentile, the maximum; number of calls.
    fn measure(&mut self) -> [f64; 4] {
        let due = draw(&mut Rng::with_seed(1), self.crowd, INDEX * BUCKET, BUCKET);
        let origin = Instant::now();
        let timer = Timer::builder().tick(TICK).shards(1).build_with(|_: u64| ());
        let timer = timer.expect("the settings are valid");
        for due in due {
            let instant = origin + Duration::from_nanos(due);
            timer.schedule_at(instant, due).expect("the timer takes 2^32 timeouts");
        }
        assert_eq!(timer.stats().cascades, 0, "the bucket was due before it was full");
        let (start, end) = (origin + INDEX * BUCKET, origin + (INDEX + 1) * BUCKET);
        thread::sleep(start.saturating_duration_since(Instant::now() + Duration::from_millis(20)));
        let calls = thread::scope(|scope| {
            let measurer = scope.spawn(|| self.calls_while_it_moves(&timer, end));
            measurer.join().expect("no call panics")
        });
        let histogram = histogram(calls.iter().copied());
        let [p50, p999, max] = [50.0, 99.9, 100.0].map(|percent| millis(&histogram, percent) * 1e3);
        [p50, p999, max, count(calls.len() as u64)]
    }
}

impl Cascade {
    /// Nanoseconds of each call that was made while timeouts of the bucket moved, until all have.
    fn calls_while_it_moves(&self, timer: &ValueTimer<u64>, end: Instant) -> Vec<u64> {
        const FAR: Duration = Duration::from_mins(1);
        let mut calls = Vec::new();
        let mut moved = timer.stats().cascades;
        while moved < u64::from(self.crowd) {
            assert!(Instant::now() < end, "the bucket did not cascade when it was due");
            let before = (calls.len(), moved);
            for _ in 0..CHUNK {
                let (duration, timeout) = timed(|| timer.schedule(FAR, 0));
                timeout.expect("the timer takes 2^32 timeouts");
                calls.push(nanos(duration));
            }
            moved = timer.stats().cascades;
            if moved == before.1 {
                calls.truncate(before.0);
            }
        }
        calls
    }
}
