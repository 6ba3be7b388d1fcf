//! Random scripts in virtual time, compared with a model that scans a map of all operations.
//!
//! After every step, purgatory and model must agree on all counts, and on the completed operations,
//! their ends and their order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use delaywheel::{
    Completion,
    Completion::{Cancelled, Expired, Satisfied, ShutDown},
    Condition::{self, Events, Threshold},
    DelayedOperation, Watch,
    purgatory::OperationKey,
};

use super::support::{Cancel as _, World, skewed};
use crate::model::model_operations;

/// Milliseconds, which are the ticks here.
type Millis = u64;

const KEYS: u32 = 8;

/// The function that registered an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Any,
    All,
}

struct Waiter {
    kind: Kind,
    /// Keys whose events it watches.
    events: BTreeSet<u32>,
    /// Thresholds that have not been reached.
    missing: Vec<(u32, u64)>,
    /// Whether its check is one of the conditions.
    is_checked: bool,
    /// `None` if the operation never expires.
    deadline: Option<Millis>,
    key: OperationKey,
}

impl Waiter {
    /// Returns whether an event on this key causes a check.
    fn is_on(&self, key: u32) -> bool {
        let is_waiting_for_values = self.kind == Kind::All && !self.missing.is_empty();
        self.events.contains(&key) && !is_waiting_for_values
    }
}

struct Script {
    world: World,
    random: fastrand::Rng,
    now: Millis,
    /// In the order of registration.
    waiting: BTreeMap<u32, Waiter>,
    keys: Vec<(u32, OperationKey)>,
    names: u32,
    counts: BTreeMap<&'static str, u64>,
}

impl Script {
    fn new(seed: u64) -> Self {
        Self {
            world: World::new(),
            random: fastrand::Rng::with_seed(seed),
            now: 0,
            waiting: BTreeMap::new(),
            keys: Vec::new(),
            names: 0,
            counts: BTreeMap::new(),
        }
    }

    fn step(&mut self) {
        match self.random.u32(..100) {
            0..40 => self.watch(),
            40..50 => self.set_ready(),
            50..62 => self.check(),
            62..70 => self.check_each(),
            70..82 => self.advance(),
            82..88 => self.by_handle(),
            88..90 => self.cancel_for_key(),
            90..91 => self.world.purgatory.shrink(),
            _ => self.pass(),
        }
        self.compare();
    }

    fn some_key(&mut self) -> u32 {
        self.random.u32(..KEYS)
    }

    fn is_ready(&self, name: u32) -> bool {
        self.world.state().ready.contains(&name)
    }

    fn has_reached(&self, key: u32, at: u64) -> bool {
        self.world.state().values.get(&key).is_some_and(|value| *value >= at)
    }

    fn some_value(&mut self, key: u32) -> u64 {
        let value = self.world.state().values.get(&key).copied().unwrap_or(0);
        (value + skewed(&mut self.random, 8)).saturating_sub(skewed(&mut self.random, 5))
    }

    fn watch(&mut self) {
        let name = self.names;
        self.names += 1;
        let kind = [Kind::Plain, Kind::Any, Kind::All][self.random.usize(..3)];
        let count = skewed(&mut self.random, 4);
        let mut watches: Vec<Condition<u32>> = Vec::new();
        for _ in 0..count {
            let key = self.some_key();
            let is_event = kind == Kind::Plain || self.random.bool();
            let at = self.some_value(key);
            watches.push(if is_event { Events(key) } else { Threshold(key, at) });
        }
        if self.random.u32(..10) == 0 {
            self.world.make_ready(name);
        }
        let delay = skewed(&mut self.random, 16);
        let deadline = (self.random.u32(..20) > 0).then_some(self.now + delay);
        let delay = deadline.map_or(Duration::MAX, |_| Duration::from_millis(delay));
        let op = self.world.op(name);
        let purgatory = &self.world.purgatory;
        let result = match kind {
            Kind::Plain => {
                let keys = watches.iter().map(|watch| match *watch {
                    Events(key) | Threshold(key, _) => key,
                    _ => unreachable!("there are two kinds of conditions"),
                });
                purgatory.watch(op, keys, delay)
            }
            Kind::Any => purgatory.watch(op, Watch::any(watches.iter().copied()), delay),
            Kind::All => purgatory.watch(op, Watch::all(watches.iter().copied()), delay),
        };
        let events: BTreeSet<_> = watches
            .iter()
            .filter_map(|watch| if let Events(key) = watch { Some(*key) } else { None })
            .collect();
        let thresholds: Vec<_> = watches
            .iter()
            .filter_map(
                |watch| if let Threshold(key, at) = watch { Some((*key, *at)) } else { None },
            )
            .collect();
        let is_checked = !events.is_empty() || thresholds.is_empty();
        let missing: Vec<_> =
            thresholds.iter().copied().filter(|&(key, at)| !self.has_reached(key, at)).collect();
        let is_ready = is_checked && self.is_ready(name);
        let is_satisfied = match kind {
            Kind::All => missing.is_empty() && (is_ready || !is_checked),
            Kind::Plain | Kind::Any => missing.len() < thresholds.len() || is_ready,
        };
        if is_satisfied {
            assert!(self.world.at_once(result));
            assert_eq!(self.world.ended(), [(name, Satisfied)]);
            self.count("at once", 1);
            return;
        }
        let key = self.world.waits(result);
        self.keys.push((name, key));
        let waiter = Waiter { kind, events, missing, is_checked, deadline, key };
        self.waiting.insert(name, waiter);
        assert_eq!(self.world.ended(), []);
    }

