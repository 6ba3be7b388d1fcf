//! Random scripts, compared with a model of the permits of the purgatory and of each key. However
//! an operation ends, it releases exactly the permits that it took.

use std::collections::BTreeMap;

use delaywheel::{
    Watch,
    Watch::{Events, Threshold},
    purgatory::{OperationKey, Overload, WatchErrorKind},
};

use super::support::{HOUR, MS, World};

const TOTAL: u32 = 7;
const PER_KEY: u32 = 3;
const KEYS: u32 = 6;

struct Waiting {
    key: OperationKey,
    watches: Vec<Watch<u32>>,
}

struct Script {
    world: World,
    random: fastrand::Rng,
    overload: Overload,
    names: u32,
    /// The waiting operations of the model, by name. So the first one has waited longest.
    waiting: BTreeMap<u32, Waiting>,
    refused: [u32; 2],
    displaced: u32,
}

impl Script {
    fn new(seed: u64, overload: Overload) -> Self {
        let world = World::with(|builder| {
            let builder = builder.max_delayed(TOTAL.into(), overload);
            builder.max_delayed_per_key(PER_KEY.into(), overload)
        });
        let random = fastrand::Rng::with_seed(seed);
        let waiting = BTreeMap::new();
        Self { world, random, overload, names: 0, waiting, refused: [0; 2], displaced: 0 }
    }

    /// Up to four keys, each once.
    fn watches(&mut self) -> Vec<Watch<u32>> {
        let mut keys: Vec<_> = (0..KEYS).collect();
        self.random.shuffle(&mut keys);
        keys.truncate(self.random.usize(1..5));
        // A threshold that no other operation has.
        let at = 100 + u64::from(self.names);
        let watch = |key| if self.random.bool() { Events(key) } else { Threshold(key, at) };
        keys.into_iter().map(watch).collect()
    }

    fn on_key(&self, key: u32) -> impl Iterator<Item = (u32, &Watch<u32>)> {
        self.waiting.iter().filter_map(move |(name, waiting)| {
            waiting.watches.iter().find(|watch| *watch.key() == key).map(|watch| (*name, watch))
        })
    }

    /// Returns the operation to displace from a full key: the oldest on its events, or else the one
    /// with the greatest threshold.
    fn victim(&self, key: u32) -> u32 {
        let mut events = self.on_key(key).filter(|(_, watch)| matches!(watch, Events(_)));
        let greatest = self.on_key(key).max_by_key(|(_, watch)| match watch {
            Events(_) => 0,
            Threshold(_, at) => *at,
        });
        events.next().or(greatest).expect("the key is full").0
    }

    fn displace(&mut self, name: u32, displaced: &mut Vec<u32>) {
        self.waiting.remove(&name);
        displaced.push(name);
    }

    fn watch(&mut self) {
        let (name, watches) = (self.names, self.watches());
        self.names += 1;
        let is_refusing = self.overload == Overload::Refuse;
        let mut displaced = Vec::new();
        let mut refusal = None;
        if is_refusing && self.waiting.len() == TOTAL as usize {
            refusal = Some(0);
        }
        let events = watches.iter().filter(|watch| matches!(watch, Events(_)));
        let thresholds = watches.iter().filter(|watch| matches!(watch, Threshold(..)));
        for watch in events.chain(thresholds) {
            if refusal.is_none() && self.on_key(*watch.key()).count() == PER_KEY as usize {
                if is_refusing {
                    refusal = Some(1);
                } else {
                    let victim = self.victim(*watch.key());
                    self.displace(victim, &mut displaced);
                }
            }
        }
        if !is_refusing && self.waiting.len() == TOTAL as usize {
            let oldest = *self.waiting.keys().next().unwrap();
            self.displace(oldest, &mut displaced);
        }
        let op = self.world.op(name);
        let result = if self.random.bool() {
            self.world.purgatory.watch_any(op, watches.iter().copied(), 64 * MS)
        } else {
            self.world.purgatory.watch_all(op, watches.iter().copied(), HOUR)
        };
        match refusal {
            None => {
                let key = self.world.waits(result);
                self.waiting.insert(name, Waiting { key, watches });
            }
            Some(which) => {
                let error = result.expect_err("there is no room");
                assert_eq!(error.kind() == WatchErrorKind::KeyFull, which == 1, "{error:?}");
                self.refused[which] += 1;
            }
        }
        self.displaced += u32::try_from(displaced.len()).unwrap();
        let ended = self.world.ended().into_iter().map(|(name, end)| {
            assert_eq!(end, delaywheel::Completion::Displaced);
            name
        });
        assert!(ended.eq(displaced));
    }

