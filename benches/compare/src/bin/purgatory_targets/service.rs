//! A service in which very many requests wait: in each millisecond some complete, as many come in
//! their stead, and one comes that only expires.

use std::{
    hint::black_box,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use delaywheel::{
    Completion, DelayedOperation, Purgatory, PurgatoryBuilder, Timer, Watched,
    purgatory::OperationKey,
};
use delaywheel_compare::{
    delivered::{Delivered, nanos},
    purgatory::{Answer, Demand, Request, demands, demands_apart},
    real::{Usage, process_cpu, sleep_until, threads, wait_until},
};
use fastrand::Rng;

/// Requests that complete in each millisecond, and that come in their stead.
const PER_MILLI: usize = 20;

const MILLI: Duration = Duration::from_millis(1);

/// Delays of those that only expire, in nanoseconds.
const DELAYS: Range<u64> = 50_000_000..500_000_000;

/// Milliseconds until as many expire as come.
const WARM_UP: usize = 550;

/// How the names of the purgatory's threads begin.
const THREADS: &str = "waiting";

/// By what requests are completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By their handle; they watch three keys out of 100.
    Handle,
    /// By an event on one of their keys, which nobody else watches.
    Event,
}

/// What comes and completes, and when. All is drawn beforehand.
pub(crate) struct Service {
    by: By,
    /// Number of requests that wait.
    waiting: usize,
    /// What waits at first, and then what comes in each millisecond.
    demands: Vec<Demand<3>>,
    /// Which of those that wait complete in each millisecond.
    victims: Vec<[u32; PER_MILLI]>,
    /// What comes in each millisecond and only expires, in so many nanoseconds.
    expiring: Vec<(Demand<3>, u64)>,
}

/// What a run has shown.
pub(crate) struct Outcome {
    /// How late requests expired that were due after the warm-up, in nanoseconds.
    pub(crate) late: Vec<u64>,
    pub(crate) cpu: Cpu,
}

/// Milliseconds of processor time in each second after the warm-up; not a number if the system does
/// not tell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    /// Of all the process.
    pub(crate) process: f64,
    /// Of the purgatory's threads.
    pub(crate) own: f64,
}

impl Service {
    pub(crate) fn new(by: By, waiting: usize, millis: usize) -> Self {
        let mut rng = Rng::with_seed(1);
        let steps = WARM_UP + millis;
        let count = waiting + steps * PER_MILLI;
        // Those that expire are on keys as the others are.
        let mut demands = match by {
            By::Handle => demands(2, 0..100, count + steps),
            By::Event => demands_apart(2, count + steps),
        };
        let expiring = demands.split_off(count);
        let bound = u32::try_from(waiting).expect("some fit into memory");
        let victims = (0..steps).map(|_| [(); PER_MILLI].map(|()| rng.u32(0..bound)));
        let victims = victims.collect();
        let delay = |demand| (demand, rng.u64(DELAYS));
        Self { by, waiting, demands, victims, expiring: expiring.into_iter().map(delay).collect() }
    }

    /// Runs in a purgatory made for it.
    pub(crate) fn run(&self) -> Outcome {
        let timer = Timer::builder().name(THREADS);
        let purgatory = PurgatoryBuilder::new().timer(timer).build();
        let purgatory = purgatory.expect("the settings are valid");
        let answers = Answer::leak(self.demands.len() + self.expiring.len());
        let (answers, answers_of_expiring) = answers.split_at(self.demands.len());
        let mut coming = answers.iter().zip(&self.demands).map(|(answer, demand)| {
            let operation = Operation::Waits(Request(answer));
            Waiting { key: watch(&purgatory, operation, demand, demand.delay()), answer, demand }
        });
        let mut waiting: Vec<_> = coming.by_ref().take(self.waiting).collect();
        let delivered = Delivered::with_capacity(self.expiring.len());
        let mut due = Vec::with_capacity(self.expiring.len());
        let cpu = self.paced(delivered.instant(0), |step| {
            for (&victim, coming) in self.victims[step].iter().zip(&mut coming) {
                let place = &mut waiting[victim as usize];
                self.complete(&purgatory, place);
                *place = coming;
            }
            let (demand, delay) = &self.expiring[step];
            let request = Request(&answers_of_expiring[step]);
            due.push(nanos(delivered.instant(0).elapsed()) + delay);
            let operation = Operation::Expires(request, due[step], Arc::clone(&delivered));
            watch(&purgatory, operation, demand, Duration::from_nanos(*delay));
        });
        let window = WARM_UP as u64 * 1_000_000..nanos(delivered.instant(0).elapsed());
        let late = delivered.settle(due).into_iter().filter(|(due, _)| window.contains(due));
        let late = late.map(|(_, late)| late).collect();
        self.settle(&purgatory);
        Outcome { late, cpu }
    }

