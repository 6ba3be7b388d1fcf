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
            ("each_key_in_one_call", 1, Announce::Together, 100),
            ("of_10000", 1, Announce::One, 10_000),
            ("1000_in_flight", 1_000, Announce::One, 100),
        ] {
            closed_loop::<Requests>(bench, row, in_flight, announce, space);
            closed_loop::<KafkaPurgatory>(bench, row, in_flight, announce, space);
        }
    }
    Ok(())
}

fn closed_loop<P: SharedPurgatory>(
    bench: &mut Bench,
    row: &str,
    in_flight: usize,
    announce: Announce,
    space: u32,
) {
    const BATCH: u32 = 20_000;
    let demands: Vec<Demand<3>> = demands(1, 0..space, BATCH as usize);
    let purgatory = P::start();
    let mut requests = ClosedLoop::new(&purgatory, announce, &demands[..in_flight]);
    requests.run(&demands);
    let batch = |_| nanos_per(timed(|| requests.run(&demands)).0, u64::from(BATCH));
    let nanos: Vec<_> = (0..bench.full(3, 25)).map(batch).collect();
    let share = requests.finish();
    assert_eq!(share.completed, share.watched, "an event completes one request");
    purgatory.settle(share.watched, 0, 0);
    let least = nanos.iter().copied().fold(f64::INFINITY, f64::min);
    bench.add(&format!("purgatory/closed/{row}"), P::NAME, least);
    bench.add(&format!("purgatory/closed_median/{row}"), P::NAME, median(&nanos));
}

/// The same on several threads, and beside others.
pub(crate) fn threads(bench: &mut Bench) -> Done {
    // Many short turns: what else the machine does affects all alike.
    for _ in 0..bench.full(1, 3) * bench.rounds() {
        for threads in [1, 2] {
            throughputs::<Requests>(bench, threads);
            throughputs::<KafkaPurgatory>(bench, threads);
        }
    }
    for case in ["", "/apart"] {
        let [row, two] =
            [format!("purgatory/scaling/2_of_1{case}"), format!("purgatory/threads/2{case}")];
        bench.add_quotient(&row, &two, "purgatory/threads/1");
    }
    Ok(())
}

fn throughputs<P: SharedPurgatory>(bench: &mut Bench, threads: u32) {
    let time = bench.millis(50, 150);
    let alone = throughput::<P>(threads, 0, 0, time);
    let beside = throughput::<P>(threads, 0, 100_000, time);
    bench.add(&format!("purgatory/threads/{threads}"), P::NAME, alone);
    bench.add(&format!("purgatory/beside/{threads}"), P::NAME, alone / beside);
    if threads > 1 {
        let apart = throughput::<P>(threads, 100, 0, time);
        bench.add(&format!("purgatory/threads/{threads}/apart"), P::NAME, apart);
    }
}

/// Millions of requests a second. The keys of each thread begin this far behind those of the one
/// before.
fn throughput<P: SharedPurgatory>(threads: u32, apart: u32, others: usize, time: Duration) -> f64 {
    const CHUNK: usize = 256;
    let purgatory = P::start();
    let (barrier, end) = (Barrier::new(threads as usize), OnceLock::new());
    let work = |thread: u32| {
        let seed = u64::from(thread);
        // The others are in the shards of the threads that are measured.
        let others = demands::<3>(seed, 1_000..1_100, others / threads as usize);
        let crowd = Crowd::new(&purgatory, &others);
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
        [done, share.watched, share.completed, crowd.count()]
    };
    let shares: Vec<[u64; 4]> = thread::scope(|scope| {
        let work = &work;
        let spawn = |thread| scope.spawn(move || work(thread));
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    });
    let sum = |index: usize| shares.iter().map(|share| share[index]).sum::<u64>();
    assert_eq!(sum(1), sum(2), "events completed all requests");
    purgatory.settle(sum(1), 0, sum(3));
    count(sum(0)) / time.as_secs_f64() / 1e6
}