    fn end_some(&mut self) {
        let purgatory = self.world.purgatory.clone();
        let name = self.names.saturating_sub(self.random.u32(..20));
        let some_key = self.random.u32(..KEYS);
        match self.random.u32(..9) {
            0..4 => {
                if let Some(waiting) = self.random.choice(self.waiting.values()) {
                    assert!(purgatory.complete(waiting.key));
                }
            }
            4 if self.random.bool() => {
                purgatory.cancel_for_key(&some_key);
            }
            4 => {
                self.world.advance(some_key, u64::from(name) + 100);
            }
            5 => {
                self.world.state().ready.extend(name..name + 3);
                purgatory.check_and_complete(&some_key);
            }
            6 => {
                let _ = purgatory.checks(&[some_key, 1]).run(3);
            }
            7 => purgatory.shrink(),
            _ => self.world.clock.advance(self.random.u32(..20) * MS),
        }
        for (name, _) in self.world.ended() {
            assert!(self.waiting.remove(&name).is_some());
        }
        // A threshold that is reached releases its permit, even if its operation waits on.
        let state = self.world.state();
        for waiting in self.waiting.values_mut() {
            waiting.watches.retain(|watch| match watch {
                Events(_) => true,
                Threshold(key, at) => state.values.get(key).is_none_or(|value| value < at),
            });
        }
        drop(state);
        self.world.state().values.clear();
        self.world.state().ready.clear();
    }

    fn run(&mut self) {
        for _ in 0..3000 {
            if self.random.u32(..100) < 45 {
                self.end_some();
            } else {
                self.watch();
            }
            assert_eq!(self.world.purgatory.delayed(), self.waiting.len() as u64);
            self.world.check_books();
        }
        let refused = u64::from(self.refused[0] + self.refused[1]);
        assert_eq!(self.world.purgatory.stats().refused, refused);
        assert_eq!(self.world.purgatory.stats().displaced, u64::from(self.displaced));
    }

    /// Checks that every permit is free at the end.
    fn check_permits(&mut self) {
        for key in self.waiting.values().map(|waiting| waiting.key) {
            assert!(self.world.purgatory.cancel(key));
        }
        self.world.ended();
        self.world.check_empty();
        for key in 0..KEYS {
            let name = self.names + key * 100;
            for index in 0..PER_KEY {
                self.world.any(name + index, [Events(key)]);
            }
            if self.overload == Overload::Refuse {
                let full = self.world.purgatory.watch_any(self.world.op(0), [Events(key)], HOUR);
                assert_eq!(full.unwrap_err().kind(), WatchErrorKind::KeyFull);
            } else {
                let next = self.world.any(name + 50, [Threshold(key, u64::MAX)]);
                assert_eq!(self.world.ended(), [(name, delaywheel::Completion::Displaced)]);
                assert!(self.world.purgatory.cancel(next));
            }
            assert!(self.world.purgatory.cancel_for_key(&key) > 0);
            self.world.ended();
        }
    }
}

#[test]
fn every_end_releases_exactly_the_permits_that_were_taken() {
    for seed in 0..if cfg!(debug_assertions) { 2 } else { 8 } {
        println!("seed {seed}");
        let mut script = Script::new(seed, Overload::Refuse);
        script.run();
        assert!(script.refused.iter().all(|count| *count > 20), "{:?}", script.refused);
        script.check_permits();
        let mut script = Script::new(seed, Overload::DisplaceOldest);
        script.run();
        assert!(script.displaced > 100, "{}", script.displaced);
        script.check_permits();
    }
}
