//! The steady state: many timeouts are pending, most are cancelled or moved before their deadline,
//! and time passes.
//!
//! Cancelled timeouts may cost something when their deadline comes. So a state is steady once as
//! much time has passed as the longest delay.

use crate::prelude::*;

/// Ticks between two reads of the clock. Their operations are drawn before, while the clock stands.
const CHECKED: usize = 16;

/// The operation on a timeout whose request is answered, or whose connection receives a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Replace,
    Reset,
}

/// Operations on a contestant, each on a victim that gets a new delay.
#[derive(Clone)]
pub struct Traffic {
    operation: Operation,
    spread: Spread,
    /// Whether the oldest timeout is the next victim, and not a random one.
    is_in_order: bool,
    /// The delay of each timeout at first, and after it has expired.
    delays: Vec<u64>,
    per_tick: usize,
    rng: Rng,
}

impl Traffic {
    fn new(operation: Operation, spread: Spread, pending: u32, per_tick: u32, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let delays = spread.delays(&mut rng, pending);
        let per_tick = per_tick.max(1) as usize;
        Self { operation, spread, is_in_order: false, delays, per_tick, rng }
    }

    /// A request server: a delay of 2 s, and a request is answered after 100 ms on average.
    pub fn requests(pending: u32, seed: u64) -> Self {
        let spread = Spread::Fixed(2 * SECOND);
        Self::new(Operation::Replace, spread, pending, pending / 100, seed)
    }

    /// The same; the oldest request is answered first.
    pub fn requests_in_order(pending: u32, seed: u64) -> Self {
        Self { is_in_order: true, ..Self::requests(pending, seed) }
    }

    /// Connections with a delay of 30 s; each receives a message every second on average.
    pub fn connections(pending: u32, seed: u64) -> Self {
        let spread = Spread::Fixed(30 * SECOND);
        Self::new(Operation::Reset, spread, pending, pending / 1_000, seed)
    }

    /// Delays that differ; each timeout is replaced after 10 s on average, or before if fewer than
    /// 100,000 are pending.
    pub fn churn(spread: Spread, pending: u32, seed: u64) -> Self {
        Self::new(Operation::Replace, spread, pending, (pending / 10_000).max(10), seed)
    }

    /// The same; each timeout is moved, to an earlier or a later deadline.
    pub fn resets(spread: Spread, pending: u32, seed: u64) -> Self {
        Self { operation: Operation::Reset, ..Self::churn(spread, pending, seed) }
    }

    fn pending(&self) -> u32 {
        u32::try_from(self.delays.len()).expect("timeouts are counted in u32")
    }

    fn draws(&self) -> Draws<Pair, Box<dyn FnMut() -> Pair>> {
        let (pending, spread, mut rng) = (self.pending(), self.spread, self.rng.clone());
        let mut oldest = (0..pending).cycle();
        let is_in_order = self.is_in_order;
        let draw = move || {
            let random = rng.u32(0..pending);
            let victim = if is_in_order { oldest.next().unwrap_or(0) } else { random };
            Pair { victim, delay: spread.draw(&mut rng) }
        };
        Draws::new(Box::new(draw))
    }
}

/// A contestant at work.
pub struct Steady<'a, T: Timers> {
    timers: T,
    traffic: &'a Traffic,
    /// `None` while the operations of a few ticks are performed.
    draws: Option<Draws<Pair, Box<dyn FnMut() -> Pair>>>,
    keys: Vec<T::Key>,
    now: u64,
    /// Timeouts that expired in this tick.
    expired: Vec<u64>,
    /// Timeouts that were gone when they were to be cancelled or moved, though they had not
    /// expired.
    lost: u64,
}

impl<'a, T: Timers> Steady<'a, T> {
    /// Allocates the keys, so later allocations are the contestant's.
    pub fn new(timers: T, traffic: &'a Traffic) -> Self {
        Self {
            timers,
            traffic,
            draws: Some(traffic.draws()),
            keys: Vec::with_capacity(traffic.delays.len()),
            now: 0,
            expired: Vec::with_capacity(traffic.delays.len()),
            lost: 0,
        }
    }

    /// Inserts all timeouts, a few in each tick.
    pub fn ramp_up(&mut self) {
        for (delay, request) in self.traffic.delays.iter().zip(0..) {
            self.keys.push(self.timers.insert(self.now + delay, request));
            if self.keys.len().is_multiple_of(self.traffic.per_tick) {
                self.tick();
            }
        }
    }

