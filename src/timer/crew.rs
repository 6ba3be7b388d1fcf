//! The threads that run a timer's callbacks, and the drains that wait for these to end.
//!
//! A drain needs to know when nothing is pending, nothing is on its way and nothing runs. To count
//! that would cost every callback. Instead it is told by the threads that end: the reaper when no
//! timeout is left, and then each executor when its queue is empty for good.
//!
//! Those on which callbacks run are the *members*: the executor threads, or the reaper if it has
//! none. A callback that drains its own timer may be on a member, for which nobody can wait; so a
//! drain is over when all members that are left wait in a drain themselves.
//!
//! # Protocol
//!
//! - A drain (1) has every shard refuse new timeouts; (2) stores that it has; (3) wakes the reaper;
//!   (4) waits, until it is over or its deadline has come; (5) shuts the timer down.
//! - The reaper, before it sleeps, looks whether (2) was stored, and then whether any shard has
//!   timeouts left. If none has, it lets the executors end, and ends.
//! - Whoever cancels the last timeout of a shard that refuses new ones wakes the reaper.
//! - A reaper that ends by a panic does (1) to (3) itself, and lets the executors end.
//! - A member that ends, a member that begins to wait, and a shutdown notify all drains, having
//!   changed what these look at under the same lock.
//!
//! # Why no drain waits for too long
//!
//! After (1) timeouts only become fewer. The last one of a shard is expired by the reaper, which
//! looks again before it sleeps; or it was cancelled before (1), and the reaper looks after (3); or
//! it is cancelled after (1), which wakes the reaper. The parker remembers a wake-up that comes
//! between the look and the sleep. A drain looks and begins to wait under one lock, so that nothing
//! changes in between.

use std::{sync::Arc, time::Duration, vec::Vec};

use crate::sync::{Condvar, Mutex, ThreadId, this_thread};

/// The members of a timer, and who waits for them.
pub(super) struct Crew {
    muster: Mutex<Muster>,
    changed: Condvar,
}

struct Muster {
    /// Members that have been enlisted and have not ended.
    count: usize,
    /// Those of them that have begun.
    threads: Vec<ThreadId>,
    /// How many of them wait in a drain.
    waiting: usize,
    /// Whether the timer has been shut down.
    is_dismissed: bool,
}

impl Crew {
    pub(super) fn new() -> Arc<Self> {
        let muster = Muster { count: 0, threads: Vec::new(), waiting: 0, is_dismissed: false };
        Arc::new(Self { muster: Mutex::new(muster), changed: Condvar::new() })
    }

    /// Counts a member, whose thread is yet to begin, until what is returned is dropped.
    pub(super) fn enlist(self: &Arc<Self>) -> Member {
        self.muster.lock().count += 1;
        Member { crew: Arc::clone(self) }
    }

    /// Ends all drains.
    pub(super) fn dismiss(&self) {
        self.muster.lock().is_dismissed = true;
        self.changed.notify_all();
    }

    /// Waits until no member is left that could run anything, the timer is shut down, or no time
    /// remains.
    pub(super) fn wait(&self, remaining: impl Fn() -> Duration) {
        let _waiting = self.begin_to_wait();
        loop {
            // This may ask a clock of the user's, so no lock is held; and it may panic.
            let remaining = remaining();
            let muster = self.muster.lock();
            if remaining.is_zero() || muster.is_over() {
                break;
            }
            drop(self.changed.wait_for(muster, remaining));
        }
    }

    /// Counts this thread as waiting, if it is a member, until what is returned is dropped.
    fn begin_to_wait(&self) -> Waiting<'_> {
        let mut muster = self.muster.lock();
        let is_member = muster.threads.contains(&this_thread());
        muster.waiting += usize::from(is_member);
        drop(muster);
        self.changed.notify_all();
        Waiting { crew: self, is_member }
    }
}

/// A thread that waits in a drain.
struct Waiting<'a> {
    crew: &'a Crew,
    is_member: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.crew.muster.lock().waiting -= usize::from(self.is_member);
    }
}

impl Muster {
    fn is_over(&self) -> bool {
        self.is_dismissed || self.count == self.waiting
    }
}

/// A thread on which callbacks run.
pub(super) struct Member {
    crew: Arc<Crew>,
}

impl Member {
    /// Makes this thread known as the member's.
    pub(super) fn begin(&self) {
        self.crew.muster.lock().threads.push(this_thread());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut muster = self.crew.muster.lock();
        muster.count -= 1;
        muster.threads.retain(|thread| *thread != this_thread());
        drop(muster);
        self.crew.changed.notify_all();
    }
}
