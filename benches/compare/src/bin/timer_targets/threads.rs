//! Several threads that cancel and schedule at once, each among timeouts of its own.

use std::{
    sync::{
        Arc, Barrier, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::Timer;
use delaywheel_compare::{
    report::{
        rounds::{Contestant, Medians},
        settings::Settings,
        table::Row,
    },
    shared::{
        Accountable, Closures, Load, SharedTimer, Sleeps, Typed, Victim, replace_all, schedule_all,
        settle,
    },
};
use tokio::{
    runtime,
    task::{self, JoinHandle},
};

/// Timeouts that are pending, over all threads.
const PENDING: u32 = 100_000;

/// Pairs between two looks at the clock.
const CHUNK: usize = 256;

/// Pairs that are drawn beforehand, and gone through again and again.
const DRAWN: u32 = 1 << 16;

/// Millions of pairs a second, of all threads together, and what another thread adds.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    // Many short turns: what else the machine does then weighs on all alike.
    let (time, turns) = if settings.is_quick { (100, 1) } else { (200, 3) };
    let time = Duration::from_millis(time);
    let contestants: Vec<Box<dyn Contestant<5>>> = vec![
        Box::new(Ours { time, make: || Typed::new(Timer::builder()) }),
        Box::new(Ours { time, make: || Closures::new(Timer::builder()) }),
        Box::new(Tokio { time }),
    ];
    let medians = Medians::of(turns * settings.rounds, contestants);
    let rate = |name, index| Row::new(name, "M pairs/s", medians.figure(index));
    let of_typed = |name, index| Row::new(name, "x", medians.figure_of(Typed::NAME, index));
    let of_closures =
        |name, unit, index| Row::new(name, unit, medians.figure_of(Closures::NAME, index));
    vec![
        rate("1 thread", 0),
        rate("2 threads", 1).at_least(25.0).ratio_at_least(Sleeps::NAME, 9.0),
        of_closures("2 threads, closures", "M pairs/s", 1).at_least(16.0),
        rate("4 threads", 2),
        of_typed("2 threads, of 1", 3).at_least(1.8),
        of_closures("2 threads, of 1, closures", "x", 3).at_least(1.8),
        of_typed("4 threads, of 2", 4).at_least(0.95),
        of_closures("4 threads, of 2, closures", "x", 4).at_least(0.95),
    ]
}

/// Throughput with 1, 2 and 4 threads; that of 2 as a multiple of that of 1, and of 4, of 2.
fn figures(throughput: impl Fn(u32) -> f64) -> [f64; 5] {
    let [one, two, four] = [1, 2, 4].map(throughput);
    [one, two, four, two / one, four / two]
}

/// What one thread did.
struct Share {
    scheduled: u64,
    cancelled: u64,
    pairs: u32,
}

/// When the time is up, for all threads alike: counted from when the first of them begins.
struct End {
    time: Duration,
    instant: OnceLock<Instant>,
}

impl End {
    fn after(time: Duration) -> Self {
        Self { time, instant: OnceLock::new() }
    }

    fn get(&self) -> Instant {
        *self.instant.get_or_init(|| Instant::now() + self.time)
    }

    /// Millions of pairs a second.
    fn throughput(&self, shares: &[Share]) -> f64 {
        let pairs = shares.iter().map(|share| f64::from(share.pairs)).sum::<f64>();
        pairs / self.time.as_secs_f64() / 1e6
    }
}

/// A thread's timeouts, and what it is going to do to them.
struct Worker<S: SharedTimer> {
    timer: S,
    timeouts: Vec<S::Timeout>,
    victims: Vec<Victim>,
}

impl<S: SharedTimer> Worker<S> {
    /// Schedules the timeouts of thread number `thread` of `threads`.
    fn new(timer: S, thread: u32, threads: u32) -> Self {
        let mut load = Load::new(u64::from(thread));
        let timeouts = schedule_all(&timer, &load.delays(PENDING / threads));
        let victims = load.victims(PENDING / threads, DRAWN);
        Self { timer, timeouts, victims }
    }

    /// Cancels and schedules until the time is up.
    fn run(mut self, end: &End) -> Share {
        let (mut cancelled, mut pairs, end) = (0, 0, end.get());
        for victims in self.victims.chunks_exact(CHUNK).cycle() {
            if Instant::now() >= end {
                break;
            }
            cancelled += replace_all(&self.timer, &mut self.timeouts, victims);
            pairs += u32::try_from(CHUNK).expect("a chunk is small");
        }
        let scheduled = self.timeouts.len() as u64 + u64::from(pairs);
        Share { scheduled, cancelled, pairs }
    }
}

/// One of our own, made anew for each number of threads.
struct Ours<S> {
    time: Duration,
    make: fn() -> S,
}

impl<S: Accountable> Ours<S> {
    /// Millions of pairs a second.
    fn throughput(&self, threads: u32) -> f64 {
        let timer = (self.make)();
        let (barrier, end) = (Barrier::new(threads as usize), End::after(self.time));
        let shares: Vec<_> = thread::scope(|scope| {
            let work = |thread| {
                let (timer, barrier, end) = (timer.clone(), &barrier, &end);
                scope.spawn(move || {
                    let worker = Worker::new(timer, thread, threads);
                    barrier.wait();
                    worker.run(end)
                })
            };
            let workers: Vec<_> = (0..threads).map(work).collect();
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
        });
        let scheduled = shares.iter().map(|share| share.scheduled).sum();
        settle(&timer, scheduled, shares.iter().map(|share| share.cancelled).sum());
        end.throughput(&shares)
    }
}

impl<S: Accountable> Contestant<5> for Ours<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn measure(&mut self) -> [f64; 5] {
        figures(|threads| self.throughput(threads))
    }
}

/// Sleeps of a runtime that has a thread for each task.
struct Tokio {
    time: Duration,
}

impl Tokio {
    /// Millions of pairs a second.
    fn throughput(&self, threads: u32) -> f64 {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(threads as usize)
            .enable_time()
            .build()
            .expect("the threads can be started");
        let arrived = Arc::new(AtomicU32::new(0));
        let end = Arc::new(End::after(self.time));
        let work = |thread| {
            let worker = sleep_worker(Arc::clone(&arrived), Arc::clone(&end), thread, threads);
            runtime.spawn(task::unconstrained(worker))
        };
        let workers: Vec<_> = (0..threads).map(work).collect();
        let share = |worker: JoinHandle<Share>| runtime.block_on(worker).expect("no worker panics");
        let shares: Vec<_> = workers.into_iter().map(share).collect();
        end.throughput(&shares)
    }
}

/// One task, which waits for the others so that none shares its thread with another.
async fn sleep_worker(arrived: Arc<AtomicU32>, end: Arc<End>, thread: u32, threads: u32) -> Share {
    let worker = Worker::new(Sleeps, thread, threads);
    arrived.fetch_add(1, Ordering::Relaxed);
    while arrived.load(Ordering::Relaxed) < threads {
        task::yield_now().await;
    }
    worker.run(&end)
}

impl Contestant<5> for Tokio {
    fn name(&self) -> &'static str {
        Sleeps::NAME
    }

    fn measure(&mut self) -> [f64; 5] {
        figures(|threads| self.throughput(threads))
    }
}