    /// Performs the operations of a few ticks. Returns their number and time.
    fn turn(&mut self) -> (u64, Duration) {
        let mut draws = self.draws.take().expect("no turn is within another");
        let operations = draws.chunk(CHECKED * self.traffic.per_tick);
        let (time, ()) = timed(|| {
            for turns in operations.chunks(self.traffic.per_tick) {
                match self.traffic.operation {
                    Operation::Replace => self.replace(turns),
                    Operation::Reset => self.reset(turns),
                }
                self.tick();
            }
        });
        let done = operations.len() as u64;
        self.draws = Some(draws);
        (done, time)
    }

    /// Goes on until this many operations are done or took as long as the limit. Returns the
    /// number, and their time.
    pub fn run(&mut self, count: u64, limit: Duration) -> (u64, Duration) {
        let (mut done, mut time) = (0, Duration::ZERO);
        while done < count && time < limit {
            let (operations, turn) = self.turn();
            done += operations;
            time += turn;
        }
        (done, time)
    }

    /// Goes on until the steady state, or until the real time is over. Returns whether it reached
    /// the state.
    pub fn warm_up(&mut self, limit: Duration) -> bool {
        self.pass(self.traffic.spread.max().min(60 * SECOND), limit)
    }

    /// Goes on until this many ticks have passed or the real time is over. Returns whether they
    /// have passed.
    pub fn pass(&mut self, ticks: u64, limit: Duration) -> bool {
        let (start, end) = (Instant::now(), self.now + ticks);
        while self.now < end && start.elapsed() < limit {
            self.turn();
        }
        self.now >= end
    }

    /// Describes lost timeouts; `None` if there are none and all are pending.
    pub fn fault(&self) -> Option<String> {
        let (lost, pending, all) = (self.lost, self.timers.len(), self.traffic.delays.len());
        (lost > 0 || pending != all)
            .then(|| format!("{lost} could not be cancelled, {pending} of {all} pending"))
    }

    /// Nanoseconds of an operation, measured over this many, but no longer than the limit.
    pub fn measure(&mut self, operations: u64, limit: Duration) -> f64 {
        // Other contestants have used the caches meanwhile.
        self.run(operations / 4, limit / 4);
        let (done, time) = self.run(operations, limit);
        nanos_per(time, done)
    }

    fn replace(&mut self, turns: &[Pair]) {
        for turn in turns {
            let key = &mut self.keys[turn.victim as usize];
            self.lost += u64::from(self.timers.cancel(*key).is_none());
            *key = self.timers.insert(self.now + turn.delay, u64::from(turn.victim));
        }
    }

    fn reset(&mut self, turns: &[Pair]) {
        for turn in turns {
            let (key, deadline) = (&mut self.keys[turn.victim as usize], self.now + turn.delay);
            *key = self.timers.reset(*key, deadline).unwrap_or_else(|| {
                self.lost += 1;
                self.timers.insert(deadline, u64::from(turn.victim))
            });
        }
    }

    /// Lets a tick pass, and inserts expired timeouts again.
    fn tick(&mut self) {
        self.now += 1;
        self.timers.advance(self.now, |request| self.expired.push(request));
        for request in self.expired.drain(..) {
            let index = usize::try_from(request).expect("requests are counted in u32");
            self.keys[index] = self.timers.insert(self.now + self.traffic.delays[index], request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timers::BTree;

    const LONG: Duration = Duration::from_mins(10);

    fn outcome<T: Timers + Default>(traffic: &Traffic) -> Vec<u64> {
        let mut steady = Steady::new(T::default(), traffic);
        steady.ramp_up();
        assert!(steady.pass(200, LONG));
        assert!((50_000..51_000).contains(&steady.run(50_000, LONG).0));
        assert_eq!(steady.fault(), None);
        let mut expired = Vec::new();
        while !steady.timers.is_empty() {
            steady.now += 1;
            let mut due = Vec::new();
            steady.timers.advance(steady.now, |request| due.push(request));
            due.sort_unstable();
            expired.append(&mut due);
        }
        expired
    }

    #[test]
    fn every_traffic_keeps_the_number_pending_and_loses_none() {
        for traffic in [
            Traffic::requests(3_000, 1),
            Traffic::requests_in_order(3_000, 1),
            Traffic::connections(3_000, 1),
            Traffic::resets(Spread::Minute, 3_000, 1),
            Traffic::churn(Spread::Minute, 3_000, 1),
        ] {
            let wheel = outcome::<Wheel>(&traffic);
            assert_eq!(wheel.len(), 3_000);
            assert_eq!(wheel, outcome::<BTree>(&traffic));
        }
    }
}
