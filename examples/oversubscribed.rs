//! How late timeouts are, and how long inserts take, while more threads schedule and cancel than
//! there are cores.
//!
//! Each thread schedules a timeout and cancels it, again and again; one in a hundred is left to
//! expire after 5 to 25 ms. Run it on a quiet machine:
//!
//! ```sh
//! cargo bench -p delaywheel-benches --no-default-features --bench oversubscribed -- \
//!     [seconds] [threads]...
//! ```

use std::{
    env, hint,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Timer, ValueTimer};

/// Measurements of the threads of one run.
#[derive(Default)]
struct Measured {
    /// Time from the requested deadline to the handler, in nanoseconds.
    late: Vec<u64>,
    /// Time of each pair of `schedule` and `cancel`, in nanoseconds.
    pairs: Vec<u64>,
    count: u64,
    left: u64,
}

/// Timeouts of a burst, all due at once.
const BURST: u64 = 500_000;

fn main() {
    // Cargo passes a flag.
    let words = env::args().skip(1).filter(|word| !word.starts_with('-'));
    let mut numbers = words.map(|word| word.parse().expect("a number"));
    let seconds = numbers.next().unwrap_or(3);
    let threads: Vec<_> = numbers.collect();
    let threads = if threads.is_empty() { vec![2, 4, 8, 16] } else { threads };
    println!(
        "work/us threads  kpairs/s   expired    of   late/ms p50     p99     max  pair/us p99 p99.9      max"
    );
    for work in [Duration::ZERO, Duration::from_micros(2)] {
        for &threads in &threads {
            print(work, threads, seconds, run(work, threads, Duration::from_secs(seconds)));
        }
    }
    println!(
        "burst of {BURST}, of which the last is so late, while one thread schedules and cancels:"
    );
    burst();
}

/// Makes very many timeouts expire at once, while this thread schedules and cancels on their shard.
fn burst() {
    let (ran, runs) = mpsc::channel();
    let handler = move |due: Option<Instant>| {
        if let Some(due) = due {
            ran.send(due.elapsed()).expect("the receiver exists");
        }
    };
    let timer = Timer::builder().shards(1).build_with(handler).expect("they are valid");
    let due = Instant::now() + Duration::from_millis(500);
    let last = due + Duration::from_millis(1);
    timer.schedule_at(last, Some(last)).expect("it has no limit");
    for _ in 0..BURST {
        timer.schedule_at(due, None).expect("it has no limit");
    }
    let mut pairs = Vec::new();
    let late = loop {
        let begun = Instant::now();
        let key = timer.schedule(Duration::from_secs(60), None).expect("it has no limit");
        timer.cancel(key);
        if begun >= due {
            pairs.push(u64::try_from(begun.elapsed().as_nanos()).expect("it is short"));
        }
        if let Ok(late) = runs.try_recv() {
            break late;
        }
    };
    pairs.sort_unstable();
    println!(
        "{late:?}; pairs: {}, p99 {:.2} us, p99.9 {:.2} us, max {:.2} us",
        pairs.len(),
        at(&pairs, 990, 1e3),
        at(&pairs, 999, 1e3),
        at(&pairs, 1000, 1e3)
    );
}

/// A quantile of sorted nanoseconds, in a greater unit.
#[expect(clippy::cast_precision_loss, reason = "they are short")]
fn at(sorted: &[u64], permille: usize, unit: f64) -> f64 {
    let index = sorted.len() * permille / 1000;
    sorted.get(index.min(sorted.len().saturating_sub(1))).map_or(f64::NAN, |&n| n as f64 / unit)
}

fn run(work: Duration, threads: u64, time: Duration) -> Measured {
    let late = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&late);
    let handler = move |due: Instant| {
        let late = u64::try_from(due.elapsed().as_nanos()).expect("it is short");
        own.lock().expect("no thread panics").push(late);
    };
    let timer = Timer::builder().build_with(handler).expect("the settings are valid");
    let (timer, is_over) = (&timer, &AtomicBool::new(false));
    let mut measured = Measured::default();
    thread::scope(|scope| {
        let loads: Vec<_> = (0..threads)
            .map(|seed| scope.spawn(move || load(timer, work, seed, is_over)))
            .collect();
        thread::sleep(time);
        is_over.store(true, Relaxed);
        // Timeouts that expire after the load do not count.
        measured.late = std::mem::take(&mut *late.lock().expect("no thread panics"));
        for load in loads {
            let (pairs, count, left) = load.join().expect("no thread panics");
            measured.count += count;
            measured.pairs.extend(pairs);
            measured.left += left;
        }
    });
    measured
}

/// Schedules and cancels until it is over. Returns the times of the first pairs, the number of all,
/// and how many timeouts were left to expire.
fn load(
    timer: &ValueTimer<Instant>,
    work: Duration,
    seed: u64,
    is_over: &AtomicBool,
) -> (Vec<u64>, u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pairs = Vec::with_capacity(1 << 22);
    let (mut count, mut left) = (0, 0);
    while !is_over.load(Relaxed) {
        let begun = Instant::now();
        if random.u32(..100) == 0 {
            let delay = Duration::from_micros(random.u64(5_000..25_000));
            timer.schedule(delay, begun + delay).expect("it has no limit");
            left += 1;
        } else {
            let key = timer.schedule(Duration::from_secs(1), begun).expect("it has no limit");
            timer.cancel(key);
        }
        count += 1;
        if pairs.len() < pairs.capacity() {
            pairs.push(u64::try_from(begun.elapsed().as_nanos()).expect("it is short"));
        }
        let end = Instant::now() + work;
        while !work.is_zero() && Instant::now() < end {
            hint::spin_loop();
        }
    }
    (pairs, count, left)
}

fn print(work: Duration, threads: u64, seconds: u64, measured: Measured) {
    let Measured { mut late, mut pairs, count, left } = measured;
    late.sort_unstable();
    pairs.sort_unstable();
    println!(
        "{:7} {threads:7} {:9} {:9} {left:9} {:8.2} {:7.1} {:7.1}     {:7.2} {:7.2} {:8.1}",
        work.as_micros(),
        count / seconds / 1000,
        late.len(),
        at(&late, 500, 1e6),
        at(&late, 990, 1e6),
        at(&late, 1000, 1e6),
        at(&pairs, 990, 1e3),
        at(&pairs, 999, 1e3),
        at(&pairs, 1000, 1e3),
    );
}
