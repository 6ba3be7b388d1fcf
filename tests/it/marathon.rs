//! The model test of the wheel over many more operations: slots and records that are reused
//! thousands of times, levels that come and go, and thousands of years of virtual time.
//!
//! [`model`](crate::model) compares all contents after each operation, this one only the answer. A
//! due timeout that is left behind shows when an operation next uses its slot.
//!
//! `MARATHON_OPERATIONS=1000000000 cargo test --release --test it marathon -- --nocapture` sets the
//! number of operations.

use delaywheel::{
    Tick,
    wheel::{Key, TimingWheel, WheelBuilder},
};

use crate::variable::variable;

const SLOTS: usize = 20_000;

const NEAR: u64 = 1 << 16;

const OPERATIONS_PER_STEP: u64 = 64;

const ROUND: u64 = 10_000_000;

fn operations() -> u64 {
    let default = if cfg!(debug_assertions) { 250_000 } else { 50_000_000 };
    variable("MARATHON_OPERATIONS").unwrap_or(default)
}

/// A requested timeout. Its value is the index of its slot.
#[derive(Clone, Copy)]
struct Requested {
    key: Key,
    deadline: u64,
}

struct Marathon {
    wheel: TimingWheel<usize>,
    random: fastrand::Rng,
    now: u64,
    slots: Vec<Option<Requested>>,
    /// The latest dead key of each slot.
    dead: Vec<Option<Key>>,
    len: usize,
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
            expired: 0,
        }
    }

    /// Draws a deadline: mostly near, sometimes thousands of years ahead.
    fn deadline(&mut self) -> u64 {
        let delay = match self.random.u32(..64) {
            0 => self.random.u64(..) >> self.random.u32(..64),
            1..4 => 0,
            4..16 => self.random.u64(..100),
            _ => self.random.u64(..NEAR),
        };
        self.now.saturating_add(delay)
    }

    fn operate(&mut self) {
        let slot = self.random.usize(..SLOTS);
        if let Some(dead) = self.dead[slot] {
            assert_eq!(self.wheel.get(dead), None, "a key came back to life");
        }
        let due = self.slots[slot].map(|requested| requested.deadline);
        assert!(due.is_none_or(|due| due >= self.now), "one was left behind at {due:?}");
        match self.slots[slot] {
            None => self.insert(slot),
            Some(requested) if self.random.bool() => {
                assert_eq!(self.wheel.cancel(requested.key), Some(slot));
                self.end(slot, &requested);
            }
            Some(requested) => self.reset(slot, requested),
        }
    }

    fn insert(&mut self, slot: usize) {
        let deadline = self.deadline();
        let key = self.wheel.insert(Tick::new(deadline), slot).expect("there is no limit");
        self.slots[slot] = Some(Requested { key, deadline });
        self.len += 1;
    }

    fn reset(&mut self, slot: usize, requested: Requested) {
        let deadline = self.deadline();
        let before = self.wheel.reset(requested.key, Tick::new(deadline));
        assert_eq!(before, Some(Tick::new(requested.deadline)));
        self.slots[slot] = Some(Requested { deadline, ..requested });
    }

    fn end(&mut self, slot: usize, requested: &Requested) {
        self.slots[slot] = None;
        self.dead[slot] = Some(requested.key);
        self.len -= 1;
    }

    /// Moves time by some ticks, to the next expiration, or by years.
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
                let requested = self.slots[expired.value].expect("it is pending");
                assert_eq!(expired.key, requested.key);
                assert_eq!(expired.deadline.get(), requested.deadline);
                assert!((latest..=now).contains(&requested.deadline), "early, or out of order");
                latest = requested.deadline;
                self.end(expired.value, &requested);
            }
            self.expired += some.len() as u64;
            if self.wheel.advance(Tick::new(now)).is_drained() {
                break;
            }
        }
        assert_eq!(self.wheel.len(), self.len);
        assert!(self.wheel.next_expiration().is_none_or(|next| next.get() > now));
        self.now = now;
    }

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

#[test]
fn no_timeout_is_early_late_lost_or_repeated_in_a_long_run() {
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
