//! The turns of a task that expires the sleeps in place of the reaper.
//!
//! # Protocol
//!
//! The task follows the rules of the reaper in [`wakeup`](crate::timer::shards::wakeup). Where the
//! reaper parks, the task returns `Pending`, and where another thread unparks the reaper, it wakes
//! the task. In each turn the task
//!
//! 1. stores its waker,
//! 2. ends if the timer has shut down,
//! 3. expires due sleeps,
//! 4. announces until when it sleeps, and loads the published expirations again.
//!
//! A thread that has to wake the task takes the waker out and wakes it without a lock.
//!
//! *Why no wake-up is lost*: a thread loads the announced time, or begins the shutdown that step 2
//! finds, before it takes the waker under the waker's lock. If it does not find the waker of this
//! turn, it took that lock before step 1. So the task sees the shutdown in step 2, and the thread
//! has not loaded the time of step 4. The protocol of the reaper covers a thread that has loaded an
//! earlier time.

use std::{mem, sync::Arc, task::Waker, time::Duration};

use crate::{
    timer::{reaper::Client, shared::Shared, turn::TimerClient, waker::wake_all},
    wheel::TimingWheel,
};

/// The sleeps of a timer that a task of the user expires.
pub(crate) struct Turns {
    client: TimerClient<TimingWheel<Waker>>,
    /// Whether the last turn announced a sleep.
    is_asleep: bool,
}

/// The result of a turn.
#[derive(Debug, PartialEq)]
pub(crate) enum DriverTurn {
    /// The next sleep is due after this time; `None` if there is no sleep, or its time never comes.
    /// Another thread wakes the task if it registers an earlier sleep, or if the timer ends.
    Sleep(Option<Duration>),
    /// The task must take another turn, after other tasks of its worker.
    Again,
    /// The timer has ended.
    Ended,
}

impl Turns {
    /// Takes over the sleeps of a timer that has started no thread.
    pub(crate) fn new(shared: &Arc<Shared<TimingWheel<Waker>>>) -> Self {
        shared.leave_to_driver();
        Self { client: TimerClient::new(shared), is_asleep: false }
    }

    /// Expires due sleeps, in one hold of each shard. The result tells when to turn again.
    pub(crate) fn turn(&mut self, waker: &Waker) -> DriverTurn {
        debug_assert!(self.client.shared.is_driven(), "the timer has a reaper as well");
        if mem::take(&mut self.is_asleep) {
            self.client.wake_up(true);
        }
        self.client.shared.shards.wakeup.store_driver_waker(waker);
        if self.client.shared.shards.is_shut_down() {
            return DriverTurn::Ended;
        }
        if !self.client.expire() {
            return DriverTurn::Again;
        }
        let Some(pause) = self.client.fall_asleep(Duration::MAX) else { return DriverTurn::Again };
        self.is_asleep = true;
        DriverTurn::Sleep((pause < Duration::MAX).then_some(pause))
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        wake_all(self.client.shared.shut_down());
    }
}