    /// Does the same, but for what the purgatory would do. Returns what that takes.
    pub(crate) fn run_empty(&self) -> Cpu {
        let mut waiting: Vec<_> = self.demands[..self.waiting].iter().collect();
        let mut coming = self.demands[self.waiting..].iter();
        self.paced(Instant::now(), |step| {
            for (&victim, coming) in self.victims[step].iter().zip(&mut coming) {
                waiting[victim as usize] = black_box(coming);
            }
            black_box(self.expiring[step]);
        })
    }

    /// Calls `step` in each millisecond. Returns what the process used after the warm-up.
    fn paced(&self, origin: Instant, mut step: impl FnMut(usize)) -> Cpu {
        let mut before = None;
        for (index, time) in (0..self.victims.len()).zip(0..) {
            sleep_until(origin + time * MILLI);
            if index == WARM_UP {
                before = usage();
            }
            step(index);
        }
        let millis = self.victims.len() - WARM_UP;
        let seconds = Duration::from_millis(millis as u64).as_secs_f64();
        let Some((before, after)) = before.zip(usage()) else {
            return Cpu { process: f64::NAN, own: f64::NAN };
        };
        let [process, own] = [0, 1]
            .map(|index| after[index].saturating_sub(before[index]).as_secs_f64() * 1e3 / seconds);
        Cpu { process, own }
    }

    fn complete(&self, purgatory: &Purgatory<u32, Operation>, waiting: &Waiting) {
        match self.by {
            By::Handle => assert!(purgatory.complete(waiting.key), "a request did not wait"),
            By::Event => {
                waiting.answer.make_ready();
                assert_eq!(purgatory.check_and_complete(&waiting.demand.keys[0]), 1);
            }
        }
        assert!(waiting.answer.is_satisfied());
    }

    /// Shuts the purgatory down, and checks that every request is accounted for.
    fn settle(&self, purgatory: &Purgatory<u32, Operation>) {
        assert_eq!(purgatory.watched(), 3 * self.waiting as u64);
        let operations = purgatory.shutdown();
        assert_eq!(operations.len(), self.waiting);
        operations.into_iter().for_each(|operation| operation.complete(Completion::ShutDown));
        assert_eq!((purgatory.delayed(), purgatory.watched()), (0, 0));
        let (steps, stats) = (self.victims.len() as u64, purgatory.stats());
        assert_eq!((stats.satisfied, stats.expired), (steps * PER_MILLI as u64, steps));
        assert_eq!((stats.at_once, stats.refused, stats.panicked), (0, 0, 0));
        assert_eq!(purgatory.timer_stats().pending, 0);
    }
}

/// A request that waits, and by what it is completed.
struct Waiting<'a> {
    key: OperationKey,
    answer: &'static Answer,
    demand: &'a Demand<3>,
}

enum Operation {
    /// Is completed.
    Waits(Request),
    /// Expires, and takes down that it was due then.
    Expires(Request, u64, Arc<Delivered>),
}

impl DelayedOperation<u32> for Operation {
    fn try_complete(&mut self) -> bool {
        let (Self::Waits(request) | Self::Expires(request, ..)) = self;
        request.try_complete()
    }

    fn complete(self, completion: Completion) {
        match self {
            Self::Waits(request) => request.complete(completion),
            Self::Expires(request, due, delivered) => {
                assert_eq!(completion, Completion::Expired);
                delivered.take_down(due);
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

/// Processor time so far: of the process, and of the purgatory's threads. Waits for the threads of
/// another purgatory to end, that was there before; `None` if the system does not tell.
fn usage() -> Option<[Duration; 2]> {
    let mut usage = Usage::default();
    wait_until("there are a reaper and an executor, or neither", || {
        usage = threads(THREADS).unwrap_or_default();
        usage.threads == 2 || usage.threads == 0
    });
    Some([process_cpu()?, usage.cpu])
}
