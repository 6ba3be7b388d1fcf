//! The steady state: many timeouts are pending, most are cancelled or moved before their deadline,
//! and time passes.
//!
//! Cancelled timeouts may cost something when their deadline comes. So a state is steady once as
//! much time has passed as the longest delay.

use crate::prelude::*;

/// Ticks between two reads of the clock.
const CHECKED: u32 = 16;

/// The operation on a timeout whose request is answered, or whose connection receives a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Replace,
    Reset,
}

/// Operations on a contestant, drawn in advance.
#[derive(Clone)]
pub struct Traffic {
    operation: Operation,
    /// The delay of each timeout at first, and after it has expired.
    delays: Vec<u64>,
    /// Victims in this order, each with the next delay.
    turns: Vec<Pair>,
    per_tick: usize,
    /// The longest delay.
    pub max_delay: u64,
    /// Whether time stands still after a fresh fill.
    pub is_fresh: bool,
}

/// Operations that are drawn; then they repeat.
const DRAWN: u32 = 1 << 20;

impl Traffic {
    fn new(operation: Operation, spread: Spread, pending: u32, per_tick: u32, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        Self {
            operation,
            delays: spread.delays(&mut rng, pending),
            turns: spread.pairs(&mut rng, pending, DRAWN),
            per_tick: per_tick.max(1) as usize,
            max_delay: spread.max(),
            is_fresh: false,
        }
    }

    /// A request server: a delay of 2 s, and a request is answered after 100 ms on average.
    pub fn requests(pending: u32, seed: u64) -> Self {
        let spread = Spread::Fixed(2 * SECOND);
        Self::new(Operation::Replace, spread, pending, pending / 100, seed)
    }

    /// The same; the oldest request is answered first.
    pub fn requests_in_order(pending: u32, seed: u64) -> Self {
        let mut traffic = Self::requests(pending, seed);
        traffic.turns.truncate((DRAWN / pending * pending) as usize);
        for (turn, victim) in traffic.turns.iter_mut().zip((0..pending).cycle()) {
            turn.victim = victim;
        }
        traffic
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

    /// Delays that differ, while time stands still.
    pub fn fresh(spread: Spread, pending: u32, seed: u64) -> Self {
        let turns = spread.pairs(&mut Rng::with_seed(!seed), pending, DRAWN.max(4 * pending));
        Self { turns, is_fresh: true, ..Self::churn(spread, pending, seed) }
    }
}

/// A contestant at work.
pub struct Steady<'a, T: Timers> {
    timers: T,
    traffic: &'a Traffic,
    keys: Vec<T::Key>,
    position: usize,
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
        let keys = Vec::with_capacity(traffic.delays.len());
        let expired = Vec::with_capacity(traffic.delays.len());
        Self { timers, traffic, keys, position: 0, now: 0, expired, lost: 0 }
    }

    /// Inserts all timeouts, a few in each tick.
    pub fn ramp_up(&mut self) {
        for (delay, request) in self.traffic.delays.iter().zip(0..) {
            self.keys.push(self.timers.insert(self.now + delay, request));
            if self.keys.len().is_multiple_of(self.traffic.per_tick) && !self.traffic.is_fresh {
                self.tick();
            }
        }
    }

    /// Goes on until this many operations are done or the real time is over. Returns the number,
    /// and their time.
    pub fn run(&mut self, count: u64, limit: Duration) -> (u64, Duration) {
        let (start, mut done) = (Instant::now(), 0);
        while done < count && start.elapsed() < limit {
            done += (0..CHECKED).map(|_| self.turn()).sum::<u64>();
        }
        (done, start.elapsed())
    }

    /// Goes on until the steady state, or until the real time is over. Returns whether it reached
    /// the state.
    pub fn warm_up(&mut self, limit: Duration) -> bool {
        if self.traffic.is_fresh {
            let replaced = 4 * self.keys.len() as u64;
            return self.run(replaced, limit).0 >= replaced;
        }
        self.pass(self.traffic.max_delay.min(60 * SECOND), limit)
    }

    /// Goes on until this many ticks have passed or the real time is over. Returns whether they
    /// have passed.
    pub fn pass(&mut self, ticks: u64, limit: Duration) -> bool {
        let (start, end) = (Instant::now(), self.now + ticks);
        while self.now < end && start.elapsed() < limit {
            for _ in 0..CHECKED {
                self.turn();
            }
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

    /// The contestant, and the keys of its timeouts.
    pub fn into_parts(self) -> (T, Vec<T::Key>) {
        (self.timers, self.keys)
    }

    /// Performs the operations of one tick and lets it pass. Returns their number.
    fn turn(&mut self) -> u64 {
        let Traffic { operation, turns, per_tick, .. } = self.traffic;
        let end = turns.len().min(self.position + per_tick);
        let turns = &turns[self.position..end];
        match operation {
            Operation::Replace => self.replace(turns),
            Operation::Reset => self.reset(turns),
        }
        self.position = end % self.traffic.turns.len();
        if !self.traffic.is_fresh {
            self.tick();
        }
        turns.len() as u64
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
    use crate::timers::{BTree, Wheel};

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
            Traffic::churn(Spread::Minute, 3_000, 1),
        ] {
            let wheel = outcome::<Wheel>(&traffic);
            assert_eq!(wheel.len(), 3_000);
            assert_eq!(wheel, outcome::<BTree>(&traffic));
        }
    }
}
