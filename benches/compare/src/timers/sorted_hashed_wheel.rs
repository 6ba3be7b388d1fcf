//! Scheme 5 of Varghese and Lauck: a hashed wheel whose buckets are sorted by deadline.
//!
//! A deadline is hashed to a bucket by its low bits. Starting a timeout takes *O*(1) time on
//! average if there are no more timeouts than buckets, and *O*(n) at worst; stopping one takes
//! *O*(1). Each tick looks at the head of one bucket.

use slotmap::DefaultKey;

use super::lists::{Lists, Timeout};
use super::rounded::Rounded;
use crate::{Promises, Timers, Wakes};

/// Buckets of the wheel.
const BUCKETS: u64 = 1 << 16;

/// The list of what was due when it was inserted.
const DUE: usize = 1 << 16;

const _: () = assert!(DUE as u64 == BUCKETS);

/// 65,536 buckets, each a sorted list of the timeouts of all laps.
#[derive(Debug)]
pub struct SortedHashedWheel {
    buckets: Lists<Timeout>,
    now: u64,
}

impl Default for SortedHashedWheel {
    fn default() -> Self {
        Self { buckets: Lists::new(DUE + 1), now: 0 }
    }
}

impl SortedHashedWheel {
    #[inline]
    fn expire(&mut self, bucket: usize, expired: &mut impl FnMut(u64)) {
        let now = self.now;
        while let Some(key) = self.buckets.first(bucket) {
            if self.buckets.get(key).is_none_or(|timeout| timeout.deadline > now) {
                break;
            }
            self.buckets.remove(key).inspect(|timeout| expired(timeout.payload));
        }
    }
}

#[inline]
fn index(tick: u64) -> usize {
    (tick % BUCKETS) as usize
}

impl Timers for SortedHashedWheel {
    type Key = DefaultKey;

    const NAME: &'static str = "sorted_hashed_wheel";

    const PROMISES: Promises = Promises {
        scheme: "scheme 5: hashed wheel with sorted buckets",
        describes: "searches a bucket for the place of each timeout; wakes at every tick",
        wakes: Wakes::Every(1),
        largest: 1_000_000,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let bucket = if deadline <= self.now { DUE } else { index(deadline) };
        let timeout = Timeout { deadline, payload };
        self.buckets.push_behind(bucket, timeout, |other| other.deadline <= deadline)
    }

    #[inline]
    fn cancel(&mut self, key: DefaultKey) -> bool {
        self.buckets.remove(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        let timeout = self.buckets.remove(key)?;
        Some(self.insert(deadline, timeout.payload))
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        let is_due = self.buckets.first(DUE).is_some();
        (self.buckets.len() > 0).then_some(self.now + u64::from(!is_due))
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.buckets.len();
        self.expire(DUE, &mut expired);
        while self.now < now {
            self.now += 1;
            self.expire(index(self.now), &mut expired);
        }
        before - self.buckets.len()
    }

    fn len(&self) -> usize {
        self.buckets.len()
    }

    fn in_tenths() -> impl Timers {
        Rounded::<Self>::default()
    }
}
