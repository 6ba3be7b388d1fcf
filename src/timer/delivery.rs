//! Where expired timeouts go: to callbacks on the reaper or on a pool, or to the backlog, from
//! which executor threads or receivers take them.
//!
//! The reaper adds a batch for each shard. Then it wakes a waiting thread for each timeout that it
//! has added, as long as threads wait. A thread takes one timeout at a time, so a slow callback
//! delays no timeout that another thread can take.
//!
//! # Hand-off
//!
//! A thread moves timeouts from a wheel to the backlog under the lock of the shard. So each timeout
//! is in a wheel or in the backlog, whenever the lock of its shard is free. A shutdown that has
//! closed and emptied each shard finds all other timeouts in the backlog, and no timeout follows
//! them. The lock of the backlog comes after the locks of the shards. The thread wakes executors
//! and receivers after it has released the lock of the shard.
//!
//! # Tasks that receive
//!
//! - A poll takes a value, or stores the waker of its task under the ticket of its receiver, in one
//!   hold of the backlog's lock.
//! - After its puts, the reaper removes the wakers with the least tickets, at most one for each
//!   value that it has put, and wakes them without the lock. A thread that closes the backlog does
//!   so with all wakers.
//! - A woken task finds no value if another receiver was faster. It waits again with the same
//!   ticket, so it stays ahead of tasks that began to wait later.
//! - A woken task that drops its receiver wakes the next task, if there is a value. So does a
//!   thread that has caught a panic of a waker.
//!
//! A waiting task takes one entry of a `BTreeMap`. So it allocates only if the map needs a further
//! node, which has room for 11 entries.
//!
//! *Invariant*: while a value is in the backlog and a waker under a ticket, the reaper is about to
//! wake tasks, or a woken task has not polled yet. That task takes the value, or passes the wake-up
//! to the next task.

use std::{
    boxed::Box,
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

use super::stats::Events;
use crate::{
    panics::catch,
    sync::{Condvar, Mutex},
    waker::{discard, poll_or_store},
    wheel::Expired,
};

/// A pool of threads that runs callbacks for a timer.
///
/// Any function that takes a boxed closure is an executor, so most pools need one line:
///
/// ```ignore
/// Timer::builder().executor(|task| rayon::spawn(task))
/// Timer::builder().executor(move |task: Box<_>| drop(handle.spawn_blocking(task)))
/// ```
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, thread, time::Duration};
///
/// use delaywheel::Timer;
///
/// let timer = Timer::builder().executor(|task| drop(thread::spawn(task))).build()?;
/// let (ran, events) = mpsc::channel();
/// timer.schedule(Duration::ZERO, move || ran.send(()).unwrap())?;
/// events.recv()?;
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub trait Executor: Send + Sync + 'static {
    /// Passes a task to a thread that runs it. The reaper calls this. While the call blocks, no
    /// other timeout of this reaper's timers expires.
    ///
    /// The timer catches and counts a panic of this call or of the task. A task that is dropped
    /// without a run still counts as expired.
    fn execute(&self, task: Box<dyn FnOnce() + Send>);
}

impl<F: Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static> Executor for F {
    fn execute(&self, task: Box<dyn FnOnce() + Send>) {
        self(task);
    }
}

/// Where expired timeouts go.
pub(crate) enum Delivery<T> {
    /// The handler runs on the thread of the reaper, or of the clock.
    Inline,
    /// Executor threads of the timer, or threads and tasks of the user, take the timeouts from the
    /// backlog.
    Backlog(Arc<Backlog<T>>),
    /// A pool of the user runs the handler.
    Pool(Arc<dyn Executor>),
}

impl<T> Delivery<T> {
    /// Returns the backlog, if there is one.
    pub(super) fn backlog(&self) -> Option<&Backlog<T>> {
        if let Self::Backlog(backlog) = self { Some(backlog) } else { None }
    }

    /// Returns whether the user receives the timeouts.
    pub(super) fn is_queue(&self) -> bool {
        self.backlog().is_some_and(|backlog| backlog.is_queue)
    }

    /// Returns whether threads of the timer take the timeouts.
    pub(super) fn has_executors(&self) -> bool {
        self.backlog().is_some_and(|backlog| !backlog.is_queue)
    }
}

/// Runs the user's handler, and catches and counts its panics.
pub(crate) struct Handler<T> {
    handle: Box<dyn Fn(T) + Send + Sync>,
    pub(super) events: Events,
}

impl<T> Handler<T> {
    pub(super) fn new(events: Events, handle: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self { handle: Box::new(handle), events }
    }

