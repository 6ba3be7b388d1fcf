//! The machine: runs a script on a wheel and the oracle, and compares after every operation.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
};

use delaywheel::{
    Tick,
    wheel::{Key, TimingWheel, WheelBuilder},
};

use crate::{
    oracle::Oracle,
    script::{Op, Pick, Script, Setup, When},
};

/// Operations between two comparisons of a wheel with many buckets.
const STRIDE_OF_LARGE: u64 = 128;

/// Operations between two comparisons of all contents, when there are more timeouts than this.
const STRIDE_OF_CONTENTS: u64 = 16;

#[derive(Debug)]
pub(crate) struct Machine {
    wheel: TimingWheel<u64>,
    oracle: Oracle,
    max_pending: usize,
    /// All keys so far. Their number is the value of the next timeout.
    known: HashSet<Key>,
    /// Keys of the pending timeouts, oldest first.
    live: Vec<Key>,
    dead: Vec<Key>,
    applied: u64,
}

impl Machine {
    pub(crate) fn new(setup: Setup) -> Self {
        let Setup { size, start, max_pending } = setup;
        let start = Tick::new(start);
        let builder = WheelBuilder::new().size(size).max_pending(max_pending);
        let mut wheel = builder.build().expect("a script has a size in range");
        wheel.observe(start);
        Self {
            wheel,
            oracle: Oracle::new(start),
            max_pending: max_pending as usize,
            known: HashSet::new(),
            live: Vec::new(),
            dead: Vec::new(),
            applied: 0,
        }
    }

    /// Runs a script until all timeouts have ended. Compares after every operation.
    pub(crate) fn run(script: &Script) {
        let mut machine = Self::new(script.setup);
        for &op in &script.ops {
            machine.apply(op);
            if script.setup.size <= 1 << 10 || machine.applied % STRIDE_OF_LARGE == 0 {
                machine.compare();
            }
        }
        machine.finish();
    }

    pub(crate) fn apply(&mut self, op: Op) {
        self.applied += 1;
        match op {
            Op::Insert { at, count } => self.insert(at, count),
            Op::Churn { at, count } => self.churn(at, count),
            Op::Cancel(pick) => self.cancel(pick),
            Op::Reset(pick, at) => self.reset(pick, at),
            Op::Look(pick) => self.look(pick),
            Op::Advance { to, limit } => self.advance(self.resolve(to), limit),
            Op::Clear => self.clear(),
            Op::Drain(count) => self.drain(count),
            Op::Shrink => self.wheel.shrink(),
        }
    }

    /// Compares the observable state of the wheel with the oracle.
    pub(crate) fn compare(&self) {
        self.wheel.check_invariants();
        assert_eq!(self.wheel.now(), self.oracle.now);
        assert_eq!(self.wheel.len(), self.oracle.pending.len());
        assert_eq!(self.wheel.is_empty(), self.oracle.pending.is_empty());
        if self.wheel.len() as u64 <= STRIDE_OF_CONTENTS || self.applied % STRIDE_OF_CONTENTS == 0 {
            self.compare_contents();
        }
        let (next, least) = (self.wheel.next_expiration(), self.oracle.least());
        assert_eq!(next.is_none(), least.is_none());
        assert!(next <= least, "{next:?} is after the least deadline {least:?}");
    }

    fn compare_contents(&self) {
        let (mut iter, mut seen) = (self.wheel.iter(), BTreeMap::new());
        for left in (0..self.wheel.len()).rev() {
            let (key, deadline, &value) = iter.next().expect("it has this many left");
            seen.insert(key, (deadline, value));
            assert_eq!(iter.len(), left);
        }
        assert!(iter.next().is_none());
        assert_eq!(seen, self.oracle.pending);
    }

    pub(crate) fn finish(mut self) {
        while let Some(next) = self.wheel.next_expiration() {
            self.advance(next, None);
        }
        self.compare();
        assert!(self.live.is_empty());
    }

    fn insert(&mut self, at: When, count: u8) {
        let first = self.resolve(at).get();
        for deadline in (0..count).map(|i| first.saturating_add(i.into())).map(Tick::new) {
            let value = self.known.len() as u64;
            let is_idle = self.is_idle();
            match self.wheel.insert(deadline, value) {
                Ok(key) => {
                    let reported = self.wheel.deadline(key).expect("it was inserted");
                    assert!(self.known.insert(key), "a key was given out twice");
                    self.oracle.put(key, deadline, reported, value, is_idle);
                    self.live.push(key);
                }
                Err(refused) => {
                    assert_eq!(refused.into_value(), value);
                    assert_eq!(self.live.len(), self.max_pending);
                }
            }
            assert!(self.live.len() <= self.max_pending);
        }
    }