    fn set_ready(&mut self) {
        let name = self.names.saturating_sub(u32::try_from(skewed(&mut self.random, 8)).unwrap());
        self.world.make_ready(name);
    }

    /// Removes the operations that an event on a key completes, in the order of registration.
    fn due_on(&mut self, key: u32) -> Vec<(u32, Completion)> {
        let state = self.world.state();
        let is_due = |(name, waiter): (&u32, &Waiter)| {
            (waiter.is_on(key) && state.ready.contains(name)).then_some(*name)
        };
        let due: Vec<_> = self.waiting.iter().filter_map(is_due).collect();
        drop(state);
        self.waiting.retain(|name, _| !due.contains(name));
        due.into_iter().map(|name| (name, Satisfied)).collect()
    }

    fn count(&mut self, what: &'static str, count: usize) {
        *self.counts.entry(what).or_default() += count as u64;
    }

    fn check(&mut self) {
        let key = self.some_key();
        let completed = self.world.purgatory.check_and_complete(&key);
        let due = self.due_on(key);
        assert_eq!(completed, due.len());
        assert_eq!(self.world.ended(), due);
        self.count("satisfied", completed);
    }

    fn some_keys(&mut self) -> Vec<u32> {
        let count = self.random.usize(..4);
        (0..count).map(|_| self.some_key()).collect()
    }

    fn check_each(&mut self) {
        let keys = self.some_keys();
        let mut due: Vec<_> = keys.iter().flat_map(|key| self.due_on(*key)).collect();
        let completed = self.world.purgatory.check_each(keys);
        assert_eq!(completed, due.len());
        let mut ended = self.world.ended();
        ended.sort_by_key(|(name, _)| *name);
        due.sort_by_key(|(name, _)| *name);
        assert_eq!(ended, due);
        self.count("satisfied", completed);
    }

    fn advance(&mut self) {
        let key = self.some_key();
        let value = self.some_value(key);
        let mut state = self.world.state();
        let entry = state.values.entry(key).or_default();
        *entry = value.max(*entry);
        drop(state);
        let completed = self.world.purgatory.advance(&key, value);
        // By the last threshold that completed the operation. Operations that need a check come
        // last.
        let mut due = [BTreeMap::<u64, BTreeSet<u32>>::new(), BTreeMap::new()];
        let mut ends = BTreeSet::new();
        let state = self.world.state();
        for (name, waiter) in &mut self.waiting {
            let reached = take_reached(&mut waiter.missing, key, value);
            let (Some(first), Some(last)) = (reached.iter().min(), reached.iter().max()) else {
                continue;
            };
            let is_all = waiter.kind == Kind::All;
            let needs_check = is_all && waiter.is_checked;
            let is_due = !is_all
                || (waiter.missing.is_empty() && (!needs_check || state.ready.contains(name)));
            if is_due {
                let at = if is_all { *last } else { *first };
                due[usize::from(needs_check)].entry(at).or_default().insert(*name);
                ends.insert(*name);
            }
        }
        drop(state);
        self.waiting.retain(|name, _| !ends.contains(name));
        assert_eq!(completed, ends.len());
        let mut ended = self.world.ended().into_iter();
        // The order of equal thresholds is not promised.
        for names in due.iter().flat_map(BTreeMap::values) {
            let group: BTreeMap<_, _> = ended.by_ref().take(names.len()).collect();
            assert!(group.keys().eq(names));
            assert!(group.values().all(|end| *end == Satisfied));
        }
        assert_eq!(ended.next(), None);
        self.count("reached", completed);
    }

    fn by_handle(&mut self) {
        let back = skewed(&mut self.random, 8);
        let Some(&(name, key)) = self.keys.iter().rev().nth(usize::try_from(back).unwrap()) else {
            return;
        };
        let is_waiting = self.waiting.remove(&name).is_some();
        let purgatory = &self.world.purgatory;
        assert_eq!(purgatory.is_waiting(key), is_waiting);
        let (done, end) = if self.random.bool() {
            (purgatory.complete(key), Satisfied)
        } else {
            (purgatory.cancel_one(key), Cancelled)
        };
        assert_eq!(done, is_waiting);
        assert!(!purgatory.is_waiting(key));
        let expected: Vec<_> = is_waiting.then_some((name, end)).into_iter().collect();
        assert_eq!(self.world.ended(), expected);
        self.count("by handle", usize::from(is_waiting));
    }