    pub(crate) fn call(&self, expired: Expired<T>) {
        self.catch(|| (self.handle)(expired.value));
    }

    /// Runs user code, and catches and counts its panic. Returns whether it returned.
    pub(super) fn catch(&self, user_code: impl FnOnce()) -> bool {
        catch(user_code).map_err(|panic| self.events.panicked(&panic)).is_ok()
    }
}

/// A queue from the reaper to the executor threads or receivers.
pub(crate) struct Backlog<T> {
    /// Whether the user receives the timeouts, instead of executor threads.
    pub(super) is_queue: bool,
    pub(super) state: Mutex<BacklogState<T>>,
    arrived: Condvar,
}

pub(super) struct BacklogState<T> {
    /// The timeouts, in blocks, so that no insert copies earlier ones under the lock. The last
    /// block stays when it is empty.
    blocks: VecDeque<VecDeque<Expired<T>>>,
    /// Number of timeouts that were taken.
    pub(super) taken: u64,
    /// Threads that wait for a timeout. Some of them may have been woken already.
    sleepers: usize,
    /// Whether the backlog is closed: no timeout follows.
    pub(super) is_closed: bool,
    /// Tasks that wait for a timeout.
    pub(super) receivers: Receivers,
}

// User code never runs under this lock, so a panic leaves no inconsistent state.
impl<T> RefUnwindSafe for Backlog<T> {}

/// Returns the number of timeouts in a block. The last block stays, so large values get short ones.
/// The reaper keeps room for as many.
pub(super) fn block_len<T>() -> usize {
    ((128 << 10) / size_of::<Expired<T>>()).clamp(1, 1024)
}

impl<T> BacklogState<T> {
    fn push(&mut self, expired: Expired<T>) {
        let len = block_len::<T>();
        if self.blocks.back().is_none_or(|last| last.len() == len) {
            self.blocks.push_back(VecDeque::with_capacity(len));
        }
        self.blocks.back_mut().expect("there is a block").push_back(expired);
    }

    fn take(&mut self) -> Result<Expired<T>, TryRecvError> {
        let none = if self.is_closed { TryRecvError::Disconnected } else { TryRecvError::Empty };
        let first = self.blocks.front_mut().ok_or(none)?;
        let expired = first.pop_front().ok_or(none)?;
        self.taken += 1;
        if first.is_empty() && self.blocks.len() > 1 {
            self.blocks.pop_front();
        }
        Ok(expired)
    }
}

impl<T> Backlog<T> {
    /// Makes an empty backlog. `is_queue` tells whether the user receives the timeouts.
    pub(crate) fn new(is_queue: bool) -> Self {
        let (blocks, receivers) = (VecDeque::new(), Receivers::default());
        let state = BacklogState { blocks, taken: 0, sleepers: 0, is_closed: false, receivers };
        Self { is_queue, state: Mutex::new(state), arrived: Condvar::default() }
    }

    /// Adds a batch, and leaves the vector empty, with its memory. Returns the length of the batch,
    /// or zero if no thread or task waits. The caller holds the lock of the shard. After its
    /// release, it [wakes](Self::wake) receivers, perhaps for several batches.
    #[must_use]
    pub(crate) fn put(&self, batch: &mut Vec<Expired<T>>) -> usize {
        let mut state = self.state.lock();
        debug_assert!(!state.is_closed, "a timeout expired after the end");
        let is_awaited = state.sleepers > 0 || !state.receivers.waiting.is_empty();
        let awaited = if is_awaited { batch.len() } else { 0 };
        batch.drain(..).for_each(|expired| state.push(expired));
        awaited
    }

    /// Wakes up to `most` waiting threads and up to `most` waiting tasks, unless other receivers
    /// have emptied the backlog. `wake` wakes a task, and returns `false` if the waker panics. Then
    /// the backlog wakes another task, if a value is left.
    pub(crate) fn wake(&self, most: usize, wake: impl Fn(Waker) -> bool) {
        for task in self.wake_threads(most) {
            let mut next = Some(task);
            while let Some(task) = next {
                next = if wake(task) { None } else { self.wake_threads(1).pop() };
            }
        }
    }

    /// Wakes threads, and removes the wakers of the tasks that have waited longest, if there is a
    /// value.
    fn wake_threads(&self, most: usize) -> Vec<Waker> {
        let mut state = self.state.lock();
        let is_empty = state.blocks.front().is_none_or(VecDeque::is_empty);
        let most = if is_empty { 0 } else { most };
        // A thread that finds no timeout sleeps again. More notifications than sleepers would wake
        // it twice.
        let threads = most.min(state.sleepers);
        let tasks = state.receivers.pop_up_to(most);
        drop(state);
        (0..threads).for_each(|_| self.arrived.notify_one());
        tasks
    }

