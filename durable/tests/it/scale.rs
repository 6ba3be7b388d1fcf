//! A model of 100 workers on PostgreSQL databases with 1,000,000,000 pending timeouts: half an hour
//! of virtual time, in which each statement has the cost that was measured. The model restates the
//! rules by which workers claim; it does not run the driver.
//!
//! `cargo test --release -p delaywheel-durable --test it scale -- --nocapture` prints a table.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use fastrand::Rng;

const PENDING: u64 = 1_000_000_000;
const WORKERS: usize = 100;
/// Cores of each database server.
const CORES: usize = 8;
const SPAN: u64 = 1_800 * SECOND;

/// Times are in nanoseconds.
const SECOND: u64 = 1_000_000_000;
const YEAR: u64 = 365 * 86_400;

// Time of one core, as measured; decision 0018 tells how.
const STATEMENT: u64 = 200_000;
const CLAIM: u64 = 10_000;
const SKIP: u64 = 430;
const BEGIN: u64 = 12_000;
const SETTLE: u64 = 12_000;

// Settings of a worker, as they are by default.
const WINDOW: u64 = 60 * SECOND;
const CAPACITY: u64 = 16_384;
const DELIVERIES: u64 = 1_024;
const HANDLER: u64 = 5_000_000;

/// Numbers of timeouts by due time, in its order.
type Queue = VecDeque<(u64, u64)>;

/// Takes the earliest timeouts that are due before a time, at most `limit`.
fn take(queue: &mut Queue, before: u64, limit: u64) -> Vec<(u64, u64)> {
    let mut taken = Vec::new();
    let mut left = limit;
    while let Some((due, count)) = queue.front_mut().filter(|(due, _)| *due < before && left > 0) {
        let part = left.min(*count);
        taken.push((*due, part));
        left -= part;
        *count -= part;
        if *count == 0 {
            queue.pop_front();
        }
    }
    taken
}

fn total(groups: &[(u64, u64)]) -> u64 {
    groups.iter().map(|(_, count)| count).sum()
}

struct Database {
    pending: Queue,
    /// When each core is free.
    cores: BinaryHeap<Reverse<u64>>,
    busy: u64,
    /// Claims under way: when they end, and their rows, which other claims skip.
    claims: Vec<(u64, u64)>,
}

impl Database {
    /// Timeouts of the half hour: spread evenly, and many at one time.
    fn new(rng: &mut Rng, databases: u64) -> Self {
        let mut pending = Queue::new();
        let mean = PENDING / YEAR / databases;
        for second in 60..SPAN / SECOND - 60 {
            let peak = match second {
                600 => 200_000 / databases,
                1_200 => 1_000_000 / databases,
                _ => 0,
            };
            let count = peak + mean / 2 + rng.u64(..=mean) + u64::from(rng.u64(..databases) == 0);
            pending.push_back((second * SECOND, count));
        }
        let cores = (0..CORES).map(|_| Reverse(0)).collect();
        Self { pending, cores, busy: 0, claims: Vec::new() }
    }

    /// Runs a statement on the core that is free first. Returns when it ends.
    fn run(&mut self, now: u64, cost: u64) -> u64 {
        let Reverse(free) = self.cores.pop().expect("a core");
        let end = now.max(free) + cost;
        self.cores.push(Reverse(end));
        self.busy += cost;
        end
    }
}

#[derive(Default)]
struct Worker {
    held: Queue,
    /// Deliveries under way.
    begun: u64,
    /// When the next row is due in half a window, as the latest claim told. Another worker may have
    /// taken that row since; then the claim is empty.
    claim_at: Option<u64>,
}

struct Outcome {
    scheduled: u64,
    delivered: u64,
    /// Lateness of the median, of 99 in 100, and of all, over the whole time.
    lateness: [Duration; 3],
    /// How long the server was busy of the time, in a thousand.
    busy: u64,
    claims: u64,
    empty_claims: u64,
    most_held: u64,
}

