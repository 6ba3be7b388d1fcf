//! The wheel over very many operations, beside books that cost next to nothing: what it says of each
//! timeout is compared at once, and after each step of time none may have been left behind.
//!
//! The model in `it` looks at everything after each operation, and does a hundred thousand a
//! second. This one does millions, and is after what takes long to go wrong: slots and records that
//! are used again and again, levels that come and go, ages of virtual time.

#[path = "shared/variable.rs"]
mod variable;

use std::collections::BTreeMap;

use delaywheel::{Key, Tick, TimingWheel, WheelBuilder};

use crate::variable::variable;

/// Timeouts that may be pending at once.
const SLOTS: usize = 20_000;

/// Deadlines that are closer than this are counted by tick, others in a map.
const NEAR: u64 = 1 << 16;

/// Operations between two steps of time.
const OPERATIONS_PER_STEP: u64 = 64;

/// Operations on one wheel.
const ROUND: u64 = 10_000_000;

fn operations() -> u64 {
    let default = if cfg!(debug_assertions) { 2_000_000 } else { 50_000_000 };
    variable("MARATHON_OPERATIONS").unwrap_or(default)
}

/// A timeout as it was asked for. Its value is its slot.
#[derive(Clone, Copy)]
struct Asked {
    key: Key,
    deadline: u64,
    is_near: bool,
}

struct Marathon {
    wheel: TimingWheel<usize>,
    random: fastrand::Rng,
    now: u64,
    slots: Vec<Option<Asked>>,
    /// A key of each slot that has ended.
    dead: Vec<Option<Key>>,
    len: usize,
    /// How many have each of the next ticks for their deadline.
    near: Vec<u32>,
    far: BTreeMap<u64, u32>,
    expired: u64,
}

impl Marathon {
    fn new(seed: u64, size: usize) -> Self {
        Self {
            wheel: WheelBuilder::new().size(size).build().expect("the size is in range"),
            random: fastrand::Rng::with_seed(seed),
            now: 0,
            slots: vec![None; SLOTS],
            dead: vec![None; SLOTS],
            len: 0,
            near: vec![0; tick(NEAR - 1) + 1],
            far: BTreeMap::new(),
            expired: 0,
        }
    }

    /// Most often soon, at times in thousands of years.
    fn deadline(&mut self) -> u64 {
        let delay = match self.random.u32(..64) {
            0 => self.random.u64(..) >> self.random.u32(..64),
            1..4 => 0,
            4..16 => self.random.u64(..100),
            _ => self.random.u64(..NEAR),
        };
        self.now.saturating_add(delay)
    }

    fn count(&mut self, deadline: u64) -> bool {
        let is_near = deadline - self.now < NEAR;
        if is_near {
            self.near[tick(deadline)] += 1;
        } else {
            *self.far.entry(deadline).or_default() += 1;
        }
        is_near
    }

    fn uncount(&mut self, asked: &Asked) {
        if asked.is_near {
            self.near[tick(asked.deadline)] -= 1;
            return;
        }
        let count = self.far.get_mut(&asked.deadline).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            self.far.remove(&asked.deadline);
        }
    }

    fn operate(&mut self) {
        let slot = self.random.usize(..SLOTS);
        if let Some(dead) = self.dead[slot] {
            assert_eq!(self.wheel.get(dead), None, "a key came back to life");
        }
        match self.slots[slot] {
            None => self.insert(slot),
            Some(asked) if self.random.bool() => {
                assert_eq!(self.wheel.cancel(asked.key), Some(slot));
                self.end(slot, &asked);
            }
            Some(asked) => self.reset(slot, asked),
        }
    }

    fn insert(&mut self, slot: usize) {
        let deadline = self.deadline();
        let key = self.wheel.insert(Tick::new(deadline), slot).expect("there is no limit");
        let is_near = self.count(deadline);
        self.slots[slot] = Some(Asked { key, deadline, is_near });
        self.len += 1;
    }

    fn reset(&mut self, slot: usize, asked: Asked) {
        let deadline = self.deadline();
        let before = self.wheel.reset(asked.key, Tick::new(deadline));
        assert_eq!(before, Some(Tick::new(asked.deadline)));
        self.uncount(&asked);
        let is_near = self.count(deadline);
        self.slots[slot] = Some(Asked { deadline, is_near, ..asked });
    }

    fn end(&mut self, slot: usize, asked: &Asked) {
        self.uncount(asked);
        self.slots[slot] = None;
        self.dead[slot] = Some(asked.key);
        self.len -= 1;
    }

    /// A step of time: some ticks, to the next expiration, or over years.
    fn step(&mut self) {
        let next = self.wheel.next_expiration();
        assert_eq!(next.is_none(), self.len == 0);
        let now = match self.random.u32(..4096) {
            0 => self.now.saturating_add(self.random.u64(..) >> self.random.u32(10..64)),
            1..64 => next.map_or(self.now, |next| next.get().max(self.now)),
            _ => self.now.saturating_add(self.random.u64(..200)),
        };
        self.advance_to(now);
    }

    fn advance_to(&mut self, now: u64) {
        let mut latest = 0;
        loop {
            let some: Vec<_> = self.wheel.advance(Tick::new(now)).limit(1000).collect();
            for expired in &some {
                let asked = self.slots[expired.value].expect("it is pending");
                assert_eq!((expired.key, expired.deadline.get()), (asked.key, asked.deadline));
                assert!((latest..=now).contains(&asked.deadline), "early, or out of order");
                latest = asked.deadline;
                self.end(expired.value, &asked);
            }
            self.expired += some.len() as u64;
            if self.wheel.advance(Tick::new(now)).is_drained() {
                break;
            }
        }
        assert_eq!(self.wheel.len(), self.len);
        assert!(self.far.range(..=now).next().is_none(), "one was left behind");
        for passed in self.now..=now.min(self.now.saturating_add(NEAR - 1)) {
            assert_eq!(self.near[tick(passed)], 0, "one was left behind at {passed}");
        }
        assert!(self.wheel.next_expiration().is_none_or(|next| next.get() > now));
        self.now = now;
    }

    /// Returns how many timeouts expired.
    fn run(mut self, operations: u64) -> u64 {
        for operation in 0..operations {
            self.operate();
            if operation % OPERATIONS_PER_STEP == 0 {
                self.step();
            }
            if operation % (1 << 19) == 0 {
                self.wheel.check_invariants();
            }
            if operation % (1 << 21) == 0 {
                self.wheel.shrink();
            }
        }
        self.advance_to(u64::MAX);
        assert!(self.wheel.is_empty());
        self.wheel.check_invariants();
        self.expired
    }
}

/// Where a tick is counted.
const fn tick(deadline: u64) -> usize {
    (deadline % NEAR) as usize
}

#[test]
fn nothing_is_early_late_lost_or_twice_in_a_very_long_run() {
    let (operations, mut done, mut expired) = (operations(), 0, 0);
    for (seed, size) in (0..).zip([64, 2, 256, 8, 4096].into_iter().cycle()) {
        let round = ROUND.min(operations - done);
        println!("seed {seed}, wheels of {size}: {round} operations");
        expired += Marathon::new(seed, size).run(round);
        done += round;
        if done == operations {
            break;
        }
    }
    println!("{done} operations, of which {expired} timeouts expired");
    assert!(expired > operations / 20, "most were cancelled: {expired}");
}
