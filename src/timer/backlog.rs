//! Expired timeouts that wait for an executor thread or a receiver.
//!
//! The reaper adds a batch at a time, and wakes no more threads than sleep and are needed. A thread
//! takes one timeout at a time, so a slow callback delays no timeout that another thread can take.
//!
//! # Hand-off
//!
//! A thread moves timeouts from a wheel to the backlog under the lock of the shard. So each timeout
//! is in a wheel or in the backlog, whenever the lock of its shard is free. A shutdown that has
//! closed and emptied each shard finds all others in the backlog, and none follows. The lock of
//! the backlog comes after those of the shards. The thread wakes executors and receivers after it
//! has released the shard.
//!
//! # Tasks that receive
//!
//! - A poll takes a value, or leaves its waker under its ticket, in one hold of the backlog's lock.
//! - Each put removes the wakers with the least tickets, at most one for each value of its batch,
//!   and returns them, to be woken without the lock. A close removes all.
//! - A woken task finds no value if another receiver was faster. It waits again with the same
//!   ticket, so it stays ahead of tasks that began later.
//! - A woken task that drops its receiver wakes the next task, if there is a value. So does a
//!   thread that has caught a panic of a waker.
//!
//! A waiting task takes one entry of a `BTreeMap`. So it allocates only if the map needs a further
//! node, which has room for 11 entries.
//!
//! *Invariant*: while a value is in the backlog and a waker under a ticket, a woken task has not
//! polled yet. That task takes the value, or passes the wake-up to the next task.