    fn cancel_for_key(&mut self) {
        let key = self.some_key();
        let cancelled = self.world.purgatory.cancel_on(&key);
        let ends: BTreeSet<u32> = self
            .waiting
            .iter()
            .filter(|(_, waiter)| {
                waiter.events.contains(&key)
                    || waiter.missing.iter().any(|&(other, _)| other == key)
            })
            .map(|(name, _)| *name)
            .collect();
        let on_events: Vec<_> =
            ends.iter().filter(|name| self.waiting[name].events.contains(&key)).collect();
        let ended = self.world.ended();
        assert_eq!(cancelled, ends.len());
        assert!(ended.iter().all(|(_, end)| *end == Cancelled));
        assert!(ended.iter().map(|(name, _)| name).zip(&on_events).all(|(name, on)| name == *on));
        assert_eq!(ended.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), ends);
        assert_eq!(ended.len(), ends.len());
        self.waiting.retain(|name, _| !ends.contains(name));
        self.count("cancelled", cancelled);
    }

    fn pass(&mut self) {
        let span = skewed(&mut self.random, 12);
        self.now += span;
        self.world.clock.advance(Duration::from_millis(span));
        let mut due: Vec<_> = self
            .waiting
            .iter()
            .filter_map(|(name, waiter)| Some((waiter.deadline?, *name)))
            .filter(|(deadline, _)| *deadline <= self.now)
            .collect();
        let ended = self.world.ended();
        assert!(ended.iter().all(|(_, end)| *end == Expired));
        let deadline = |name: &u32| self.waiting[name].deadline;
        assert!(ended.iter().map(|(name, _)| deadline(name)).is_sorted(), "out of order");
        let mut expired: Vec<_> =
            ended.iter().map(|(name, _)| (deadline(name).unwrap(), *name)).collect();
        expired.sort_unstable();
        due.sort_unstable();
        assert_eq!(expired, due);
        self.waiting.retain(|name, _| !ended.iter().any(|(other, _)| other == name));
        self.count("expired", ended.len());
    }

    fn compare(&mut self) {
        let watched: usize =
            self.waiting.values().map(|waiter| waiter.events.len() + waiter.missing.len()).sum();
        let keys: BTreeSet<_> = self
            .waiting
            .values()
            .flat_map(|waiter| {
                waiter.events.iter().chain(waiter.missing.iter().map(|(key, _)| key))
            })
            .collect();
        let stats = self.world.purgatory.stats();
        let model = (self.waiting.len() as u64, watched as u64, keys.len() as u64);
        assert_eq!((stats.delayed, stats.watched, stats.keys), model);
        let ended = stats.satisfied + stats.cancelled + stats.expired;
        let counts = self.counts.values().sum::<u64>();
        assert_eq!(ended + stats.at_once, counts, "{:?} {stats:?}", self.counts);
        assert_eq!(stats.expired, self.counts.get("expired").copied().unwrap_or(0));
        self.world.check_books();
        self.world.checked();
        let name = self.random.u32(..self.names.max(1));
        if let Some(waiter) = self.waiting.get(&name) {
            assert!(self.world.purgatory.is_waiting(waiter.key));
        }
    }

    fn shut_down(&mut self) {
        let operations = self.world.purgatory.shutdown();
        assert_eq!((operations.len(), self.world.ended()), (self.waiting.len(), vec![]));
        for op in operations {
            op.complete(ShutDown);
        }
        let ended = self.world.ended();
        assert!(ended.iter().all(|(_, end)| *end == ShutDown));
        let names: BTreeSet<_> = ended.iter().map(|(name, _)| *name).collect();
        assert!(names.len() == ended.len() && names.iter().eq(self.waiting.keys()));
        self.world.check_empty();
    }
}

/// Removes the thresholds of a key that have been reached, and returns them.
fn take_reached(missing: &mut Vec<(u32, u64)>, key: u32, value: u64) -> Vec<u64> {
    let is_reached = |&(other, at): &(u32, u64)| other == key && at <= value;
    let reached = missing.iter().filter(|entry| is_reached(entry)).map(|(_, at)| *at).collect();
    missing.retain(|entry| !is_reached(entry));
    reached
}

#[test]
fn random_scripts_agree_with_the_model() {
    const STEPS: usize = 5_000;
    let scripts = model_operations().div_ceil(24_000);
    let mut counts = BTreeMap::<_, u64>::new();
    for seed in 0..scripts {
        println!("seed {seed}");
        let mut script = Script::new(seed);
        for _ in 0..STEPS {
            script.step();
        }
        script.shut_down();
        script.counts.iter().for_each(|(what, count)| *counts.entry(*what).or_default() += count);
    }
    println!("{counts:?}");
    assert!(counts.len() == 6 && counts.values().all(|count| *count > 20 * scripts), "{counts:?}");
}
