//! Two threads whose requests wait on the same keys, and are completed by events.

use std::{
    sync::{Barrier, OnceLock},
    thread,
    time::{Duration, Instant},
};

use delaywheel_compare::{
    purgatory::{Announce, ClosedLoop, Crowd, Requests, Share, demands, settle},
    report::{
        rounds::{Contestant, Medians},
        settings::Settings,
        table::{Row, count},
    },
};

/// Requests between two looks at the clock.
const CHUNK: usize = 256;

/// Demands that are drawn beforehand, and gone through again and again.
const DRAWN: usize = 1 << 14;

/// Requests that wait on other keys.
const OTHERS: usize = 100_000;

/// Numbers of the figures of a turn.
const ONE: usize = 0;
const TWO: usize = 1;
const TWO_OF_ONE: usize = 2;
const ONE_BESIDE_OTHERS: usize = 3;
const TWO_BESIDE_OTHERS: usize = 4;

/// Millions of requests a second, of all threads together.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    // Many short turns: what else the machine does then weighs on all alike.
    let (time, turns) = if settings.is_quick { (100, 1) } else { (200, 3) };
    let contestant = Threads { time: Duration::from_millis(time) };
    let medians = Medians::of(turns * settings.rounds, vec![Box::new(contestant) as Box<_>]);
    let rate = |name, index| Row::new(name, "M/s", medians.figure(index));
    let multiple = |name, index| Row::new(name, "x", medians.figure(index));
    vec![
        rate("closed loop, 1 thread", ONE),
        rate("closed loop, 2 threads", TWO).at_least(6.0).beside("K 3.0"),
        multiple("2 threads, of 1", TWO_OF_ONE).at_least(1.7),
        multiple("time with 100,000 on other keys, 1 thread", ONE_BESIDE_OTHERS),
        multiple("time with 100,000 on other keys, 2 threads", TWO_BESIDE_OTHERS).at_most(1.3),
    ]
}

struct Threads {
    time: Duration,
}

impl Contestant<5> for Threads {
    fn name(&self) -> &'static str {
        "ours"
    }

    /// Millions of requests a second with 1 and 2 threads, and the one as a multiple of the other;
    /// and how many times as long a request takes on 1 and on 2 threads while others wait.
    fn measure(&mut self) -> [f64; 5] {
        let [one, two] = [1, 2].map(|threads| self.throughput(threads, 0));
        let beside = [1, 2].map(|threads| self.throughput(threads, OTHERS));
        [one, two, two / one, one / beside[0], two / beside[1]]
    }
}

impl Threads {
    /// Millions of requests a second, in a purgatory made anew.
    fn throughput(&self, threads: u32, others: usize) -> f64 {
        let purgatory = Requests::new();
        let (barrier, end) = (Barrier::new(threads as usize), OnceLock::new());
        let work = |thread| {
            // Those that wait besides are in the shards of the threads that are measured.
            let others = demands::<3>(thread, 1_000..1_100, others / threads as usize);
            let crowd = Crowd::new(&purgatory, &others);
            let demands = demands::<3>(thread, 0..100, DRAWN);
            let mut requests = ClosedLoop::new(&purgatory, Announce::One, &demands[..1]);
            requests.run(&demands[..CHUNK]);
            barrier.wait();
            let end = *end.get_or_init(|| Instant::now() + self.time);
            let mut done = 0;
            for demands in demands.chunks_exact(CHUNK).cycle() {
                if Instant::now() >= end {
                    break;
                }
                requests.run(demands);
                done += CHUNK as u64;
            }
            (done, requests.finish(), crowd.count())
        };
        let shares: Vec<(u64, Share, u64)> = thread::scope(|scope| {
            let work = &work;
            let spawn = |thread| scope.spawn(move || work(u64::from(thread)));
            let workers: Vec<_> = (0..threads).map(spawn).collect();
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
        });
        let sum = |figure: fn(&(u64, Share, u64)) -> u64| shares.iter().map(figure).sum::<u64>();
        let watched = sum(|(_, share, _)| share.watched);
        assert_eq!(sum(|(_, share, _)| share.completed), watched, "announcements completed all");
        settle(&purgatory, watched, sum(|&(.., waiting)| waiting));
        count(sum(|&(done, ..)| done)) / self.time.as_secs_f64() / 1e6
    }
}
