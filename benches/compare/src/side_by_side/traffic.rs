//! A steady state: so many timeouts are pending, most are cancelled or put off before their time,
//! others take their place, and time goes on.
//!
//! All that is drawn is drawn before. One loop serves the request server, whose delays are all the
//! same, the churn of delays that differ, and connections that are kept alive.
//!
//! What cancelled timeouts leave behind is paid for when their time comes. So a state is steady once
//! as much time has passed as the longest delay, for which there are few enough operations in a tick.

use std::time::{Duration, Instant};

use crate::{
    Timers,
    workload::{DAY, Pair, SECOND, Spread, Workload},
};

/// Of so many requests one is answered in each tick.
const REQUESTS_PER_TURN: u32 = 100;

/// Ticks between two looks at the clock.
const CHECKED: u32 = 16;

/// What becomes of a timeout whose request was answered, or whose connection has shown life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It is cancelled, and another is inserted in its stead.
    Replace,
    /// It is put off.
    Reset,
}

/// Which delays there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delays {
    /// All the same, in ticks.
    Fixed(u64),
    /// Drawn.
    Drawn(Spread),
}

impl Delays {
    /// The longest there may be.
    #[must_use]
    pub const fn max(self) -> u64 {
        match self {
            Self::Fixed(delay) => delay,
            Self::Drawn(Spread::Minute) => 60 * SECOND,
            Self::Drawn(Spread::Month) => 30 * DAY,
            Self::Drawn(Spread::Year) => 365 * DAY,
        }
    }
}

/// What is done to a contestant.
#[derive(Debug, Clone)]
pub struct Traffic {
    operation: Operation,
    /// The delay of each timeout at first, and of the one that is inserted if it expires.
    delays: Vec<u64>,
    /// Timeouts that are replaced or put off, in this order, with the delay that follows.
    turns: Vec<Pair>,
    /// How many of them in each tick.
    per_tick: usize,
}

impl Traffic {
    /// Ticks that a request waits for its answer.
    pub const REQUEST: u64 = 2 * SECOND;

    /// Requests that are answered in each tick, with so many in flight.
    #[must_use]
    pub fn requests_per_tick(pending: u32) -> usize {
        per_tick(pending, REQUESTS_PER_TURN)
    }

    /// Ticks that a connection may be silent.
    pub const CONNECTION: u64 = 30 * SECOND;

    /// Draws it. In each tick there is one operation for so many that are pending, and one at least.
    #[must_use]
    fn new(
        operation: Operation,
        delays: Delays,
        (pending, pending_per_turn): (u32, u32),
        count: u32,
        seed: u64,
    ) -> Self {
        let spread = if let Delays::Drawn(spread) = delays { spread } else { Spread::Minute };
        let mut workload = Workload::new(spread, seed);
        let (mut first, mut turns) = (workload.deadlines(pending), workload.pairs(pending, count));
        if let Delays::Fixed(delay) = delays {
            first.fill(delay);
            for turn in &mut turns {
                turn.deadline = delay;
            }
        }
        let per_tick = per_tick(pending, pending_per_turn);
        Self { operation, delays: first, turns, per_tick }
    }

    /// A request server: 2 s timeouts, all in flight are answered in random order after a tenth of a
    /// second on average, and none expires.
    #[must_use]
    pub fn requests(pending: u32, count: u32, seed: u64) -> Self {
        Self::new(
            Operation::Replace,
            Delays::Fixed(Self::REQUEST),
            (pending, REQUESTS_PER_TURN),
            count,
            seed,
        )
    }

    /// Connections that are closed when 30 s go by without a message; each sends one in a second on
    /// average, which puts it off.
    #[must_use]
    pub fn connections(pending: u32, count: u32, seed: u64) -> Self {
        let delays = Delays::Fixed(Self::CONNECTION);
        Self::new(Operation::Reset, delays, (pending, 1_000), count, seed)
    }

    /// Timeouts of delays that differ, each replaced after 10 s on average, or before if there are
    /// less than 100,000: ten are replaced in each tick at least. Whatever comes sooner expires.
    #[must_use]
    pub fn churn(spread: Spread, pending: u32, count: u32, seed: u64) -> Self {
        let per_turn = (pending / 10).clamp(1, 10_000);
        Self::new(Operation::Replace, Delays::Drawn(spread), (pending, per_turn), count, seed)
    }
}

fn per_tick(pending: u32, pending_per_turn: u32) -> usize {
    (pending / pending_per_turn).max(1) as usize
}

/// A contestant at work.
#[derive(Debug)]
pub struct Steady<'a, T: Timers> {
    timers: T,
    traffic: &'a Traffic,
    /// The timeout of each request.
    keys: Vec<T::Key>,
    /// Where in the traffic it goes on.
    position: usize,
    now: u64,
    /// Requests whose timeout expired in this tick.
    expired: Vec<u64>,
    /// Timeouts that were not there any more when they were to be cancelled or put off, though they
    /// had not expired.
    lost: u64,
}

impl<'a, T: Timers> Steady<'a, T> {
    /// Takes room for the keys, so that what is allocated later is the contestant's.
    #[must_use]
    pub fn new(timers: T, traffic: &'a Traffic) -> Self {
        let keys = Vec::with_capacity(traffic.delays.len());
        let expired = Vec::with_capacity(traffic.delays.len());
        Self { timers, traffic, keys, position: 0, now: 0, expired, lost: 0 }
    }