/// Calls that complete nothing.
pub(crate) fn checks(bench: &mut Bench) -> Done {
    let waiting = bench.full(1_000, 100_000);
    for _ in 0..bench.rounds() {
        for (row, space, waiting) in [
            ("unwatched", 1_000, 0),
            ("on_100_others", 100, waiting),
            ("on_10000_others", 10_000, waiting),
        ] {
            bench.add(&format!("purgatory/check/{row}"), NAME, unwatched(space, waiting));
        }
        bench.add("purgatory/check/not_reached", NAME, not_reached(waiting));
        bench.add("purgatory/check/not_ready", NAME, not_ready(waiting));
    }
    Ok(())
}

/// Nanoseconds of one of `number`, in the batch that took least.
fn least(batches: u32, number: u64, mut work: impl FnMut() -> usize) -> f64 {
    let batch = |_| {
        let (duration, completed) = timed(&mut work);
        assert_eq!(completed, 0, "a request completed that could not");
        nanos_per(duration, number)
    };
    (0..batches).map(batch).fold(f64::INFINITY, f64::min)
}

/// Calls in a batch.
const CALLS: u64 = 10_000;

/// Events on keys that no request watches, while others wait on other keys.
fn unwatched(space: u32, waiting: usize) -> f64 {
    let purgatory = Requests::new();
    let crowd = Crowd::new(&purgatory, &demands::<3>(1, 0..space, waiting));
    let keys = demands::<1>(2, 1_000_000..2_000_000, 10_000);
    let check = |demand: &Demand<1>| purgatory.check_and_complete(&demand.keys[0]);
    let nanos = least(20, CALLS, || keys.iter().map(check).sum());
    purgatory.settle(0, 0, crowd.count());
    nanos
}

/// Values of a key below all thresholds.
fn not_reached(waiting: usize) -> f64 {
    const KEY: u32 = 7;
    let purgatory = Requests::new();
    let crowd = Crowd::on_value(&purgatory, KEY, CALLS + 1, waiting);
    let nanos = least(20, CALLS, || (1..=CALLS).map(|value| purgatory.advance(&KEY, value)).sum());
    assert_eq!(purgatory.advance(&KEY, u64::MAX) as u64, crowd.count());
    assert_eq!(crowd.satisfied(), crowd.count());
    purgatory.settle(crowd.count(), 0, 0);
    nanos
}

/// Events on a key whose requests cannot complete yet; the time of one request.
fn not_ready(waiting: usize) -> f64 {
    const KEY: u32 = 0;
    let purgatory = Requests::new();
    let crowd = Crowd::new(&purgatory, &demands::<1>(1, KEY..KEY + 1, waiting));
    let nanos = least(10, crowd.count(), || purgatory.check_and_complete(&KEY));
    crowd.make_ready();
    assert_eq!(purgatory.check_and_complete(&KEY) as u64, crowd.count());
    assert_eq!(crowd.satisfied(), crowd.count());
    purgatory.settle(crowd.count(), 0, 0);
    nanos
}

/// The longest of many registrations on keys of their own: the least of the rounds is taken for
/// each call.
pub(crate) fn longest(bench: &mut Bench) -> Done {
    let demands: Vec<Demand<3>> = demands_apart(1, bench.full(10_000, 1_000_000));
    let mut least = vec![u64::MAX; demands.len()];
    for _ in 0..bench.rounds().clamp(2, 5) {
        let purgatory = Requests::new();
        let answers = Answer::leak(demands.len());
        let mut before = Instant::now();
        for ((answer, demand), least) in answers.iter().zip(&demands).zip(&mut least) {
            SharedPurgatory::watch(&purgatory, answer, demand.keys, demand.delay());
            let now = Instant::now();
            *least = nanos(now - before).min(*least);
            before = now;
        }
        purgatory.settle(0, 0, demands.len() as u64);
    }
    bench.add("purgatory/longest", NAME, count(least.into_iter().max().unwrap_or(0)) / 1e3);
    Ok(())
}

