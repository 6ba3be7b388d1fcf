//! Sleeps and timeouts beside those of tokio, in turns, on one runtime:
//! `cargo bench -p delaywheel-async-tests`.
//!
//! Prints nanoseconds an operation, the median of the rounds, and the ratio. A task polls, so both
//! sides see the same waker.

use std::{
    future::{Future, poll_fn, ready},
    pin::{Pin, pin},
    sync::{Arc, Barrier},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use delaywheel::Timer;

const LIMIT: Duration = Duration::from_secs(30);
const ROUNDS: usize = 7;

/// A side of the comparison. Its functions are called on a task of the runtime.
trait Side {
    type Sleep: Future + Send + 'static;
    fn sleep(&self, delay: Duration) -> Self::Sleep;
    fn reset(&self, sleep: Pin<&mut Self::Sleep>, delay: Duration);
    fn timeout<F: Future>(&self, delay: Duration, future: F) -> impl Future;
}

/// The free functions, which use the default timer, as those of tokio use the timer of the runtime.
struct Ours;

impl Side for Ours {
    type Sleep = delaywheel::future::Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        delaywheel::future::sleep(delay)
    }

    fn reset(&self, mut sleep: Pin<&mut Self::Sleep>, delay: Duration) {
        sleep.reset(delay);
    }

    fn timeout<F: Future>(&self, delay: Duration, future: F) -> impl Future {
        delaywheel::future::timeout(delay, future)
    }
}

/// A timer of the program.
struct Own(Timer);

impl Side for Own {
    type Sleep = delaywheel::future::Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        self.0.sleep(delay)
    }

    fn reset(&self, mut sleep: Pin<&mut Self::Sleep>, delay: Duration) {
        sleep.reset(delay);
    }

    fn timeout<F: Future>(&self, delay: Duration, future: F) -> impl Future {
        self.0.timeout(delay, future)
    }
}

struct Tokio;

impl Side for Tokio {
    type Sleep = tokio::time::Sleep;

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        tokio::time::sleep(delay)
    }

    fn reset(&self, sleep: Pin<&mut Self::Sleep>, delay: Duration) {
        sleep.reset(tokio::time::Instant::now() + delay);
    }

    fn timeout<F: Future>(&self, delay: Duration, future: F) -> impl Future {
        tokio::time::timeout(delay, future)
    }
}

/// Different delays, as connections have them.
fn delay(index: usize) -> Duration {
    LIMIT + Duration::from_millis((index as u64).wrapping_mul(7_919) % 30_000)
}

fn per(count: usize, start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

fn ready_at_once(side: &impl Side, cx: &mut Context<'_>) -> f64 {
    let (count, start) = (300_000, Instant::now());
    for _ in 0..count {
        let done = pin!(side.timeout(LIMIT, ready(7))).poll(cx).is_ready();
        assert!(done);
    }
    per(count, start)
}

/// Pending once and then ready, with 100,000 in flight. The futures live in memory that was
/// allocated and touched before, as in a task: an allocation takes longer than half of the rest.
fn pending_once(side: &impl Side, cx: &mut Context<'_>) -> f64 {
    let count = 100_000;
    let once = || {
        let mut is_polled = false;
        poll_fn(move |_| {
            if std::mem::replace(&mut is_polled, true) { Poll::Ready(()) } else { Poll::Pending }
        })
    };
    let new = |index| side.timeout(delay(index), once());
    let mut all: Vec<_> = (0..count).map(|index| Box::pin(Some(new(index)))).collect();
    all.iter_mut().for_each(|limited| limited.set(None));
    let start = Instant::now();
    for (index, limited) in all.iter_mut().enumerate() {
        limited.set(Some(new(index)));
        assert!(limited.as_mut().as_pin_mut().is_some_and(|limited| limited.poll(cx).is_pending()));
    }
    for limited in &mut all {
        assert!(limited.as_mut().as_pin_mut().is_some_and(|limited| limited.poll(cx).is_ready()));
        limited.set(None);
    }
    per(count, start)
}

/// Create, poll once and drop, with this many pending.
fn create_and_drop(side: &impl Side, cx: &mut Context<'_>, held: usize) -> f64 {
    let mut others: Vec<_> = (0..held).map(|index| Box::pin(side.sleep(delay(index)))).collect();
    others.iter_mut().for_each(|other| assert!(other.as_mut().poll(cx).is_pending()));
    let (count, start) = (200_000, Instant::now());
    for index in 0..count {
        assert!(pin!(side.sleep(delay(index))).poll(cx).is_pending());
    }
    per(count, start)
}

/// A message of each of 100,000 connections: its sleep is reset and polled.
fn keep_alive(side: &impl Side, cx: &mut Context<'_>) -> f64 {
    let held = 100_000;
    let mut sleeps: Vec<_> = (0..held).map(|index| Box::pin(side.sleep(delay(index)))).collect();
    sleeps.iter_mut().for_each(|sleep| assert!(sleep.as_mut().poll(cx).is_pending()));
    let start = Instant::now();
    for _ in 0..3 {
        for (index, sleep) in sleeps.iter_mut().enumerate() {
            side.reset(sleep.as_mut(), delay(index));
            assert!(sleep.as_mut().poll(cx).is_pending());
        }
    }
    per(3 * held, start)
}

/// Runs a row in a task of the runtime.
async fn row<R>(run: impl Fn(&mut Context<'_>) -> R) -> R {
    poll_fn(|cx| Poll::Ready(run(cx))).await
}

/// Create, poll and drop on two threads that run tasks of the same runtime.
fn two_threads<S: Side + Sync>(side: &S, runtime: &tokio::runtime::Runtime) -> f64 {
    const COUNT: usize = 400_000;
    let barrier = Arc::new(Barrier::new(2));
    let slowest = thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            let barrier = Arc::clone(&barrier);
            scope.spawn(move || {
                let _context = runtime.enter();
                barrier.wait();
                let start = Instant::now();
                runtime.block_on(row(|cx| {
                    for index in 0..COUNT {
                        assert!(pin!(side.sleep(delay(index))).poll(cx).is_pending());
                    }
                }));
                per(2 * COUNT, start)
            })
        });
        threads.map(|thread| thread.join().expect("no thread panics"))
    });
    slowest[0].max(slowest[1])
}

