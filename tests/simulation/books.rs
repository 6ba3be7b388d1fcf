//! The books of one timer: the calls, the answers, and the events since then.
//!
//! The books are a model of the contract, not of the mechanism. While the timer takes a turn, a due
//! timeout may or may not have been handed off. Both answers are right until the turn ends. For all
//! other timeouts the model knows the right answer.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use delaywheel::TimerStats;

use crate::{
    clock::{Time, WorldClock},
    script::{Action, Back, Delay, Nanos},
};

/// A timeout, by its index in the books.
pub(crate) type Number = usize;

pub(crate) type Tick = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Coming,
    Pending,
    /// Handed off, or about to be in this turn. It will run.
    HandedOff,
    Ran,
    Cancelled,
    Refused,
    Returned,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Due {
    Tick(Tick),
    Time(SystemTime),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) state: State,
    pub(crate) due: Due,
    /// The tick in which it was scheduled or last reset.
    pub(crate) came: Tick,
    pub(crate) action: Action,
    /// The turn in which it was scheduled or last reset.
    pub(crate) since: u64,
    /// The turn in which it was handed off.
    pub(crate) passed: u64,
    pub(crate) thread: usize,
    pub(crate) is_dropped: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) scheduled: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) returned: u64,
    pub(crate) refused: u64,
    pub(crate) panicked: u64,
}

#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) entries: Vec<Entry>,
    pub(crate) pending: BTreeSet<Number>,
    pub(crate) counts: Counts,
    pub(crate) is_shut_down: bool,
    pub(crate) is_draining: bool,
    pub(crate) max_pending: Option<u64>,
    /// Number of timeouts that were handed off and have not run.
    pub(crate) handed_off: u64,
    /// Whether no timeout may be late by a tick, because the clock stops at each deadline.
    pub(crate) is_exact: bool,
    clock: WorldClock,
    origin: Time,
    tick: u64,
    /// The latest tick that the timer may have seen.
    latest: Tick,
    /// The turn and deadline of the last callback, by thread.
    last: Vec<(u64, Tick)>,
}

impl Books {
    pub(crate) fn new(
        clock: &WorldClock,
        tick: u64,
        max_pending: Option<u64>,
        threads: usize,
    ) -> Self {
        Self {
            entries: Vec::new(),
            pending: BTreeSet::new(),
            counts: Counts::default(),
            is_shut_down: false,
            is_draining: false,
            max_pending,
            handed_off: 0,
            is_exact: false,
            clock: clock.clone(),
            origin: clock.now(),
            tick,
            latest: 0,
            last: vec![(0, 0); threads],
        }
    }

    pub(crate) fn see(&mut self, now: Time) {
        self.latest = self.latest.max(self.floor(self.elapsed(now)));
    }

    pub(crate) fn elapsed(&self, now: Time) -> u64 {
        u64::try_from(now.saturating_sub(self.origin)).unwrap_or(u64::MAX)
    }

    fn floor(&self, elapsed: u64) -> Tick {
        elapsed / self.tick
    }

    pub(crate) fn ceil(&self, elapsed: u64) -> Tick {
        if elapsed == u64::MAX { Tick::MAX } else { elapsed.div_ceil(self.tick) }
    }

    /// Returns the current tick. If the clock has stepped back, a timer uses the latest tick that
    /// it has seen.
    pub(crate) fn now(&self, now: Time) -> Tick {
        self.latest.max(self.floor(self.elapsed(now)))
    }

    /// Returns the current time in nanoseconds, not before the latest tick that was seen. The last
    /// time that comes is 2^64 - 2 ns.
    pub(crate) fn since(&self, now: Time) -> u64 {
        self.elapsed(now).min(u64::MAX - 1).max(self.latest.saturating_mul(self.tick))
    }

    pub(crate) fn after(&self, now: Time, delay: Delay) -> Tick {
        let Delay::Nanos(delay) = delay else { return Tick::MAX };
        self.due(now, self.since(now).saturating_add(delay))
    }

    pub(crate) fn at(&self, now: Time, time: Time) -> Tick {
        self.due(now, self.elapsed(time))
    }

    /// A time that has passed is due at once.
    fn due(&self, now: Time, elapsed: u64) -> Tick {
        let tick = self.ceil(elapsed);
        if elapsed <= self.since(now) { tick.min(self.now(now)) } else { tick }
    }

    pub(crate) fn within(&self, now: Time, delay: Delay, slack: Nanos) -> Tick {
        let Delay::Nanos(delay) = delay else { return Tick::MAX };
        let start = self.since(now).saturating_add(delay);
        let (first, end) = (self.ceil(start), start.saturating_add(slack));
        // The ticks with the most zeros at their ends come first.
        let rounded = (0..64).rev().map(|bits| self.floor(end) >> bits << bits);
        rounded.into_iter().find(|tick| *tick >= first).unwrap_or(first)
    }

    pub(crate) fn begin_of(&self, tick: Tick) -> Option<Time> {
        Some(self.origin + u128::from(tick.checked_mul(self.tick)?))
    }

    pub(crate) fn enter(
        &mut self,
        due: Due,
        now: Time,
        action: Action,
        since: u64,
        thread: usize,
    ) -> Number {
        self.entries.push(Entry {
            state: State::Coming,
            due,
            came: self.now(now),
            action,
            since,
            passed: 0,
            thread,
            is_dropped: false,
        });
        self.entries.len() - 1
    }

