//! Scheme 1 of Varghese and Lauck: a list in no order, all of which is looked at each time.
//!
//! Starting and stopping a timeout take *O*(1) time; every look at the time takes *O*(n).

use slotmap::DefaultKey;

use super::lists::{Lists, Timeout};
use crate::{Promises, Timers};

/// One list, in the order of insertion.
#[derive(Debug)]
pub struct UnorderedList(Lists<Timeout>);

impl Default for UnorderedList {
    fn default() -> Self {
        Self(Lists::new(1))
    }
}

impl Timers for UnorderedList {
    type Key = DefaultKey;

    const NAME: &'static str = "unordered_list";

    const PROMISES: Promises = Promises {
        scheme: "scheme 1: unordered list",
        describes: "looks at every timeout each time",
        ordered: false,
        largest: 10_000,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        self.0.push(0, Timeout { deadline, payload })
    }

    #[inline]
    fn cancel(&mut self, key: DefaultKey) -> bool {
        self.0.remove(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        self.0.get_mut(key)?.deadline = deadline;
        Some(key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.0.values().map(|timeout| timeout.deadline).min()
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.0.len();
        let mut cursor = self.0.first(0);
        while let Some(key) = cursor {
            cursor = self.0.next(key);
            if self.0.get(key).is_some_and(|timeout| timeout.deadline <= now) {
                self.0.remove(key).inspect(|timeout| expired(timeout.payload));
            }
        }
        before - self.0.len()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
