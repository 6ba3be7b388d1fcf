//! A sleep until a time of the wall clock.
//!
//! Each pending poll takes the lock of a shard. It stores the waker in the wheel, at the tick of
//! the time, and makes it follow the wall clock. When a turn expires the waker, the task polls, and
//! the poll reads the wall clock again.

use std::{
    mem,
    task::{Poll, Waker},
    time::SystemTime,
};

use super::sleeper::{Polled, SleepHandle};
use crate::timer::{error::ScheduleError, shards::TimeoutKey};

/// A sleep until a time of the wall clock.
pub(crate) struct TimeSleeper {
    handle: SleepHandle,
    pub(crate) time: SystemTime,
    /// The waker in the wheel, unless it has expired.
    key: Option<TimeoutKey>,
}

impl TimeSleeper {
    pub(crate) fn new(handle: SleepHandle, time: SystemTime) -> Self {
        Self { handle, time, key: None }
    }

    /// Polls the sleep. It is ready when the wall clock shows its time, or with an error if the
    /// timer refuses or ends it.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Polled {
        let wakers = self.handle.shared();
        let shards = &wakers.shards;
        if shards.clock().system_time() >= self.time {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        if let Err(cause) = wakers.ensure_started() {
            return Poll::Ready(Err(ScheduleError::no_thread((), cause)));
        }
        // Cloning and dropping wakers is user code, so both happen without a lock.
        let mut waker = waker.clone();
        let now = shards.clock().read().now;
        let put = shards.put_at_time(self.time, now, |tick, earlier| {
            let live = self.key.filter(|key| {
                let (mut shard, key) = (shards.lock(key.shard()), key.in_shard());
                let held = shard.state_mut().get_mut(key).map(|held| mem::swap(held, &mut waker));
                let is_live = held.is_some() && shard.reset(key, now, tick);
                *earlier = shard.unlock_quietly();
                is_live
            });
            let insert = || {
                let waker = mem::replace(&mut waker, Waker::noop().clone());
                shards.insert_quietly(now, tick, waker, earlier)
            };
            live.map_or_else(insert, Ok)
        });
        match put {
            Ok(key) => {
                self.key = Some(key);
                Poll::Pending
            }
            Err(refused) => Poll::Ready(Err(refused.map(drop))),
        }
    }

    fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            drop(self.handle.shared().shards.cancel(key));
        }
    }
}

impl Drop for TimeSleeper {
    fn drop(&mut self) {
        self.cancel();
    }
}
