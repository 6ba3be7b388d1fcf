//! Apache Kafka's `SystemTimer`: the structure that the wheel of this repository started from.
//!
//! Wheels have 20 buckets; each coarser wheel is created when it is first needed. Buckets, not
//! timeouts, wait in a delay queue, here a binary heap. An insert takes *O*(wheels) time and a
//! cancel *O*(1). As in Kafka, deadlines are rounded down to a tick, and the clock moves only when
//! a bucket is due. A bucket stays in the queue when its timeouts are cancelled, and then wakes the
//! timer in vain.

use std::collections::binary_heap::PeekMut;

use super::lists::Timeout;
use crate::prelude::*;

const BUCKETS: u64 = 20;

/// The list of timeouts that were due when they were inserted, or reinserted.
const DUE: usize = 0;

/// Wheels of 20 buckets over a queue of buckets.
pub struct Kafka {
    /// The list of due timeouts; then the buckets, those of the finest wheel first.
    lists: Lists<Timeout>,
    /// Expiration of each list; `None` if it is not in the queue.
    expirations: Vec<Option<u64>>,
    wheels: Vec<Wheel>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    now: u64,
}

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
    /// Makes one whose finest buckets span this many of our ticks.
    fn with_tick(tick: u64) -> Self {
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

    /// The list for a deadline, whose bucket is put into the queue if it was not there.
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
    fn poll(&mut self) -> Option<(u64, usize)> {
        let top = self.queue.peek_mut().filter(|top| top.0.0 <= self.now)?;
        Some(PeekMut::pop(top).0)
    }

    /// Reinserts the timeouts of a bucket, and hands out those that are due.
    fn flush(&mut self, bucket: usize, expired: &mut impl FnMut(u64)) {
        let mut cursor = self.lists.first(bucket);
        while let Some(key) = cursor {
            cursor = self.lists.next(key);
            let deadline = self.lists.get(key).expect("a bucket holds its timeouts").deadline;
            let list = self.list(deadline);
            debug_assert_ne!(bucket, list, "a timeout moves down");
            self.lists.relink(key, list);
        }
        self.expire_due(expired);
        self.expirations[bucket] = None;
    }

    fn expire_due(&mut self, expired: &mut impl FnMut(u64)) {
        while let Some(key) = self.lists.first(DUE) {
            self.lists.remove(key).inspect(|timeout| expired(timeout.payload));
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "at most the number of buckets")]
fn index(bucket: u64) -> usize {
    bucket as usize
}

impl Timers for Kafka {
    type Key = DefaultKey;

    const PROMISES: Promises =
        Promises { name: "kafka", earliness: 1, wakes: Wakes::ForCancelled, ..Promises::STRICT };

    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let list = self.list(deadline);
        self.lists.push(list, Timeout { deadline, payload })
    }

    fn cancel(&mut self, key: DefaultKey) -> Option<u64> {
        self.lists.remove(key).map(|timeout| timeout.payload)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        if self.lists.first(DUE).is_some() {
            return Some(self.now);
        }
        self.queue.peek().map(|top| top.0.0.max(self.now))
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        self.now = now;
        self.expire_due(&mut expired);
        while let Some((expiration, bucket)) = self.poll() {
            self.advance_clock(expiration);
            self.flush(bucket, &mut expired);
        }
    }

    fn len(&self) -> usize {
        self.lists.len()
    }

    fn in_tenths() -> impl Timers {
        Self::with_tick(TENTHS)
    }
}
