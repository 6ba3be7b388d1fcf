//! Scheme 6 of Varghese and Lauck, a hashed wheel with rounds, as Netty's `HashedWheelTimer`.
//!
//! A new timeout goes into a queue of many producers, and a cancelled one into another; so starting
//! and stopping take *O*(1) time and touch no bucket. Each tick empties both queues, the first of
//! at most 100,000 timeouts. Then it walks one bucket, and counts down the remaining laps of each
//! timeout. Tick `t` is processed when `t + 1` begins, so a timeout is late by a tick.
//!
//! Netty's queues are those of `JCTools` for many producers and one consumer, which link arrays.
//! The queue here, crossbeam's, is of the same kind, although only one thread uses it: the cost of
//! sharing is part of the scheme. A new timeout is in no bucket until it is taken from its queue.
//!
//! Netty allows ticks of a millisecond; its own default is 100. Its thread also ticks while nothing
//! is pending, which a contestant has no way to tell.

use crossbeam_queue::SegQueue;
use slotmap::DefaultKey;

use super::{lists::Lists, rounded::TENTHS};
use crate::{Promises, Timers, Wakes};

/// Netty's default.
const BUCKETS: u64 = 512;

/// The same, of lists.
const LISTS: usize = 512;

const _: () = assert!(LISTS as u64 == BUCKETS);

/// How many new timeouts Netty takes from the queue in one tick.
const TRANSFERS_PER_TICK: usize = 100_000;

const LARGEST: u32 = 1_000_000;

/// 512 buckets with rounds, and queues before them.
#[derive(Debug)]
pub struct Netty {
    timeouts: Lists<Timeout>,
    inbox: SegQueue<DefaultKey>,
    cancelled: SegQueue<DefaultKey>,
    /// How long its ticks are, in ours.
    duration: u64,
    /// The tick to process next.
    tick: u64,
    live: usize,
}

#[derive(Debug)]
struct Timeout {
    deadline: u64,
    payload: u64,
    /// Remaining laps.
    rounds: u64,
    is_cancelled: bool,
}

impl Default for Netty {
    fn default() -> Self {
        Self::with_tick(1)
    }
}

impl Netty {
    fn with_tick(duration: u64) -> Self {
        Self {
            timeouts: Lists::new(LISTS),
            inbox: SegQueue::new(),
            cancelled: SegQueue::new(),
            duration,
            tick: 0,
            live: 0,
        }
    }

    /// Marks a timeout as cancelled, unless it was cancelled or has ended.
    #[inline]
    fn mark_cancelled(&mut self, key: DefaultKey) -> Option<u64> {
        let timeout = self.timeouts.get_mut(key).filter(|timeout| !timeout.is_cancelled)?;
        timeout.is_cancelled = true;
        self.live -= 1;
        Some(timeout.payload)
    }

    fn remove_cancelled(&mut self) {
        while let Some(key) = self.cancelled.pop() {
            self.timeouts.remove(key);
        }
    }

    fn transfer(&mut self) {
        for _ in 0..TRANSFERS_PER_TICK {
            let Some(key) = self.inbox.pop() else { break };
            let Some(timeout) = self.timeouts.get_mut(key) else { continue };
            let tick = timeout.deadline / self.duration;
            timeout.rounds = tick.saturating_sub(self.tick) / BUCKETS;
            let tick = tick.max(self.tick);
            self.timeouts.relink(key, index(tick));
        }
    }

    fn expire(&mut self, expired: &mut impl FnMut(u64)) {
        let mut cursor = self.timeouts.first(index(self.tick));
        while let Some(key) = cursor {
            cursor = self.timeouts.next(key);
            let timeout = self.timeouts.get_mut(key).expect("a bucket holds what is there");
            if timeout.rounds > 0 {
                timeout.rounds -= 1;
                continue;
            }
            self.timeouts.remove(key).inspect(|timeout| expired(timeout.payload));
            self.live -= 1;
        }
    }
}

#[inline]
fn index(tick: u64) -> usize {
    (tick % BUCKETS) as usize
}

impl Timers for Netty {
    type Key = DefaultKey;

    const NAME: &'static str = "netty";

    const PROMISES: Promises = Promises {
        scheme: "scheme 6: hashed wheel with rounds, as Netty's",
        describes: "late by a tick, and one more for every 100,000 new ones in a tick; wakes at \
                    every tick, even if nothing is pending",
        lateness: 1 + LARGEST as u64 / TRANSFERS_PER_TICK as u64,
        ordered: false,
        wakes: Wakes::Every(1),
        largest: LARGEST,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let timeout = Timeout { deadline, payload, rounds: 0, is_cancelled: false };
        let key = self.timeouts.insert(timeout);
        self.inbox.push(key);
        self.live += 1;
        key
    }

    #[inline]
    fn cancel(&mut self, key: DefaultKey) -> bool {
        let is_pending = self.mark_cancelled(key).is_some();
        if is_pending {
            self.cancelled.push(key);
        }
        is_pending
    }

    #[inline]
    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        let payload = self.mark_cancelled(key)?;
        self.cancelled.push(key);
        Some(self.insert(deadline, payload))
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        (self.live > 0).then_some((self.tick + 1) * self.duration)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.live;
        while (self.tick + 1) * self.duration <= now {
            self.remove_cancelled();
            self.transfer();
            self.expire(&mut expired);
            self.tick += 1;
        }
        before - self.live
    }

    fn len(&self) -> usize {
        self.live
    }

    fn in_tenths() -> impl Timers {
        Self::with_tick(TENTHS)
    }
}
