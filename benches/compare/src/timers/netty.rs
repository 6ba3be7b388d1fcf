//! Scheme 6 of Varghese and Lauck, a hashed wheel with rounds, as Netty's `HashedWheelTimer`.
//!
//! A new timeout goes into a queue of many producers, and a cancelled one into another; so insert
//! and cancel take *O*(1) time and touch no bucket. Each tick empties both queues, of new timeouts
//! 100,000 at most. Then it walks one bucket and counts down the rounds of each timeout. The wheel
//! processes tick `t` when `t + 1` begins, so a timeout is late by a tick.
//!
//! Netty's queues, of `JCTools`, link arrays. Crossbeam's queue here is of the same kind, though
//! only one thread uses it: the cost of several producers is part of the scheme.
//!
//! Netty allows ticks of a millisecond; its own default is 100. Its thread also ticks while no
//! timeout is pending, which a contestant cannot report.

use crossbeam_queue::SegQueue;

use crate::prelude::*;

/// Netty's default.
pub(crate) const BUCKETS: u64 = 512;

/// New timeouts that Netty takes from the queue in one tick.
pub(crate) const TRANSFERS_PER_TICK: usize = 100_000;

const LARGEST: u32 = 1_000_000;

/// 512 buckets with rounds, and queues before them.
pub struct Netty {
    timeouts: Lists<Timeout>,
    inbox: SegQueue<DefaultKey>,
    cancelled: SegQueue<DefaultKey>,
    /// Length of its ticks, in ours.
    duration: u64,
    /// The tick that it processes next.
    tick: u64,
    live: usize,
}

struct Timeout {
    deadline: u64,
    payload: u64,
    /// Rounds of the wheel that it still waits.
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
            timeouts: Lists::new(index(BUCKETS - 1) + 1),
            inbox: SegQueue::new(),
            cancelled: SegQueue::new(),
            duration,
            tick: 0,
            live: 0,
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
            let timeout = self.timeouts.get_mut(key).expect("a bucket holds its timeouts");
            if timeout.rounds > 0 {
                timeout.rounds -= 1;
                continue;
            }
            self.timeouts.remove(key).inspect(|timeout| expired(timeout.payload));
            self.live -= 1;
        }
    }
}

/// The bucket of a tick.
pub(crate) fn index(tick: u64) -> usize {
    (tick % BUCKETS) as usize
}

impl Timers for Netty {
    type Key = DefaultKey;

    const PROMISES: Promises = Promises {
        name: "netty",
        lateness: 1 + LARGEST as u64 / TRANSFERS_PER_TICK as u64,
        ordered: false,
        wakes: Wakes::Every(1),
        largest: LARGEST,
        ..Promises::STRICT
    };

    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let timeout = Timeout { deadline, payload, rounds: 0, is_cancelled: false };
        let key = self.timeouts.insert(timeout);
        self.inbox.push(key);
        self.live += 1;
        key
    }

    fn cancel(&mut self, key: DefaultKey) -> Option<u64> {
        let timeout = self.timeouts.get_mut(key).filter(|timeout| !timeout.is_cancelled)?;
        timeout.is_cancelled = true;
        self.live -= 1;
        self.cancelled.push(key);
        Some(timeout.payload)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        (self.live > 0).then_some((self.tick + 1) * self.duration)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while (self.tick + 1) * self.duration <= now {
            while let Some(key) = self.cancelled.pop() {
                self.timeouts.remove(key);
            }
            self.transfer();
            self.expire(&mut expired);
            self.tick += 1;
        }
    }

    fn len(&self) -> usize {
        self.live
    }

    fn in_tenths() -> impl Timers {
        Self::with_tick(TENTHS)
    }
}