    /// Inserts all, a few in each tick.
    pub fn ramp_up(&mut self) {
        for (delay, request) in self.traffic.delays.iter().zip(0..) {
            self.keys.push(self.timers.insert(self.now + delay, request));
            if self.keys.len().is_multiple_of(self.traffic.per_tick) {
                self.tick();
            }
        }
    }

    /// Goes on with the traffic, anew at its end, until as many operations are done or the real time is
    /// over. Returns how many were done and how long they took.
    pub fn run(&mut self, count: u64, limit: Duration) -> (u64, Duration) {
        let (start, mut done) = (Instant::now(), 0);
        while done < count && start.elapsed() < limit {
            done += (0..CHECKED).map(|_| self.turn()).sum::<u64>();
        }
        (done, start.elapsed())
    }

    /// Goes on until so many ticks have passed or the real time is over. Returns whether they have.
    pub fn pass(&mut self, ticks: u64, limit: Duration) -> bool {
        let (start, end) = (Instant::now(), self.now + ticks);
        while self.now < end && start.elapsed() < limit {
            for _ in 0..CHECKED {
                self.turn();
            }
        }
        self.now >= end
    }

    /// Does what is to be done in a tick, and lets it pass. Returns how many operations that were.
    fn turn(&mut self) -> u64 {
        let Traffic { operation, turns, per_tick, .. } = self.traffic;
        let end = turns.len().min(self.position + per_tick);
        let turns = &turns[self.position..end];
        match operation {
            Operation::Replace => self.replace(turns),
            Operation::Reset => self.reset(turns),
        }
        self.position = end % self.traffic.turns.len();
        self.tick();
        turns.len() as u64
    }

    /// Number of timeouts that got lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Number of pending timeouts.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.timers.len()
    }

    fn replace(&mut self, turns: &[Pair]) {
        for turn in turns {
            let key = &mut self.keys[turn.victim as usize];
            self.lost += u64::from(!self.timers.cancel(*key));
            *key = self.timers.insert(self.now + turn.deadline, u64::from(turn.victim));
        }
    }

    fn reset(&mut self, turns: &[Pair]) {
        for turn in turns {
            let (key, deadline) = (&mut self.keys[turn.victim as usize], self.now + turn.deadline);
            *key = self.timers.reset(*key, deadline).unwrap_or_else(|| {
                self.lost += 1;
                self.timers.insert(deadline, u64::from(turn.victim))
            });
        }
    }

    /// Lets a tick pass; whatever expires is inserted again.
    fn tick(&mut self) {
        self.now += 1;
        self.timers.advance(self.now, |request| self.expired.push(request));
        for request in self.expired.drain(..) {
            let request_index = usize::try_from(request).expect("requests are counted in u32");
            let deadline = self.now + self.traffic.delays[request_index];
            self.keys[request_index] = self.timers.insert(deadline, request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timers::{BTree, Wheel};

    const LONG: Duration = Duration::from_mins(10);

    fn outcome<T: Timers + Default>(traffic: &Traffic) -> (u64, usize, Vec<u64>) {
        let mut steady = Steady::new(T::default(), traffic);
        steady.ramp_up();
        assert!(steady.pass(200, LONG));
        assert!((50_000..51_000).contains(&steady.run(50_000, LONG).0));
        let (lost, pending) = (steady.lost(), steady.pending());
        let mut expired = Vec::new();
        while steady.timers.len() > 0 {
            steady.now += 1;
            let mut due = Vec::new();
            steady.timers.advance(steady.now, |request| due.push(request));
            due.sort_unstable();
            expired.append(&mut due);
        }
        (lost, pending, expired)
    }

    #[test]
    fn traffic_goes_on_where_it_was() {
        let traffic = Traffic::requests(1_000, 25, 1);
        assert_eq!(traffic.per_tick, 10);
        let mut steady = Steady::new(BTree::default(), &traffic);
        steady.ramp_up();
        let turns: Vec<_> = (0..4).map(|_| steady.turn()).collect();
        assert_eq!(turns, [10, 10, 5, 10]);
        assert_eq!(steady.position, 10);
    }

    #[test]
    fn few_and_many_are_replaced_at_a_rate_that_suits_them() {
        let per_tick = |pending| Traffic::churn(Spread::Minute, pending, 1, 1).per_tick;
        assert_eq!([100, 10_000, 100_000, 1_000_000].map(per_tick), [10, 10, 10, 100]);
    }

    #[test]
    fn every_traffic_keeps_as_many_pending_and_loses_none() {
        for traffic in [
            Traffic::requests(3_000, 20_000, 1),
            Traffic::connections(3_000, 20_000, 1),
            Traffic::churn(Spread::Minute, 3_000, 20_000, 1),
        ] {
            let wheel = outcome::<Wheel>(&traffic);
            assert_eq!((wheel.0, wheel.1, wheel.2.len()), (0, 3_000, 3_000));
            assert_eq!(wheel, outcome::<BTree>(&traffic));
        }
    }
}