    /// Takes the timeout that has waited longest.
    pub(crate) fn try_take(&self) -> Result<Expired<T>, TryRecvError> {
        self.state.lock().take()
    }

    /// Takes the timeout that has waited longest. If there is none, waits for one until `deadline`;
    /// without limit for `None`. `Disconnected` means that the backlog is closed and empty.
    pub(crate) fn take_by(&self, deadline: Option<Instant>) -> Result<Expired<T>, TryRecvError> {
        let mut state = self.state.lock();
        loop {
            let taken = state.take();
            let until = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
            let remaining = || deadline.map_or(Duration::MAX, until);
            if !matches!(taken, Err(TryRecvError::Empty)) || remaining().is_zero() {
                return taken;
            }
            state.sleepers += 1;
            state = self.arrived.wait_for(state, remaining());
            state.sleepers -= 1;
        }
    }

    /// Makes the threads that take timeouts end once the backlog is empty. No more timeouts come.
    /// Returns the wakers of all waiting tasks.
    #[must_use]
    pub(crate) fn close(&self) -> Vec<Waker> {
        let mut state = self.state.lock();
        state.is_closed = true;
        // Any number of tasks may wait, so this thread lists them without the lock.
        let mut receivers = mem::take(&mut state.receivers);
        drop(state);
        self.arrived.notify_all();
        receivers.pop_up_to(usize::MAX)
    }

    /// Takes the values of all timeouts.
    pub(crate) fn take_all(&self) -> Vec<T> {
        let mut state = self.state.lock();
        debug_assert!(state.is_closed, "a timeout may come after all were taken");
        let rest = mem::take(&mut state.blocks);
        state.taken += rest.iter().map(VecDeque::len).sum::<usize>() as u64;
        drop(state);
        rest.into_iter().flatten().map(|expired| expired.value).collect()
    }
}

/// The number of a waiting task, in the order of arrival; `None` if the task does not wait.
pub(crate) type Ticket = Option<u64>;

/// The waker of a task; `None` while a poll clones it without the lock. The poll looks for a value
/// again before it stores the clone.
type WakerSlot = Option<Waker>;

/// The wakers of the waiting tasks, by ticket.
#[derive(Default)]
pub(super) struct Receivers {
    waiting: BTreeMap<u64, WakerSlot>,
    next_ticket: u64,
}

impl Receivers {
    /// Removes up to `count` wakers, those of the longest waiting tasks first. A slot without a
    /// waker does not count: the clone of the waker may have panicked.
    fn pop_up_to(&mut self, count: usize) -> Vec<Waker> {
        if cfg!(not(feature = "future")) {
            // Programs without tasks do not contain the code of the map.
            return Vec::new();
        }
        let slots = iter::from_fn(|| self.waiting.pop_first());
        slots.filter_map(|(_, slot)| slot).take(count).collect()
    }

    /// Returns the slot of a ticket. A task without a ticket gets a new one.
    pub(super) fn slot(&mut self, ticket: &mut Ticket) -> &mut WakerSlot {
        let ticket = *ticket.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        debug_assert!(ticket <= self.next_ticket, "ticket {ticket} was not given out");
        self.waiting.entry(ticket).or_default()
    }

    /// Clears a ticket. Returns its slot, or `None` if a put or a close has removed it.
    pub(super) fn remove(&mut self, ticket: &mut Ticket) -> Option<WakerSlot> {
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

    /// Takes a due value, or stores the waker under the ticket. So a woken task that finds no value
    /// keeps its turn.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let ticket = &mut self.ticket;
        let polled = poll_or_store(&self.backlog.state, cx.waker(), |state| match state.take() {
            Err(TryRecvError::Empty) => Err(state.receivers.slot(ticket)),
            taken => Ok((taken, state.receivers.remove(ticket))),
        });
        debug_assert!(polled.is_pending() || self.ticket.is_none(), "a ready task keeps its turn");
        polled.map(|(taken, removed)| {
            discard(removed);
            taken.map(|expired| expired.value).map_err(|_| RecvError)
        })
    }
}

/// If the task has been woken, the drop passes the wake-up to the next task.
impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.ticket.is_none() {
            return;
        }
        let removed = self.backlog.state.lock().receivers.remove(&mut self.ticket);
        if removed.is_none() {
            self.backlog.wake(1, |task| catch(|| task.wake()).is_ok());
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
}