    fn churn(&mut self, at: When, count: u8) {
        for _ in 0..count {
            let pending = self.live.len();
            self.insert(at, 1);
            if self.live.len() > pending {
                self.cancel(Pick::Newest);
            }
        }
    }

    fn cancel(&mut self, pick: Pick) {
        let Some(key) = self.pick(pick) else { return };
        let known = self.oracle.pending.remove(&key);
        assert_eq!(self.wheel.cancel(key), known.map(|(_, value)| value));
        if known.is_some() {
            self.bury(key);
        }
    }

    fn reset(&mut self, pick: Pick, at: When) {
        let Some(key) = self.pick(pick) else { return };
        let wanted = self.resolve(at);
        let is_idle = self.is_idle();
        let known = self.oracle.pending.get(&key).copied();
        assert_eq!(self.wheel.reset(key, wanted), known.map(|(deadline, _)| deadline));
        if let Some((_, value)) = known {
            let reported = self.wheel.deadline(key).expect("it was reset");
            self.oracle.put(key, wanted, reported, value, is_idle);
        }
    }

    fn look(&mut self, pick: Pick) {
        let Some(key) = self.pick(pick) else { return };
        let known = self.oracle.pending.get(&key).copied();
        assert_eq!(self.wheel.deadline(key), known.map(|(deadline, _)| deadline));
        assert_eq!(self.wheel.get(key).copied(), known.map(|(_, value)| value));
        assert_eq!(self.wheel.get_mut(key).copied(), known.map(|(_, value)| value));
    }

    /// Advances, and checks the contract's clauses on expiry and on the next expiration.
    fn advance(&mut self, to: Tick, limit: Option<u64>) {
        let (is_idle, before) = (self.is_idle_at(to), self.wheel.next_expiration());
        self.oracle.now = self.oracle.now.max(to);
        let mut due = self.wheel.advance(to).limit(limit.unwrap_or(u64::MAX));
        let mut ended = Vec::new();
        for expired in due.by_ref() {
            self.oracle.expire(&expired);
            ended.push(expired.key);
        }
        let is_drained = due.is_drained();
        let count = ended.len() as u64;
        for key in ended {
            self.bury(key);
        }
        let is_as_before = count == 0 && self.wheel.next_expiration() == before;
        assert!(!is_idle || is_as_before, "the wheel did work before the next expiration");
        assert!(is_idle || !is_as_before || limit.is_some(), "no work at the next expiration");
        assert!(count <= limit.unwrap_or(u64::MAX), "more steps than allowed");
        assert!(is_drained || limit.is_some(), "without a limit, a due timeout was left");
        let held = self.oracle.least().filter(|&least| is_drained && least <= self.oracle.now);
        assert_eq!(held, None, "a timeout that is due was left");
    }

    fn clear(&mut self) {
        drop(self.wheel.drain());
        self.oracle.pending.clear();
        self.dead.append(&mut self.live);
    }

    fn drain(&mut self, count: u8) {
        let mut drain = self.wheel.drain();
        assert_eq!(drain.len(), self.live.len());
        let taken: Vec<_> = drain.by_ref().take(count.into()).collect();
        mem::forget(drain);
        for (key, deadline, value) in taken {
            assert_eq!(self.oracle.pending.remove(&key), Some((deadline, value)));
            self.bury(key);
        }
    }

    fn bury(&mut self, key: Key) {
        self.live.retain(|&live| live != key);
        self.dead.push(key);
    }

    fn is_idle(&self) -> bool {
        self.is_idle_at(self.oracle.now)
    }

    fn is_idle_at(&self, tick: Tick) -> bool {
        self.wheel.next_expiration().is_none_or(|next| next > tick.max(self.oracle.now))
    }

    fn resolve(&self, when: When) -> Tick {
        when.resolve(self.oracle.now, self.wheel.next_expiration())
    }

    fn pick(&self, pick: Pick) -> Option<Key> {
        let around = |keys: &[Key], n: usize| keys.get(n.checked_rem(keys.len())?).copied();
        match pick {
            Pick::Pending(n) => around(&self.live, n),
            Pick::Newest => self.live.last().copied(),
            Pick::Dead(n) => self.dead.iter().rev().nth(n.checked_rem(self.dead.len())?).copied(),
        }
    }
}