fn simulate(seed: u64, databases: usize) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let mut servers: Vec<_> =
        (0..databases).map(|_| Database::new(&mut rng, databases as u64)).collect();
    let new = |_| Worker { claim_at: Some(0), ..Worker::default() };
    let mut workers: Vec<_> = (0..WORKERS).map(new).collect();
    let scheduled = servers.iter().flat_map(|server| &server.pending).map(|(_, count)| count).sum();
    let mut steps: BinaryHeap<_> =
        (0..WORKERS).map(|worker| Reverse((rng.u64(..SECOND), worker))).collect();
    let mut lateness: Vec<(u64, u64)> = Vec::new();
    let (mut delivered, mut claims, mut empty_claims, mut most_held) = (0, 0, 0, 0);
    while let Some(Reverse((now, number))) = steps.pop() {
        let (worker, server) = (&mut workers[number], &mut servers[number % databases]);
        let held = worker.held.iter().map(|(_, count)| count).sum::<u64>();
        most_held = held.max(most_held);
        let claim_at = worker.claim_at.filter(|_| held <= CAPACITY / 2);
        let next = if worker.begun > 0 {
            delivered += worker.begun;
            let cost = STATEMENT + SETTLE * worker.begun;
            worker.begun = 0;
            server.run(now, cost)
        } else if worker.held.front().is_some_and(|(due, _)| *due <= now) {
            let begun = take(&mut worker.held, now + 1, DELIVERIES);
            worker.begun = total(&begun);
            let end = server.run(now, STATEMENT + BEGIN * worker.begun);
            lateness.extend(begun.iter().map(|(due, count)| (end - due, *count)));
            end + HANDLER
        } else if claim_at.is_some_and(|at| at <= now) {
            server.claims.retain(|(end, _)| *end > now);
            let skipped = total(&server.claims);
            let claimed = take(&mut server.pending, now + WINDOW + 1, CAPACITY - held);
            let count = total(&claimed);
            let end = server.run(now, STATEMENT + CLAIM * count + SKIP * skipped);
            server.claims.push((end, count));
            worker.held.extend(claimed);
            let first = server.pending.front();
            worker.claim_at = first.map(|(due, _)| due.saturating_sub(WINDOW / 2));
            claims += 1;
            empty_claims += u64::from(count == 0);
            end
        } else {
            let due = worker.held.front().map(|(due, _)| *due);
            let Some(next) = due.into_iter().chain(claim_at).min() else { continue };
            next
        };
        steps.push(Reverse((next, number)));
    }
    lateness.sort_unstable();
    let quantile = |share: u64| {
        let rank = delivered * share / 100;
        let mut passed = 0;
        let found = lateness.iter().find(|(_, count)| {
            passed += count;
            passed >= rank
        });
        Duration::from_nanos(found.map_or(0, |(late, _)| *late))
    };
    let busy: u64 = servers.iter().map(|server| server.busy).sum();
    Outcome {
        scheduled,
        delivered,
        lateness: [50, 99, 100].map(quantile),
        busy: busy * 1_000 / (SPAN * (CORES * databases) as u64),
        claims,
        empty_claims,
        most_held,
    }
}

#[test]
fn a_hundred_workers_deliver_peaks_among_a_billion_timeouts() {
    println!(
        "databases  delivered  late p50  p99  max   busy/1000   claims (empty)   held at most"
    );
    let mut last = Duration::MAX;
    for databases in [1, 2, 4, 8] {
        let outcome = simulate(1, databases);
        let Outcome { scheduled, delivered, lateness, busy, claims, empty_claims, most_held } =
            outcome;
        println!(
            "{databases}  {delivered}  {lateness:.1?}  {busy}  {claims} ({empty_claims})  {most_held}"
        );
        assert_eq!(delivered, scheduled);
        assert!(most_held <= CAPACITY);
        assert!(lateness[2] <= last, "more databases are not slower");
        last = lateness[2];
    }
}
