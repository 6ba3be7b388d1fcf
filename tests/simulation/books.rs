//! The books of one timer: what was asked of it, what it answered, and what it has done since.
//!
//! They know the contract and nothing of the mechanism. A timeout that is due while the timer takes a
//! turn may have been passed on or not; until the turn is over either is right. Of all others it is
//! known what the timer must say.

use std::collections::BTreeSet;

use delaywheel::TimerStats;

use crate::{
    clock::Time,
    script::{Action, Back, Delay},
};

/// A timeout, by its place in the books.
pub(crate) type Number = usize;

pub(crate) type Tick = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// The timer has not answered yet.
    Coming,
    Pending,
    /// Passed on, or about to be in this turn: it is going to run.
    PassedOn,
    Ran,
    Cancelled,
    Refused,
    Returned,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) state: State,
    /// The tick from which it is due.
    pub(crate) deadline: Tick,
    /// The tick in which it came, or was last reset.
    pub(crate) came: Tick,
    pub(crate) action: Action,
    /// The turn in which it came, or was last reset.
    pub(crate) since: u64,
    /// The turn in which it was passed on.
    pub(crate) passed: u64,
    /// The thread that scheduled it.
    pub(crate) thread: usize,
    pub(crate) is_dropped: bool,
}

/// What the timer should have counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) scheduled: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) returned: u64,
    pub(crate) rejected: u64,
    pub(crate) panicked: u64,
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent of one another")]
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) entries: Vec<Entry>,
    /// Which entries are pending.
    pub(crate) pending: BTreeSet<Number>,
    pub(crate) counts: Counts,
    pub(crate) is_shut_down: bool,
    pub(crate) is_draining: bool,
    pub(crate) max_pending: Option<u64>,
    /// How many were passed on since the books were last compared. A reaper gives their places
    /// back a moment after they have left.
    pub(crate) lately: u64,
    /// How many are passed on and have not run.
    pub(crate) passed_on: u64,
    /// Whether nothing may be late by a tick, because the clock stops wherever something is due.
    pub(crate) is_exact: bool,
    /// Whether what runs does so in the order of the deadlines.
    pub(crate) is_ordered: bool,
    origin: Time,
    tick: u64,
    /// The latest tick that the timer may have seen.
    latest: Tick,
    /// What ran last, by thread: its turn and deadline.
    last: Vec<(u64, Tick)>,
}

impl Books {
    pub(crate) fn new(origin: Time, tick: u64, max_pending: Option<u64>, threads: usize) -> Self {
        Self {
            entries: Vec::new(),
            pending: BTreeSet::new(),
            counts: Counts::default(),
            is_shut_down: false,
            is_draining: false,
            max_pending,
            lately: 0,
            passed_on: 0,
            is_exact: false,
            is_ordered: true,
            origin,
            tick,
            latest: 0,
            last: vec![(0, 0); threads],
        }
    }

    /// Notes what the clock shows.
    pub(crate) fn see(&mut self, now: Time) {
        self.latest = self.latest.max(self.floor(self.elapsed(now)));
    }

    fn elapsed(&self, now: Time) -> u64 {
        u64::try_from(now.saturating_sub(self.origin)).unwrap_or(u64::MAX)
    }

    fn floor(&self, elapsed: u64) -> Tick {
        elapsed / self.tick
    }

    fn ceil(&self, elapsed: u64) -> Tick {
        if elapsed == u64::MAX { Tick::MAX } else { elapsed.div_ceil(self.tick) }
    }

    /// The present tick. A timer whose clock has stepped back takes it to be the latest that it has
    /// seen.
    pub(crate) fn now(&self, now: Time) -> Tick {
        self.latest.max(self.floor(self.elapsed(now)))
    }

    /// The present in nanoseconds, which does not go back behind the latest tick that was seen.
    pub(crate) fn since(&self, now: Time) -> u64 {
        self.elapsed(now).max(self.latest.saturating_mul(self.tick))
    }

    /// When what is scheduled now is due.
    pub(crate) fn after(&self, now: Time, delay: Delay) -> Tick {
        let Delay::Nanos(delay) = delay else { return Tick::MAX };
        self.ceil(self.since(now).saturating_add(delay))
    }