/// How late requests expire while very many others wait.
pub(crate) fn late(bench: &mut Bench) -> Done {
    let window = bench.pick(300, 2_000, 3_000);
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
        bench.add_all(Figure::percentiles(&row, NAME, &late, "p50 p99 max", MILLI));
        if let Some((cpu, empty)) = cpu.zip(empty) {
            bench.add(&format!("purgatory/late/cpu/{case}/process"), NAME, cpu[0] - empty[0]);
            bench.add(&format!("purgatory/late/cpu/{case}/threads"), NAME, cpu[1]);
        }
    }

    /// Runs with a purgatory. Returns lateness after the warm-up, in nanoseconds.
    fn run(&self) -> (hdrhistogram::Histogram<u64>, Cpu) {
        let purgatory = PurgatoryBuilder::new().timer(Timer::builder().name(THREADS)).build();
        let purgatory = purgatory.expect("the settings are valid");
        let answers = Answer::leak(self.demands.len() + self.expiring.len());
        let (answers, answers_of_expiring) = answers.split_at(self.demands.len());
        let mut coming = answers.iter().zip(&self.demands).map(|(answer, demand)| {
            let operation = Operation::Waits(Request(answer));
            Waiting { key: watch(&purgatory, operation, demand, demand.delay()), answer, demand }
        });
        let mut waiting: Vec<_> = coming.by_ref().take(self.waiting).collect();
        let arrivals = Arrivals::new(self.expiring.len());
        let mut due = Vec::with_capacity(self.expiring.len());
        let cpu = self.paced(arrivals.instant(0), |step| {
            for (&victim, coming) in self.victims[step].iter().zip(&mut coming) {
                let waiting = &mut waiting[victim as usize];
                self.complete(&purgatory, waiting);
                *waiting = coming;
            }
            let (demand, delay) = &self.expiring[step];
            let delay = Duration::from_nanos(*delay);
            due.push(arrivals.due_in(delay));
            let request = Request(&answers_of_expiring[step]);
            let operation = Operation::Expires(request, due[step], Arc::clone(&arrivals));
            watch(&purgatory, operation, demand, delay);
        });
        let late = arrivals.settle_strictly(due).lateness(WARM_UP as u64 * 1_000_000..u64::MAX);
        self.settle(&purgatory);
        (late, cpu)
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

    fn complete(&self, purgatory: &Purgatory<u32, Operation>, waiting: &Waiting<'_>) {
        match self.by {
            By::Handle => assert!(purgatory.complete(waiting.key), "a request did not wait"),
            By::Event => {
                waiting.answer.make_ready();
                assert_eq!(purgatory.check_and_complete(&waiting.demand.keys[0]), 1);
            }
        }
        assert!(waiting.answer.is_satisfied());
    }

    /// Shuts the purgatory down and checks that every request is accounted for.
    fn settle(&self, purgatory: &Purgatory<u32, Operation>) {
        assert_eq!(purgatory.watched(), 3 * self.waiting as u64);
        let steps = self.victims.len() as u64;
        settle_own(purgatory, steps * PER_MILLI as u64, steps, self.waiting as u64);
    }
}

/// A request that waits.
struct Waiting<'a> {
    key: OperationKey,
    answer: &'static Answer,
    demand: &'a Demand<3>,
}

enum Operation {
    Waits(Request),
    /// Only expires; notes when, under its deadline.
    Expires(Request, u64, Arc<Arrivals>),
}

impl DelayedOperation<u32> for Operation {
    fn try_complete(&mut self) -> bool {
        let (Self::Waits(request) | Self::Expires(request, ..)) = self;
        request.try_complete()
    }

    fn complete(self, completion: Completion) {
        match self {
            Self::Waits(request) => request.complete(completion),
            Self::Expires(request, due, arrivals) => {
                assert_eq!(completion, Completion::Expired);
                arrivals.note(due);
                request.complete(completion);
            }
        }
    }
}

fn watch(
    purgatory: &Purgatory<u32, Operation>,
    operation: Operation,
    demand: &Demand<3>,
    delay: Duration,
) -> OperationKey {
    let watched = purgatory.try_complete_else_watch(operation, demand.keys, delay);
    watched.ok().and_then(Watched::key).expect("the request waits")
}
