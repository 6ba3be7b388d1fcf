//! Sleeps and timeouts beside those of tokio, in turns, on one runtime:
//! `cargo bench -p delaywheel-async-tests`.
//!
//! Prints nanoseconds an operation, the median of the rounds, and the ratio. A task polls, so both
//! sides see the same waker.

use std::{
    future::{Future, poll_fn, ready},
    pin::{Pin, pin},
    sync::{Arc, Barrier, Mutex, Weak},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Clock, SystemClock, Timer, clock::Driven};

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

/// Pending once and then ready, with 100,000 in flight.
fn pending_once(side: &impl Side, cx: &mut Context<'_>) -> f64 {
    let count = 100_000;
    let once = || {
        let mut is_polled = false;
        poll_fn(move |_| {
            if std::mem::replace(&mut is_polled, true) { Poll::Ready(()) } else { Poll::Pending }
        })
    };
    let mut all: Vec<_> = Vec::with_capacity(count);
    let start = Instant::now();
    for index in 0..count {
        let mut limited = Box::pin(side.timeout(delay(index), once()));
        assert!(limited.as_mut().poll(cx).is_pending());
        all.push(limited);
    }
    for limited in &mut all {
        assert!(limited.as_mut().poll(cx).is_ready());
    }
    drop(all);
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

/// Many sleeps that elapse within a second: processor time a sleep.
fn elapse<S: Side>(side: &S, runtime: &tokio::runtime::Runtime) -> f64 {
    const COUNT: usize = 200_000;
    let before = processor_time();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..COUNT)
            .map(|index| {
                let delay = Duration::from_micros(300_000 + (index as u64 * 7_919) % 700_000);
                tokio::spawn({
                    let sleep = side.sleep(delay);
                    async move {
                        sleep.await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    (processor_time() - before) * 1e9 / COUNT as f64
}

/// A clock that gives its timers to a task of the runtime, which turns them every millisecond. Such
/// a driver needs no thread and no hand-over, so it costs less than one that also has to be woken
/// for an earlier deadline.
#[derive(Debug, Default, Clone)]
struct DrivenClock(Arc<Mutex<Vec<Weak<dyn Driven>>>>);

impl Clock for DrivenClock {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.0.lock().expect("no thread panics").push(timer);
        true
    }
}

impl DrivenClock {
    async fn drive(self) {
        loop {
            let timers = self.0.lock().expect("no thread panics").clone();
            timers.iter().filter_map(Weak::upgrade).for_each(|timer| timer.turn());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The same with a driver in place of the reaper.
fn elapse_driven(runtime: &tokio::runtime::Runtime) -> f64 {
    let clock = DrivenClock::default();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let driver = runtime.spawn(clock.drive());
    let figure = elapse(&Own(timer), runtime);
    driver.abort();
    figure
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

fn compare(name: &str, rounds: usize, ours: impl Fn() -> f64, tokio: impl Fn() -> f64) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        a.push(ours());
        b.push(tokio());
    }
    let (a, b) = (median(a), median(b));
    println!("{name:38} ours {a:8.1} ns   tokio {b:8.1} ns   ratio {:.2}", a / b);
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
    compare(
        "elapse, 2e5 in 0.7 s, processor time",
        ROUNDS,
        || elapse(&ours, &runtime),
        || elapse(&Tokio, &runtime),
    );
    compare(
        "the same with a driver",
        ROUNDS,
        || elapse_driven(&runtime),
        || elapse(&Tokio, &runtime),
    );
}