use std::{
    collections::{BTreeMap, VecDeque},
    iter, mem,
    panic::RefUnwindSafe,
    sync::{
        Arc,
        mpsc::{RecvError, TryRecvError},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
    vec::Vec,
};

use crate::{
    panics::catch,
    sync::{Condvar, Mutex},
    waker::poll_or_store,
    wheel::Expired,
};

/// A queue from the reaper to the executor threads or receivers.
pub(crate) struct Backlog<T> {
    /// Whether the user receives the timeouts, instead of executor threads.
    pub(super) is_queue: bool,
    pub(super) state: Mutex<State<T>>,
    arrived: Condvar,
}

pub(super) struct State<T> {
    waiting: Chunks<T>,
    /// Threads that wait for a timeout. Some of them may have been woken already.
    sleepers: usize,
    /// Whether the backlog is closed: no timeout follows.
    pub(super) is_closed: bool,
    /// Tasks that wait for a timeout.
    pub(super) receivers: Receivers,
}

/// A queue that grows by chunks, so that no insert copies it under the lock. It keeps one chunk.
struct Chunks<T> {
    queues: VecDeque<VecDeque<Expired<T>>>,
    len: usize,
    /// Number of timeouts that were taken.
    taken: u64,
}

impl<T> Chunks<T> {
    /// Timeouts in a chunk.
    const CHUNK: usize = 1024;

    fn new() -> Self {
        Self { queues: VecDeque::new(), len: 0, taken: 0 }
    }

    fn push(&mut self, expired: Expired<T>) {
        self.len += 1;
        if self.queues.back().is_none_or(|last| last.len() == Self::CHUNK) {
            self.queues.push_back(VecDeque::with_capacity(Self::CHUNK));
        }
        self.queues.back_mut().expect("there is a chunk").push_back(expired);
    }

    fn pop(&mut self) -> Option<Expired<T>> {
        let first = self.queues.front_mut()?;
        let expired = first.pop_front()?;
        (self.len, self.taken) = (self.len - 1, self.taken + 1);
        if first.is_empty() && self.queues.len() > 1 {
            self.queues.pop_front();
        }
        Some(expired)
    }
}

// As the shards of the timer.
impl<T> RefUnwindSafe for Backlog<T> {}

impl<T> State<T> {
    fn take(&mut self) -> Result<Expired<T>, TryRecvError> {
        let none = if self.is_closed { TryRecvError::Disconnected } else { TryRecvError::Empty };
        self.waiting.pop().ok_or(none)
    }
}

impl<T> Backlog<T> {
    /// `is_queue` tells whether the user receives the timeouts.
    pub(crate) fn new(is_queue: bool) -> Self {
        let state = State {
            waiting: Chunks::new(),
            sleepers: 0,
            is_closed: false,
            receivers: Receivers::default(),
        };
        Self { is_queue, state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Adds a batch, which it leaves empty with its memory. Returns how many threads to
    /// [wake](Self::wake), and the wakers of tasks: at most one of each for a timeout. The caller
    /// holds the lock of the shard.
    #[must_use]
    pub(crate) fn put(&self, batch: &mut Vec<Expired<T>>) -> (usize, Vec<Waker>) {
        if batch.is_empty() {
            return (0, Vec::new());
        }
        let mut state = self.state.lock();
        debug_assert!(!state.is_closed, "a timeout expired after the end");
        let threads = state.sleepers.min(batch.len());
        let tasks = state.receivers.pop_up_to(batch.len());
        batch.drain(..).for_each(|expired| state.waiting.push(expired));
        (threads, tasks)
    }

    /// Wakes threads that wait for a timeout.
    pub(crate) fn wake(&self, threads: usize) {
        (0..threads).for_each(|_| self.arrived.notify_one());
    }

    /// Wakes tasks by `wake`, which returns `false` if the waker panics. Then wakes another task,
    /// if a value is left.
    pub(crate) fn wake_tasks(
        &self,
        tasks: impl IntoIterator<Item = Waker>,
        wake: impl Fn(Waker) -> bool,
    ) {
        for task in tasks {
            let mut next = Some(task);
            while let Some(task) = next {
                next = if wake(task) { None } else { self.next_task() };
            }
        }
    }

    /// Removes the waker of the task that has waited longest, if there is a value.
    fn next_task(&self) -> Option<Waker> {
        let mut state = self.state.lock();
        let is_due = state.waiting.len > 0;
        state.receivers.pop_up_to(usize::from(is_due)).pop()
    }

    /// Takes the timeout that has waited longest.
    pub(crate) fn try_take(&self) -> Result<Expired<T>, TryRecvError> {
        self.state.lock().take()
    }

    /// Takes the timeout that has waited longest, or waits for one; `None` once the backlog is
    /// closed and empty.
    pub(crate) fn take(&self) -> Option<Expired<T>> {
        self.take_by(None).ok()
    }

    /// Takes the timeout that has waited longest, or waits for one until `deadline`, if there is
    /// one.
    pub(crate) fn take_by(&self, deadline: Option<Instant>) -> Result<Expired<T>, TryRecvError> {
        let mut state = self.state.lock();
        loop {
            let taken = state.take();
            if !matches!(taken, Err(TryRecvError::Empty)) {
                return taken;
            }
            let until = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
            let remaining = deadline.map_or(Duration::MAX, until);
            if remaining.is_zero() {
                return taken;
            }
            state.sleepers += 1;
            state = self.arrived.wait_for(state, remaining);
            state.sleepers -= 1;
        }
    }

    /// Makes the threads that take timeouts end once the backlog is empty. No more timeouts come.
    /// Returns the wakers of all waiting tasks.
    #[must_use]
    pub(crate) fn close(&self) -> Vec<Waker> {
        let mut state = self.state.lock();
        state.is_closed = true;
        let tasks = state.receivers.pop_up_to(usize::MAX);
        drop(state);
        self.arrived.notify_all();
        tasks
    }

    /// Takes all timeouts.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Expired<T>> {
        let mut state = self.state.lock();
        state.waiting.taken += state.waiting.len as u64;
        let rest = Chunks { taken: state.waiting.taken, ..Chunks::new() };
        debug_assert!(state.is_closed, "a timeout may come after all were taken");
        mem::replace(&mut state.waiting, rest).queues.into_iter().flatten()
    }

    /// Returns the number of timeouts that were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.state.lock().waiting.taken
    }
}

/// The number of a waiting task, in the order of arrival; `None` if the task does not wait.
pub(crate) type Ticket = Option<u64>;

/// The waker of a task; `None` if the task is about to store it, and looks for a value again before
/// that.
type Slot = Option<Waker>;

/// The wakers of the waiting tasks, by ticket.
#[derive(Default)]
pub(super) struct Receivers {
    waiting: BTreeMap<u64, Slot>,
    next_ticket: u64,
}

impl Receivers {
    /// Removes up to `count` wakers, longest waiting first. A slot without one is not counted: the
    /// clone of its waker may have panicked.
    fn pop_up_to(&mut self, count: usize) -> Vec<Waker> {
        if cfg!(not(feature = "future")) {
            // Programs without tasks do not contain the code of the map.
            return Vec::new();
        }
        let slots = iter::from_fn(|| self.waiting.pop_first());
        slots.filter_map(|(_, slot)| slot).take(count).collect()
    }

    /// Returns the slot of a ticket, which may be a new one.
    pub(super) fn slot(&mut self, ticket: &mut Ticket) -> &mut Slot {
        let ticket = *ticket.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        debug_assert!(ticket <= self.next_ticket, "ticket {ticket} was not given out");
        self.waiting.entry(ticket).or_default()
    }

    /// Clears a ticket. Returns its slot, or `None` if a put or a close has removed it.
    pub(super) fn remove(&mut self, ticket: &mut Ticket) -> Option<Slot> {
        self.waiting.remove(&ticket.take()?)
    }
}

/// A task that receives values of a queue.
pub(crate) struct Receiver<T> {
    pub(super) backlog: Arc<Backlog<T>>,
    pub(super) ticket: Ticket,
}

impl<T> Receiver<T> {
    pub(crate) const fn new(backlog: Arc<Backlog<T>>) -> Self {
        Self { backlog, ticket: None }
    }

    /// Takes a due value, or stores the waker under the ticket. So a task that wakes without a
    /// value keeps its turn.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let ticket = &mut self.ticket;
        let polled = poll_or_store(&self.backlog.state, cx.waker(), |state| match state.take() {
            Err(TryRecvError::Empty) => Err(state.receivers.slot(ticket)),
            taken => Ok((taken, state.receivers.remove(ticket))),
        });
        debug_assert!(polled.is_pending() || self.ticket.is_none(), "a ready task keeps its turn");
        polled.map(|(taken, _removed)| taken.map(|expired| expired.value).map_err(|_| RecvError))
    }
}

/// If the task has been woken, the wake-up goes to the next one.
impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.ticket.is_none() {
            return;
        }
        let removed = self.backlog.state.lock().receivers.remove(&mut self.ticket);
        if removed.is_none() {
            self.backlog.wake_tasks(self.backlog.next_task(), |task| catch(|| task.wake()).is_ok());
        }
    }
}

#[cfg(all(test, feature = "future", not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_without_a_waker_takes_no_wake_up_from_another_task() {
        let mut receivers = Receivers::default();
        let (mut first, mut second) = (None, None);
        assert!(receivers.slot(&mut first).is_none());
        *receivers.slot(&mut second) = Some(Waker::noop().clone());
        assert_eq!(receivers.pop_up_to(1).len(), 1);
        assert!(receivers.remove(&mut second).is_none(), "the second task was not woken");
    }

    #[test]
    fn a_thread_that_has_waited_in_vain_is_not_woken() {
        let backlog = Backlog::<()>::new(true);
        assert!(backlog.take_by(Some(Instant::now() + Duration::from_millis(1))).is_err());
        assert_eq!(backlog.state.lock().sleepers, 0);
    }
}
