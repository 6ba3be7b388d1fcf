//! Measurements of the purgatory, in real time.

use std::ops::Range;

use crate::prelude::*;

const NAME: &str = <Wheel as crate::Timers>::NAME;

/// One thread: requests wait and are completed by an event.
pub(crate) fn closed(bench: &mut Bench) -> Done {
    for _ in 0..bench.rounds() {
        for (row, in_flight, announce, space) in [
            ("one_key", 1, Announce::One, 100),
            ("each_key", 1, Announce::Each, 100),
            ("of_10000", 1, Announce::One, 10_000),
            ("1000_in_flight", 1_000, Announce::One, 100),
        ] {
            closed_loop(bench, row, in_flight, announce, space);
        }
    }
    Ok(())
}

fn closed_loop(bench: &mut Bench, row: &str, in_flight: usize, announce: Announce, space: u32) {
    const BATCH: u32 = 20_000;
    let demands: Vec<Demand<3>> = demands(1, 0..space, BATCH as usize);
    let purgatory = Requests::start();
    let mut requests = ClosedLoop::new(&purgatory, announce, &demands[..in_flight]);
    requests.run(&demands);
    let batch = |_| nanos_per(timed(|| requests.run(&demands)).0, u64::from(BATCH));
    let nanos: Vec<_> = (0..bench.full(3, 25)).map(batch).collect();
    let share = requests.finish();
    assert_eq!(share.completed, share.watched, "an event completes one request");
    purgatory.settle(share.watched, 0, 0);
    let least = nanos.iter().copied().fold(f64::INFINITY, f64::min);
    bench.add(&format!("purgatory/closed/{row}"), NAME, least);
}

/// The same on several threads, also on different keys.
pub(crate) fn threads(bench: &mut Bench) -> Done {
    let time = bench.millis(50, 150);
    // Many short turns: what else the machine does affects all alike.
    for _ in 0..bench.full(1, 3) * bench.rounds() {
        for (row, threads, apart) in [("1", 1, 0), ("2", 2, 0), ("2/apart", 2, 100), ("4", 4, 0)] {
            bench.add(&format!("purgatory/threads/{row}"), NAME, throughput(threads, apart, time));
        }
    }
    Ok(())
}

/// Millions of requests a second. The keys of each thread begin this far behind those of the one
/// before.
fn throughput(threads: u32, apart: u32, time: Duration) -> f64 {
    const CHUNK: usize = 256;
    let purgatory = Requests::start();
    let (barrier, end) = (Barrier::new(threads as usize), OnceLock::new());
    let work = |thread: u32| {
        let seed = u64::from(thread);
        let demands = demands::<3>(seed, thread * apart..thread * apart + 100, 1 << 14);
        let mut requests = ClosedLoop::new(&purgatory, Announce::One, &demands[..1]);
        requests.run(&demands[..CHUNK]);
        barrier.wait();
        let end = *end.get_or_init(|| Instant::now() + time);
        let mut done = 0;
        for demands in demands.chunks_exact(CHUNK).cycle() {
            if Instant::now() >= end {
                break;
            }
            requests.run(demands);
            done += CHUNK as u64;
        }
        let share = requests.finish();
        [done, share.watched, share.completed]
    };
    let shares: Vec<[u64; 3]> = thread::scope(|scope| {
        let work = &work;
        let spawn = |thread| scope.spawn(move || work(thread));
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    });
    let sum = |index: usize| shares.iter().map(|share| share[index]).sum::<u64>();
    assert_eq!(sum(1), sum(2), "events completed all requests");
    purgatory.settle(sum(1), 0, 0);
    count(sum(0)) / time.as_secs_f64() / 1e6
}

/// How late requests expire while very many others wait.
pub(crate) fn late(bench: &mut Bench) -> Done {
    let window = bench.full(300, 2_000);
    let crowds: &[u32] = bench.full(&[10_000], &[300_000, 1_000_000]);
    for _ in 0..bench.rounds() {
        for &waiting in crowds {
            for (name, by) in [("handle", By::Handle), ("event", By::Event)] {
                let waits = if waiting == 300_000 { "3e5".to_owned() } else { size(waiting) };
                let case = format!("{waits}/{name}");
                bench.tell(&format!("purgatory/late/{case}"));
                Service::new(by, waiting as usize, window).measure(bench, &case);
            }
        }
    }
    Ok(())
}

/// How requests are completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By their handle; they watch three keys out of 100.
    Handle,
    /// By an event on one of their keys, which no other request watches.
    Event,
}

/// Requests that complete in each millisecond, and that come in their place.
const PER_MILLI: usize = 20;

/// Delays of requests that only expire, in nanoseconds.
const DELAYS: Range<u64> = 50_000_000..500_000_000;

/// Milliseconds until as many requests expire as come.
const WARM_UP: usize = 550;

/// How the names of the purgatory's threads start.
const THREADS: &str = "waiting";