/// Sleeps of tasks that elapse within `span`: processor time a sleep in nanoseconds, and the 99th
/// percentile of their lateness in microseconds.
fn elapse<S: Side>(
    side: &S,
    runtime: &tokio::runtime::Runtime,
    count: usize,
    (first, span): (Duration, Duration),
) -> (f64, f64) {
    let before = processor_time();
    let mut lateness = runtime.block_on(async {
        let start = Instant::now();
        let tasks: Vec<_> = (0..count as u64)
            .map(|index| {
                let offset = (index * 7_919_000) % span.as_nanos() as u64;
                let deadline = start + first + Duration::from_nanos(offset);
                let sleep = side.sleep(deadline.saturating_duration_since(Instant::now()));
                tokio::spawn(async move {
                    sleep.await;
                    deadline.elapsed()
                })
            })
            .collect();
        let mut lateness = Vec::with_capacity(count);
        for task in tasks {
            lateness.push(task.await.expect("no task panics"));
        }
        lateness
    });
    let spent = (processor_time() - before) * 1e9 / count as f64;
    lateness.sort_unstable();
    (spent, lateness[count * 99 / 100].as_secs_f64() * 1e6)
}

/// Compares the reaper and a driver with tokio where sleeps elapse.
fn compare_elapsing(
    runtime: &tokio::runtime::Runtime,
    rounds: usize,
    count: usize,
    times: (Duration, Duration),
) {
    if !is_chosen("elapse") {
        return;
    }
    let builder = Timer::builder();
    let driven = builder.build_with_driver(tokio::time::sleep).expect("the settings are valid");
    let (driven, driver) = (Own(driven.0), runtime.spawn(driven.1));
    let mut figures = [const { (Vec::new(), Vec::new()) }; 3];
    for _ in 0..rounds {
        let round = [
            elapse(&Ours, runtime, count, times),
            elapse(&driven, runtime, count, times),
            elapse(&Tokio, runtime, count, times),
        ];
        for ((spent, late), figures) in round.into_iter().zip(&mut figures) {
            figures.0.push(spent);
            figures.1.push(late);
        }
    }
    driver.abort();
    let [reaper, driver, tokio] = figures.map(|(spent, late)| (median(spent), median(late)));
    for (name, ours) in [("reaper", reaper), ("driver", driver)] {
        println!(
            "{count} elapse, {name:19} ours {:8.1} ns   tokio {:8.1} ns   ratio {:.2}   \
             late p99 {:8.0} us, tokio {:8.0} us",
            ours.0,
            tokio.0,
            ours.0 / tokio.0,
            ours.1,
            tokio.1,
        );
    }
}

/// Processor time of the process in seconds, from `/proc`, in steps of 10 ms.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Runs a row, if the name contains the filter of the command line.
fn compare(name: &str, rounds: usize, ours: impl Fn() -> f64, tokio: impl Fn() -> f64) {
    if !is_chosen(name) {
        return;
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        a.push(ours());
        b.push(tokio());
    }
    let (a, b) = (median(a), median(b));
    println!("{name:38} ours {a:8.1} ns   tokio {b:8.1} ns   ratio {:.2}", a / b);
}

fn is_chosen(name: &str) -> bool {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    filter.is_none_or(|filter| name.contains(&filter))
}

fn main() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("the runtime starts");
    let (ours, own) = (Ours, Own(Timer::new()));
    let on = |run: &dyn Fn(&mut Context<'_>) -> f64| runtime.block_on(row(run));
    compare(
        "timeout, ready at once",
        ROUNDS,
        || on(&|cx| ready_at_once(&ours, cx)),
        || on(&|cx| ready_at_once(&Tokio, cx)),
    );
    compare(
        "timeout, pending once, 1e5 in flight",
        ROUNDS,
        || on(&|cx| pending_once(&ours, cx)),
        || on(&|cx| pending_once(&Tokio, cx)),
    );
    for (held, rounds) in [(1_000, ROUNDS), (100_000, ROUNDS), (1_000_000, 3)] {
        let name = format!("create, poll, drop, {held} pending");
        compare(
            &name,
            rounds,
            || on(&|cx| create_and_drop(&ours, cx, held)),
            || on(&|cx| create_and_drop(&Tokio, cx, held)),
        );
    }
    compare(
        "create, poll, drop, 1000, own timer",
        ROUNDS,
        || on(&|cx| create_and_drop(&own, cx, 1_000)),
        || on(&|cx| create_and_drop(&Tokio, cx, 1_000)),
    );
    compare(
        "create, poll, drop, two threads",
        ROUNDS,
        || two_threads(&ours, &runtime),
        || two_threads(&Tokio, &runtime),
    );
    compare(
        "reset and poll, 1e5 pending",
        ROUNDS,
        || on(&|cx| keep_alive(&ours, cx)),
        || on(&|cx| keep_alive(&Tokio, cx)),
    );
    let millis = Duration::from_millis;
    compare_elapsing(&runtime, ROUNDS, 200_000, (millis(300), millis(700)));
    compare_elapsing(&runtime, 3, 1_000_000, (millis(3_000), millis(1_000)));
}