    /// The tick that begins so many nanoseconds after the origin, or the next one.
    pub(crate) fn at_nanos(&self, nanos: u128) -> Tick {
        self.ceil(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When what is scheduled for an instant is due.
    pub(crate) fn at(&self, time: Time) -> Tick {
        self.ceil(self.elapsed(time))
    }

    /// When a tick begins.
    pub(crate) fn begin_of(&self, tick: Tick) -> Option<Time> {
        Some(self.origin + u128::from(tick.checked_mul(self.tick)?))
    }

    /// Notes down a timeout that is about to be scheduled.
    pub(crate) fn enter(
        &mut self,
        deadline: Tick,
        now: Time,
        action: Action,
        since: u64,
        thread: usize,
    ) -> Number {
        self.entries.push(Entry {
            state: State::Coming,
            deadline,
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
        self.counts.rejected += 1;
        self.entries[number].state = State::Refused;
    }

    /// How many timeouts must be pending, and how many may be.
    pub(crate) fn load(&self, now: Time, is_in_turn: bool) -> (u64, u64) {
        let all = self.pending.len() as u64;
        let due = self.pending.iter().filter(|&&number| self.is_due(number, now)).count() as u64;
        (if is_in_turn { all - due } else { all }, all)
    }

    pub(crate) fn is_due(&self, number: Number, now: Time) -> bool {
        self.entries[number].deadline <= self.now(now)
    }

    /// What a timeout should be found to be: pending or not; `None` if either will do.
    pub(crate) fn expectation(&self, number: Number, now: Time, is_in_turn: bool) -> Option<bool> {
        let is_pending = self.entries[number].state == State::Pending;
        let is_open = is_pending && is_in_turn && self.is_due(number, now);
        (!is_open).then_some(is_pending)
    }

    /// The so-many-th entry from the end.
    pub(crate) fn pick(&self, back: Back) -> Option<Number> {
        // Every other time one that is pending.
        let nth = back / 2;
        if back % 2 == 0 {
            return self.pending.iter().rev().nth(nth).copied();
        }
        self.entries.len().checked_sub(nth + 1)
    }

    /// A timeout is not pending any more.
    pub(crate) fn leave(&mut self, number: Number, state: State) {
        self.pending.remove(&number);
        self.entries[number].state = state;
        match state {
            State::Cancelled => self.counts.cancelled += 1,
            State::Returned => self.counts.returned += 1,
            State::PassedOn => {
                self.counts.expired += 1;
                self.passed_on += 1;
            }
            State::Coming | State::Pending | State::Ran | State::Refused => {}
        }
    }

    /// A timeout has been passed on in a turn.
    pub(crate) fn pass_on(&mut self, number: Number, turn: u64) {
        self.leave(number, State::PassedOn);
        self.lately += 1;
        self.entries[number].passed = turn;
    }

    /// A callback begins, or a value is received. Returns what is wrong with that.
    pub(crate) fn run(&mut self, number: Number, now: Time, turn: u64) -> Result<(), String> {
        let tick = self.now(now);
        match self.entries[number].state {
            State::Pending => self.pass_on(number, turn),
            State::PassedOn => {}
            state => return Err(format!("timeout {number} ran though it was {state:?}")),
        }
        self.passed_on -= 1;
        let entry = &mut self.entries[number];
        entry.state = State::Ran;
        if entry.deadline > tick {
            return Err(format!("timeout {number} is early: {entry:?} at tick {tick}"));
        }
        if self.is_exact && tick != entry.deadline.max(entry.came) {
            return Err(format!("timeout {number} is late: {entry:?} at tick {tick}"));
        }
        // What came in the turn in which it was passed on has its own order.
        if self.is_ordered && entry.since < entry.passed {
            // One that was late when it came has been given the wheel's own time.
            let place = (entry.passed, entry.deadline.max(entry.came));
            let last = std::mem::replace(&mut self.last[entry.thread], place);
            if last > place {
                return Err(format!("timeout {number} is out of order: {entry:?} after {last:?}"));
            }
        }
        Ok(())
    }

    /// Order is promised from here on, for what has not been passed on yet.
    pub(crate) fn forget_order(&mut self) {
        self.last.fill((0, 0));
    }

    /// Timeouts that should have been passed on by now.
    pub(crate) fn overdue(&self, now: Time) -> Vec<Number> {
        self.pending.iter().filter(|&&number| self.is_due(number, now)).copied().collect()
    }

    /// What is wrong with what the timer has counted.
    pub(crate) fn compare(&self, stats: &TimerStats) -> Result<(), String> {
        let sum = stats.pending + stats.expired + stats.cancelled + stats.returned;
        if stats.scheduled != sum {
            return Err(format!("the ledger does not balance: {stats:?}"));
        }
        let told = Counts {
            scheduled: stats.scheduled,
            expired: stats.expired,
            cancelled: stats.cancelled,
            returned: stats.returned,
            rejected: stats.rejected,
            panicked: stats.panicked,
        };
        if told != self.counts || stats.pending != self.pending.len() as u64 {
            let pending = (stats.pending, self.pending.len());
            return Err(format!("counted {told:?}, not {:?}; pending {pending:?}", self.counts));
        }
        if stats.lateness.count() != stats.expired && !self.is_shut_down {
            return Err(format!("lateness of {} in {stats:?}", stats.lateness.count()));
        }
        Ok(())
    }
}
