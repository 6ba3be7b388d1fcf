//! The reaper: the thread that expires due timeouts and sleeps until the next expiration.

use std::{format, io, sync::Arc, thread, time::Duration, vec::Vec};

use crossbeam::channel::{self, Sender};

use super::{
    annex::Annex, callback_threads::CallbackThread, executor::Delivery, shared::Shared,
    shutdown::EndOnPanic,
};
use crate::{sync::Parker, tick::Tick, wheel::Expired};

/// Steps of one hold of a shard's lock if the reaper is on time: 5 to 10 us, if each step misses
/// the cache.
const LEAST_STEPS: u32 = 64;

/// Steps of one hold at most, however late the reaper is: 100 to 400 us.
const MOST_STEPS: u32 = 4096;

/// Returns how many steps the reaper takes in one hold if timeouts are this late: twice as many for
/// each millisecond.
fn steps_per_hold(lateness: Duration) -> u64 {
    let doublings = u32::try_from(lateness.as_millis()).unwrap_or(u32::MAX);
    let steps = LEAST_STEPS.checked_shl(doublings).filter(|steps| *steps >= LEAST_STEPS);
    let steps = steps.unwrap_or(MOST_STEPS).min(MOST_STEPS);
    debug_assert!(steps >= LEAST_STEPS, "{steps} steps for a lateness of {lateness:?}");
    u64::from(steps)
}

/// The work of the reaper between two sleeps.
pub(super) struct Turn {
    /// The tick at its end.
    now: Tick,
    /// Whether a timeout expired.
    has_expired: bool,
}

/// The work of the reaper in one hold of each shard.
pub(super) struct Holds {
    pub(super) now: Tick,
    /// The greatest lateness; `None` if no timeout expired.
    pub(super) lateness: Option<Duration>,
    /// Whether no due timeout is left.
    pub(super) is_drained: bool,
}

impl<T: Send + 'static, X: Annex<T>> Shared<T, X, X::Due> {
    /// Starts the reaper, which waits until it receives its parker.
    ///
    /// If the thread cannot be started, the caller keeps the parker, and a later call tries again.
    pub(super) fn start_reaper(self: &Arc<Self>, name: &str) -> io::Result<Sender<Parker>> {
        let builder = thread::Builder::new().name(format!("{name}-reaper"));
        let (shared, thread) = (Arc::clone(self), self.register_reaper());
        let (sender, receiver) = channel::bounded(1);
        builder.spawn(move || {
            if let Ok(parker) = receiver.recv() {
                shared.reap(&parker, thread.as_ref());
            }
        })?;
        Ok(sender)
    }

    /// Registers the reaper as a callback thread if callbacks run on it. A pool may run them there.
    pub(super) fn register_reaper(&self) -> Option<CallbackThread> {
        let runs_callbacks = !matches!(self.delivery, Delivery::Threads(_));
        runs_callbacks.then(|| self.callback_threads.register())
    }

    /// The reaper's loop, which ends with the timer.
    pub(super) fn reap(&self, parker: &Parker, thread: Option<&CallbackThread>) {
        debug_assert!(!self.is_driven(), "a timer that its clock runs has no reaper");
        let _on_panic = EndOnPanic(self);
        thread.into_iter().for_each(CallbackThread::begin);
        let mut batch = Vec::new();
        let mut slept_until = None;
        while !self.is_stopped() {
            let turn = self.expire_due(&self.delivery, &mut batch);
            if self.shards.has_finished() {
                self.delivery.close(|| ());
                break;
            }
            if !turn.has_expired && slept_until.take().is_some_and(|until| until <= turn.now) {
                self.shards.raise_published();
            }
            slept_until = self.sleep(parker, turn.now).or(slept_until);
        }
    }

    /// Sleeps until the next expiration or until another thread wakes the reaper. Returns that
    /// expiration; `None` if there was no reason to sleep.
    fn sleep(&self, parker: &Parker, now: Tick) -> Option<Tick> {
        let until = self.shards.fall_asleep(now)?;
        if self.is_stopped() {
            return None;
        }
        debug_assert!(until > now, "the reaper would sleep until {until}, and it is {now}");
        match self.shards.clock().pause_until(until) {
            Some(pause) => parker.park_timeout(pause),
            None => parker.park(),
        }
        self.shards.wake_up();
        self.reaper_stats.lock().wakeups += 1;
        Some(until)
    }

    /// Expires all due timeouts and hands them off, a bounded number at a time.
    pub(super) fn expire_due(
        &self,
        delivery: &Delivery<X::Due>,
        batch: &mut Vec<Expired<X::Due>>,
    ) -> Turn {
        let mut has_expired = false;
        let mut lateness = Duration::ZERO;
        loop {
            let holds = self.expire_some(delivery, batch, lateness);
            has_expired |= holds.lateness.is_some();
            lateness = holds.lateness.unwrap_or(lateness);
            if holds.is_drained {
                return Turn { now: holds.now, has_expired };
            }
        }
    }

    /// Expires due timeouts and hands them off, in one hold of each shard. Its length depends on
    /// the lateness of the timeouts before.
    pub(super) fn expire_some(
        &self,
        delivery: &Delivery<X::Due>,
        batch: &mut Vec<Expired<X::Due>>,
        lateness: Duration,
    ) -> Holds {
        let elapsed = self.shards.clock().elapsed();
        let now = self.shards.clock().floor(elapsed);
        let mut batch_lateness = None;
        let is_drained = delivery.hand_off(&self.handler, batch, |batch| {
            let is_drained = self.shards.expire(elapsed, now, steps_per_hold(lateness), batch);
            batch_lateness = self.record_lateness(elapsed, batch);
            is_drained
        });
        batch_lateness.inspect(|lateness| self.handler.events().expired(*lateness));
        Holds { now, lateness: batch_lateness, is_drained }
    }

    /// Records the lateness of a batch that is handed off `elapsed` nanoseconds after the start of
    /// the timer. Returns the greatest; `None` if the batch is empty.
    fn record_lateness(&self, elapsed: u64, batch: &[Expired<X::Due>]) -> Option<Duration> {
        if batch.is_empty() {
            return None;
        }
        let elapsed = Duration::from_nanos(elapsed);
        let mut greatest = Duration::ZERO;
        let mut stats = self.reaper_stats.lock();
        // Many timeouts have the same deadline, and these are equally late.
        for equal in batch.chunk_by(|one, next| one.deadline == next.deadline) {
            let deadline = self.shards.clock().since_origin(equal[0].deadline);
            let lateness = elapsed.saturating_sub(deadline);
            stats.lateness.record(lateness, equal.len() as u64);
            greatest = greatest.max(lateness);
        }
        debug_assert!(greatest <= stats.lateness.max(), "a lateness was not recorded");
        Some(greatest)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_hold_grows_with_the_lateness_and_ends() {
        let steps = [0, 1, 2, 5, 6, 25, 26, 27, 1000].map(|late| {
            assert!(steps_per_hold(Duration::from_micros(late * 1000 + 999)) >= 64);
            steps_per_hold(Duration::from_millis(late))
        });
        assert_eq!(steps, [64, 128, 256, 2048, 4096, 4096, 4096, 4096, 4096]);
        assert_eq!(steps_per_hold(Duration::MAX), 4096);
    }
}