/// A service in which very many requests wait. Everything is drawn in advance.
struct Service {
    by: By,
    waiting: usize,
    /// The requests that wait at first, and then the requests of each millisecond.
    demands: Vec<Demand<3>>,
    /// Which of the waiting requests complete in each millisecond.
    victims: Vec<[u32; PER_MILLI]>,
    /// The request of each millisecond that only expires, and its delay in nanoseconds.
    expiring: Vec<(Demand<3>, u64)>,
}

/// Milliseconds of processor time in each second: of the process, and of the purgatory's threads.
type Cpu = Option<[f64; 2]>;

impl Service {
    fn new(by: By, waiting: usize, window: usize) -> Self {
        let mut rng = Rng::with_seed(1);
        let steps = WARM_UP + window;
        let all = waiting + steps * PER_MILLI;
        let mut demands = match by {
            By::Handle => demands(2, 0..100, all + steps),
            By::Event => demands_apart(2, all + steps),
        };
        let expiring = demands.split_off(all);
        let bound = u32::try_from(waiting).expect("the requests fit into memory");
        let victims = (0..steps).map(|_| [(); PER_MILLI].map(|()| rng.u32(0..bound))).collect();
        let expiring = expiring.into_iter().map(|demand| (demand, rng.u64(DELAYS))).collect();
        Self { by, waiting, demands, victims, expiring }
    }

    fn measure(&self, bench: &mut Bench, case: &str) {
        let empty = self.run_empty();
        let (late, cpu) = self.run();
        let row = format!("purgatory/late/{case}");
        bench.add_all(Figure::percentiles(&row, NAME, &late, "p50 p99", MILLI));
        if let Some((cpu, empty)) = cpu.zip(empty) {
            bench.add(&format!("purgatory/late/cpu/{case}/process"), NAME, cpu[0] - empty[0]);
            bench.add(&format!("purgatory/late/cpu/{case}/threads"), NAME, cpu[1]);
        }
    }

    /// Runs with a purgatory. Returns lateness after the warm-up, in nanoseconds.
    fn run(&self) -> (Histogram<u64>, Cpu) {
        let purgatory = Requests::new(Timer::builder().name(THREADS));
        let answers = Answer::leak(self.demands.len() + self.expiring.len());
        let (answers, answers_of_expiring) = answers.split_at(self.demands.len());
        let mut coming = answers.iter().zip(&self.demands).map(|(answer, demand)| {
            let key = purgatory.watch(answer, demand.keys, demand.delay());
            Waiting { key, answer, demand }
        });
        let mut waiting: Vec<_> = coming.by_ref().take(self.waiting).collect();
        let mut expiring = Expiring::new(self.expiring.len());
        let origin = Instant::now();
        let cpu = self.paced(origin, |step| {
            for (&victim, coming) in self.victims[step].iter().zip(&mut coming) {
                let waiting = &mut waiting[victim as usize];
                self.complete(&purgatory, waiting);
                *waiting = coming;
            }
            let (demand, delay) = &self.expiring[step];
            let answer = &answers_of_expiring[step];
            expiring.watch(&purgatory, answer, demand.keys, Duration::from_nanos(*delay));
        });
        expiring.settle();
        assert_eq!(purgatory.watched(), 3 * self.waiting as u64);
        let steps = self.victims.len() as u64;
        purgatory.settle(steps * PER_MILLI as u64, steps, self.waiting as u64);
        (expiring.lateness(origin + Duration::from_millis(WARM_UP as u64)), cpu)
    }

    /// Does the same without a purgatory: processor time of the driver.
    fn run_empty(&self) -> Cpu {
        let mut waiting: Vec<_> = self.demands[..self.waiting].iter().collect();
        let mut coming = self.demands[self.waiting..].iter();
        self.paced(Instant::now(), |step| {
            for (&victim, coming) in self.victims[step].iter().zip(&mut coming) {
                waiting[victim as usize] = black_box(coming);
            }
            black_box(self.expiring[step]);
        })
    }

    /// Calls `step` in each millisecond. Returns processor time after the warm-up.
    fn paced(&self, origin: Instant, mut step: impl FnMut(usize)) -> Cpu {
        let mut before = None;
        for (index, time) in (0..self.victims.len()).zip(0_u32..) {
            sleep_until(origin + time * Duration::from_millis(1));
            if index == WARM_UP {
                before = cpu(THREADS);
            }
            step(index);
        }
        let span = Duration::from_millis((self.victims.len() - WARM_UP) as u64);
        Some(spent(before?, cpu(THREADS)?, span))
    }

    fn complete(&self, purgatory: &Requests, waiting: &Waiting<'_>) {
        match self.by {
            By::Handle => assert!(purgatory.complete(waiting.key), "a request did not wait"),
            By::Event => {
                waiting.answer.make_ready();
                assert_eq!(purgatory.check(waiting.demand.keys[0]), 1);
            }
        }
        assert!(waiting.answer.is_satisfied());
    }
}

/// A request that waits.
struct Waiting<'a> {
    key: Handle,
    answer: &'static Answer,
    demand: &'a Demand<3>,
}