    pub(crate) fn accept(&mut self, number: Number) {
        self.counts.scheduled += 1;
        self.entries[number].state = State::Pending;
        self.pending.insert(number);
    }

    pub(crate) fn refuse(&mut self, number: Number) {
        self.counts.refused += 1;
        self.entries[number].state = State::Refused;
    }

    /// Returns the least and the greatest number of timeouts that may be pending.
    pub(crate) fn load(&self, now: Time, is_in_turn: bool) -> (u64, u64) {
        let all = self.pending.len() as u64;
        let due = self.pending.iter().filter(|&&number| self.is_due(number, now)).count() as u64;
        (if is_in_turn { all - due } else { all }, all)
    }

    pub(crate) fn is_due(&self, number: Number, now: Time) -> bool {
        self.has_been_due(number, now, 0)
    }

    /// Returns the same; by the wall clock, whether it was due this number of ticks ago.
    fn has_been_due(&self, number: Number, now: Time, ticks: u32) -> bool {
        match self.entries[number].due {
            Due::Tick(tick) => tick <= self.now(now),
            Due::Time(time) => time + ticks * Duration::from_nanos(self.tick) <= self.clock.wall(),
        }
    }

    /// Returns whether a timeout should be pending, or `None` if both answers are right.
    pub(crate) fn expectation(&self, number: Number, now: Time, is_in_turn: bool) -> Option<bool> {
        let is_pending = self.entries[number].state == State::Pending;
        let is_open = is_pending && is_in_turn && self.is_due(number, now);
        (!is_open).then_some(is_pending)
    }

    /// Returns an entry, counted from the end.
    pub(crate) fn pick(&self, back: Back) -> Option<Number> {
        // Even numbers count the pending entries only.
        let nth = back / 2;
        if back % 2 == 0 {
            return self.pending.iter().rev().nth(nth).copied();
        }
        self.entries.len().checked_sub(nth + 1)
    }

    pub(crate) fn leave(&mut self, number: Number, state: State) {
        self.pending.remove(&number);
        self.entries[number].state = state;
        match state {
            State::Cancelled => self.counts.cancelled += 1,
            State::Returned => self.counts.returned += 1,
            State::HandedOff => {
                self.counts.expired += 1;
                self.handed_off += 1;
            }
            State::Coming | State::Pending | State::Ran | State::Refused => {}
        }
    }

    pub(crate) fn hand_off(&mut self, number: Number, turn: u64) {
        self.leave(number, State::HandedOff);
        self.entries[number].passed = turn;
    }

    /// Records that a callback begins, or that a value is received. Returns an error if this breaks
    /// a promise.
    pub(crate) fn run(&mut self, number: Number, now: Time, turn: u64) -> Result<(), String> {
        let (tick, is_due) = (self.now(now), self.is_due(number, now));
        match self.entries[number].state {
            State::Pending => self.hand_off(number, turn),
            State::HandedOff => {}
            state => return Err(format!("timeout {number} ran though it was {state:?}")),
        }
        self.handed_off -= 1;
        let entry = &mut self.entries[number];
        entry.state = State::Ran;
        if !is_due {
            return Err(format!("timeout {number} is early: {entry:?} at tick {tick}"));
        }
        let Due::Tick(deadline) = entry.due else { return Ok(()) };
        // The wheel replaces a deadline that has passed with its own time.
        let deadline = deadline.max(entry.came);
        if self.is_exact && tick != deadline {
            return Err(format!("timeout {number} is late: {entry:?} at tick {tick}"));
        }
        // A timeout that was scheduled in the turn of its hand-off has no promised order.
        if entry.since < entry.passed {
            let place = (entry.passed, deadline);
            let last = std::mem::replace(&mut self.last[entry.thread], place);
            if last > place {
                return Err(format!("timeout {number} is out of order: {entry:?} after {last:?}"));
            }
        }
        Ok(())
    }

    /// Begins a new order: earlier callbacks no longer count.
    pub(crate) fn forget_order(&mut self) {
        self.last.fill((0, 0));
    }

    /// Returns the timeouts that should have been handed off by now. Times of the wall clock are
    /// rounded up to a tick, and a step by less than a tick may have no effect.
    pub(crate) fn overdue(&self, now: Time) -> Vec<Number> {
        self.pending.iter().filter(|&&number| self.has_been_due(number, now, 2)).copied().collect()
    }

    pub(crate) fn compare(&self, stats: &TimerStats) -> Result<(), String> {
        let sum = stats.pending + stats.expired + stats.cancelled + stats.returned;
        if stats.scheduled != sum {
            return Err(format!("the counts do not add up: {stats:?}"));
        }
        let reported = Counts {
            scheduled: stats.scheduled,
            expired: stats.expired,
            cancelled: stats.cancelled,
            returned: stats.returned,
            refused: stats.refused,
            panicked: stats.panicked,
        };
        if reported != self.counts || stats.pending != self.pending.len() as u64 {
            let pending = (stats.pending, self.pending.len());
            return Err(format!(
                "counted {reported:?}, not {:?}; pending {pending:?}",
                self.counts
            ));
        }
        if stats.lateness.count() != stats.expired && !self.is_shut_down {
            return Err(format!("lateness of {} in {stats:?}", stats.lateness.count()));
        }
        Ok(())
    }
}
