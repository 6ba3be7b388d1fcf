//! The same random scripts for every contestant, beside an ordered map.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use delaywheel_compare::{
    Timers,
    timers::{BTree, DelayQueue, LazyHeap, TimerQueue, Wheel},
};
use fastrand::Rng;

const SEEDS: u64 = 100;

const STEPS: u32 = 300;

/// The longest delay, in ticks: a year.
const REACH: u64 = 365 * 86_400_000;

#[test]
fn every_contestant_hands_out_each_timeout_once_in_order_and_not_early() {
    run_all::<Wheel>();
    run_all::<LazyHeap>();
    run_all::<BTree>();
    run_all::<DelayQueue>();
    run_all::<TimerQueue>();
}

fn run_all<T: Timers + Default>() {
    for seed in 0..SEEDS {
        let run = catch_unwind(AssertUnwindSafe(|| Script::<T>::new(seed).run()));
        assert!(run.is_ok(), "{} failed with seed {seed}", T::NAME);
    }
}

/// A contestant and its expected timeouts. A payload is the number of its timeout.
struct Script<T: Timers> {
    timers: T,
    rng: Rng,
    now: u64,
    inserted: u64,
    pending: BTreeMap<u64, Pending<T::Key>>,
    /// Keys of timeouts that have ended.
    dead: Vec<T::Key>,
}

struct Pending<K> {
    key: K,
    deadline: u64,
    /// The deadline, or the time of its insert or move if that was later: no contestant can be
    /// sooner.
    due: u64,
}

impl<T: Timers + Default> Script<T> {
    fn new(seed: u64) -> Self {
        Self {
            timers: T::default(),
            rng: Rng::with_seed(seed),
            now: 0,
            inserted: 0,
            pending: BTreeMap::new(),
            dead: Vec::new(),
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            match self.rng.u32(0..100) {
                0..45 => self.insert(),
                45..57 => self.cancel(),
                57..69 => self.reset(),
                69..75 => self.disturb_dead(),
                75..85 => {
                    let span = self.span() / 128;
                    self.advance(self.now + span);
                }
                _ => drop(self.wake()),
            }
            assert_eq!(self.timers.len(), self.pending.len(), "pending");
            assert_eq!(self.timers.is_empty(), self.pending.is_empty());
        }
        while self.wake() {}
    }

    fn insert(&mut self) {
        let deadline = self.deadline();
        let key = self.timers.insert(deadline, self.inserted);
        self.expect(self.inserted, key, deadline);
        self.inserted += 1;
    }

    fn cancel(&mut self) {
        let Some((number, key)) = self.any() else { return };
        assert_eq!(self.timers.cancel(key), Some(number));
        self.pending.remove(&number);
        self.dead.push(key);
    }

    fn reset(&mut self) {
        let Some((number, key)) = self.any() else { return };
        let deadline = self.deadline();
        let moved = self.timers.reset(key, deadline).expect("it is pending");
        self.expect(number, moved, deadline);
    }

    /// Cancels and moves a timeout that has ended.
    fn disturb_dead(&mut self) {
        if T::HAS_SAFE_KEYS && !self.dead.is_empty() {
            let key = self.dead[self.rng.usize(..self.dead.len())];
            assert!(self.timers.cancel(key).is_none(), "a timeout that had ended was cancelled");
            assert!(self.timers.reset(key, self.now + 1).is_none(), "one that had ended was moved");
        }
    }

    fn advance(&mut self, now: u64) {
        self.now = now;
        let (mut expired, mut last) = (Vec::new(), 0);
        self.timers.advance(now, |number| expired.push(number));
        for number in expired {
            let timeout = self.pending.remove(&number);
            let Pending { key, deadline, due } =
                timeout.unwrap_or_else(|| panic!("{number} expired, but was not pending"));
            assert!(deadline <= now, "{number}, due at {deadline}, expired at {now}");
            assert!(last <= due, "{number} expired after {last}");
            last = due;
            self.dead.push(key);
        }
        if let Some((due, number)) = self.first() {
            assert!(due > now, "{number}, due at {due}, was held at {now}");
        }
    }

    /// Advances to the next expiration. Returns whether there was one.
    fn wake(&mut self) -> bool {
        let next = self.timers.next_expiration().map(|next| next.max(self.now));
        match self.first() {
            Some((due, number)) => {
                let next = next.expect("a timeout is pending");
                let latest = due.max(self.now);
                assert!(next <= latest, "woken at {next} for {number}, due at {due}");
            }
            None => assert_eq!(next, None),
        }
        next.inspect(|&next| self.advance(next)).is_some()
    }

    fn expect(&mut self, number: u64, key: T::Key, deadline: u64) {
        let due = deadline.max(self.now);
        self.pending.insert(number, Pending { key, deadline, due });
    }

    /// The pending timeout that is due first.
    fn first(&self) -> Option<(u64, u64)> {
        self.pending.iter().map(|(&number, timeout)| (timeout.due, number)).min()
    }

    /// A random pending timeout.
    fn any(&mut self) -> Option<(u64, T::Key)> {
        let nth = self.rng.usize(..self.pending.len().max(1));
        self.pending.iter().nth(nth).map(|(&number, timeout)| (number, timeout.key))
    }

    /// Mostly ahead, at times just past or at the longest delay.
    fn deadline(&mut self) -> u64 {
        match self.rng.u32(0..20) {
            0 => self.now.saturating_sub(self.rng.u64(0..3)),
            1 => self.now + REACH,
            _ => self.now + self.span(),
        }
    }

    /// A span of any magnitude, up to the longest delay.
    fn span(&mut self) -> u64 {
        let magnitude = self.rng.u32(0..=REACH.ilog2());
        self.rng.u64(0..=(1 << magnitude)).min(REACH)
    }
}
