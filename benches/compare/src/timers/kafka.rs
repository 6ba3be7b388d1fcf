//! Apache Kafka's `SystemTimer`: the design from which this repository's wheel started.
//!
//! Wheels of 20 buckets, each next one created when it is first needed; buckets, not timeouts, wait
//! in a delay queue, here a binary heap. Starting takes *O*(wheels) time and stopping *O*(1). As in
//! Kafka, deadlines are rounded down to a tick, and the clock moves only when a bucket is due. A
//! bucket whose timeouts were all cancelled stays in the queue, and wakes the timer without work.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use slotmap::DefaultKey;

use super::{
    lists::{Lists, Timeout},
    rounded::TENTHS,
};
use crate::{Promises, Timers, Wakes};

/// Kafka's default.
const BUCKETS: u64 = 20;

/// The list of timeouts that were due when they were inserted or reinserted.
const DUE: usize = 0;

/// Wheels of 20 buckets over a queue of buckets.
#[derive(Debug)]
pub struct Kafka {
    /// The list of due timeouts, and then the buckets, those of the finest wheel first.
    lists: Lists<Timeout>,
    /// The expiration of each list; `None` if it is not in the queue.
    expirations: Vec<Option<u64>>,
    wheels: Vec<Wheel>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    now: u64,
}

#[derive(Debug)]
struct Wheel {
    tick: u64,
    current_time: u64,
}

impl Default for Kafka {
    fn default() -> Self {
        Self::with_tick(1)
    }
}

impl Kafka {
    /// Makes a timer whose finest buckets span this many of our ticks.
    pub fn with_tick(tick: u64) -> Self {
        let mut kafka = Self {
            lists: Lists::new(1),
            expirations: vec![None],
            wheels: Vec::new(),
            queue: BinaryHeap::new(),
            now: 0,
        };
        kafka.add_wheel(Wheel { tick, current_time: 0 });
        kafka
    }

    fn add_wheel(&mut self, wheel: Wheel) {
        let buckets = index(BUCKETS);
        self.wheels.push(wheel);
        self.lists.add_lists(buckets);
        self.expirations.resize(self.expirations.len() + buckets, None);
    }

    /// Returns the list for a deadline. Puts its bucket into the queue unless it is there.
    #[inline]
    fn list(&mut self, deadline: u64) -> usize {
        let mut level = 0;
        loop {
            let Wheel { tick, current_time } = self.wheels[level];
            if deadline < current_time.saturating_add(tick) {
                return DUE;
            }
            if deadline < current_time.saturating_add(tick.saturating_mul(BUCKETS)) {
                let id = deadline / tick;
                let list = 1 + level * index(BUCKETS) + index(id % BUCKETS);
                self.offer(list, id * tick);
                return list;
            }
            level += 1;
            if level == self.wheels.len() {
                let tick = tick.saturating_mul(BUCKETS);
                self.add_wheel(Wheel { tick, current_time: current_time - current_time % tick });
            }
        }
    }

    #[inline]
    fn offer(&mut self, list: usize, expiration: u64) {
        if self.expirations[list].replace(expiration) != Some(expiration) {
            self.queue.push(Reverse((expiration, list)));
        }
    }

    /// Moves the clocks of all wheels, of which each is a whole number of its own ticks.
    fn advance_clock(&mut self, time: u64) {
        let mut time = time;
        for wheel in &mut self.wheels {
            if time < wheel.current_time.saturating_add(wheel.tick) {
                break;
            }
            wheel.current_time = time - time % wheel.tick;
            time = wheel.current_time;
        }
    }

    /// Takes the bucket that is due from the queue.
    #[inline]
    fn poll(&mut self) -> Option<(u64, usize)> {
        let top = self.queue.peek_mut().filter(|top| top.0.0 <= self.now)?;
        Some(PeekMut::pop(top).0)
    }

    /// Reinserts the timeouts of a bucket, and hands out those that are due.
    fn flush(&mut self, bucket: usize, expired: &mut impl FnMut(u64)) {
        let mut cursor = self.lists.first(bucket);
        while let Some(key) = cursor {
            cursor = self.lists.next(key);
            let deadline = self.lists.get(key).expect("a bucket holds what is there").deadline;
            let list = self.list(deadline);
            debug_assert_ne!(bucket, list, "a timeout moves down");
            self.lists.relink(key, list);
        }
        self.expire_due(expired);
        self.expirations[bucket] = None;
    }

    #[inline]
    fn expire_due(&mut self, expired: &mut impl FnMut(u64)) {
        while let Some(key) = self.lists.first(DUE) {
            self.lists.remove(key).inspect(|timeout| expired(timeout.payload));
        }
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most the number of buckets")]
fn index(bucket: u64) -> usize {
    bucket as usize
}

impl Timers for Kafka {
    type Key = DefaultKey;

    const NAME: &'static str = "kafka";

    const PROMISES: Promises = Promises {
        scheme: "hierarchical wheel with a bucket delay queue, as Kafka's",
        describes: "early by up to a tick, since it rounds down; wakes for what was cancelled",
        earliness: 1,
        wakes: Wakes::ForCancelled,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let list = self.list(deadline);
        self.lists.push(list, Timeout { deadline, payload })
    }

    #[inline]
    fn cancel(&mut self, key: DefaultKey) -> bool {
        self.lists.remove(key).is_some()
    }

    /// Cancels and inserts, as Kafka has no way to move a timeout.
    #[inline]
    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        let timeout = self.lists.remove(key)?;
        Some(self.insert(deadline, timeout.payload))
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        if self.lists.first(DUE).is_some() {
            return Some(self.now);
        }
        self.queue.peek().map(|top| top.0.0.max(self.now))
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.lists.len();
        self.now = now;
        self.expire_due(&mut expired);
        while let Some((expiration, bucket)) = self.poll() {
            self.advance_clock(expiration);
            self.flush(bucket, &mut expired);
        }
        before - self.lists.len()
    }

    fn len(&self) -> usize {
        self.lists.len()
    }

    fn in_tenths() -> impl Timers {
        Self::with_tick(TENTHS)
    }
}
