//! Waits in a [`Purgatory`], as futures.
//!
//! A wait registers an operation at its first poll. The operation and the future share the
//! completion and the waker, in one allocation that lives until both are dropped. The future may be
//! moved or dropped while another thread ends the operation, and the task reads the completion
//! after the end. When the operation ends, or is dropped, it stores its completion and wakes the
//! task. When the future is dropped, its guard cancels the operation.

use std::{
    boxed::Box,
    fmt,
    future::Future,
    hash::Hash,
    mem,
    panic::{RefUnwindSafe, UnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    panics::catch,
    purgatory::{
        Completion, Conditions, DelayedOperation, OperationGuard, Purgatory, WatchError, Watches,
    },
    sync::Mutex,
    waker::poll_or_store,
};

/// A purgatory for tasks, which await [`wait`](Purgatory::wait).
///
/// # Examples
///
/// A long poll that waits for records past an offset, for at most 30 s:
///
/// ```
/// use std::{
///     sync::{Arc, atomic::{AtomicU64, Ordering}},
///     time::Duration,
/// };
///
/// use delaywheel::{Completion, future::AsyncPurgatory};
/// use pollster::block_on;
///
/// let log_end = Arc::new(AtomicU64::new(100));
/// let purgatory = AsyncPurgatory::<u32>::new();
///
/// let (partition, end) = (3, Arc::clone(&log_end));
/// let fetch = purgatory
///     .wait([partition], Duration::from_secs(30))
///     .when(move || end.load(Ordering::Acquire) > 100);
///
/// let appender = purgatory.clone();
/// std::thread::spawn(move || {
///     log_end.store(101, Ordering::Release);
///     appender.check_and_complete(&partition);
/// });
/// assert_eq!(block_on(fetch)?, Completion::Satisfied);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub type AsyncPurgatory<K> = Purgatory<K, Waiting<K>>;

type When = Box<dyn FnMut() -> bool + Send>;
type Reached<K> = Box<dyn FnMut(&K, u64) -> bool + Send>;

/// The operation of a [`Wait`], in an [`AsyncPurgatory`].
///
/// If it is dropped without being completed, such as after [`Purgatory::shutdown`], its wait ends
/// with [`Completion::ShutDown`].
pub struct Waiting<K> {
    when: Option<When>,
    reached: Option<Reached<K>>,
    shared: Arc<SharedWait>,
}

/// The part that an operation and its future share.
pub(super) struct SharedWait {
    pub(super) end: Mutex<End>,
}

pub(super) enum End {
    /// The operation has not ended. Holds the waker of the task that polled last.
    Open(Option<Waker>),
    Ended(Option<Completion>),
}

impl SharedWait {
    /// Makes the shared part of a wait. It has no waker, so an end within the first poll wakes no
    /// task.
    pub(super) fn new() -> Self {
        Self { end: Mutex::new(End::Open(None)) }
    }

    /// Stores the completion, if there is none, and wakes the task.
    pub(super) fn finish(&self, completion: Completion) {
        let mut end = self.end.lock();
        if let End::Open(waker) = &mut *end {
            let waker = waker.take();
            *end = End::Ended(Some(completion));
            drop(end);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the completion, or keeps a clone of the waker.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Completion> {
        let polled = poll_or_store(&self.end, waker, |end| match end {
            End::Ended(completion) => Ok(completion.take()),
            End::Open(slot) => Err(slot),
        });
        polled.map(|completion| completion.expect("a wait is not polled after its end"))
    }

    /// Removes the waker, so the end of the operation wakes no task.
    pub(super) fn forget_waker(&self) {
        let waker = match &mut *self.end.lock() {
            End::Open(waker) => waker.take(),
            End::Ended(_) => None,
        };
        drop(waker);
    }
}

impl<K: 'static> DelayedOperation<K> for Waiting<K> {
    fn try_complete(&mut self) -> bool {
        // Without a condition, each check follows an event.
        self.when.as_mut().is_none_or(|when| when())
    }

    fn has_reached(&mut self, key: &K, threshold: u64) -> bool {
        self.reached.as_mut().is_some_and(|reached| reached(key, threshold))
    }

    fn complete(self, completion: Completion) {
        self.shared.finish(completion);
    }
}

impl<K> Drop for Waiting<K> {
    fn drop(&mut self) {
        drop(catch(|| self.shared.finish(Completion::ShutDown)));
    }
}

impl<K> fmt::Debug for Waiting<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

/// Waits in a purgatory; from [`Purgatory::wait`].
///
/// The wait begins at the first poll. Do not poll it again after its end.
///
/// # Errors
///
/// [`WatchError`] if a limit of the purgatory is reached, if there are too many keys, if the
/// purgatory is shut down, or if its timer cannot start a thread.
///
/// # Panics
///
/// Panics if it is polled after its end.
///
/// # Cancel safety
///
/// A dropped wait is cancelled and leaves the purgatory. With [`when`](Self::when), this loses no
/// event, because an event carries no message: the next wait checks the condition first. In the
/// same way, no value is lost with [`when_reached`](Self::when_reached). Without these functions,
/// an event or a value that came before the drop is lost, and the next wait needs another one. So
/// keep such a wait while other branches of a `select!` win, and poll it by reference.
#[must_use = "futures do nothing unless awaited"]
pub struct Wait<K: Send + 'static> {
    state: WaitState<K>,
}

enum WaitState<K: Send + 'static> {
    New(New<K>),
    /// The guard cancels the operation when it is dropped. `None` if the operation has ended, or
    /// ends when the completion in progress on the thread of the first poll has returned.
    Registered(Arc<SharedWait>, Option<OperationGuard<K, Waiting<K>>>),
    Done,
}

/// A wait that has not been polled.
struct New<K: Send + 'static> {
    purgatory: AsyncPurgatory<K>,
    conditions: Conditions<K>,
    delay: Duration,
    when: Option<When>,
    reached: Option<Reached<K>>,
}

impl<K: Hash + Eq + Send + 'static> New<K> {
    fn register(mut self) -> Result<WaitState<K>, WatchError<Waiting<K>>> {
        if self.when.is_none() {
            self.conditions.need_event();
        }
        let shared = Arc::new(SharedWait::new());
        let operation =
            Waiting { when: self.when, reached: self.reached, shared: Arc::clone(&shared) };
        let added = self.purgatory.register(operation, self.delay, |new| *new = self.conditions)?;
        let guard = added.key().map(|key| self.purgatory.guard(key));
        Ok(WaitState::Registered(shared, guard))
    }
}

impl<K: Send + 'static> Wait<K> {
    /// Sets the condition, which the purgatory checks at the first poll and after each event on a
    /// key. Without it, an event on a key after the first poll ends the wait. A wait for
    /// [all](crate::purgatory::Watch::all) conditions then needs that event and each threshold, in
    /// any order.
    ///
    /// Like [`DelayedOperation::try_complete`], the condition runs on the thread that announces the
    /// event.
    ///
    /// # Panics
    ///
    /// Panics if the wait has been polled.
    pub fn when(mut self, condition: impl FnMut() -> bool + Send + 'static) -> Self {
        self.new_mut().when = Some(Box::new(condition));
        self
    }

    /// Sets the function that returns whether the value of a key has reached a threshold when the
    /// wait begins. Without it, only values announced later count.
    ///
    /// See [`DelayedOperation::has_reached`].
    ///
    /// # Panics
    ///
    /// Panics if the wait has been polled.
    pub fn when_reached(
        mut self,
        has_reached: impl FnMut(&K, u64) -> bool + Send + 'static,
    ) -> Self {
        self.new_mut().reached = Some(Box::new(has_reached));
        self
    }

    fn new_mut(&mut self) -> &mut New<K> {
        let WaitState::New(new) = &mut self.state else { panic!("the wait has begun") };
        new
    }
}

impl<K: Hash + Eq + Send + 'static> Future for Wait<K> {
    type Output = Result<Completion, WatchError<Waiting<K>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = match mem::replace(&mut self.state, WaitState::Done) {
            WaitState::New(new) => new.register()?,
            state => state,
        };
        let WaitState::Registered(shared, guard) = state else {
            panic!("a wait is polled after its end");
        };
        let polled = shared.poll(cx.waker());
        if polled.is_pending() {
            self.state = WaitState::Registered(shared, guard);
        } else {
            guard.into_iter().for_each(OperationGuard::disarm);
        }
        polled.map(Ok)
    }
}

impl<K: Send + 'static> Drop for Wait<K> {
    fn drop(&mut self) {
        if let WaitState::Registered(shared, _) = &self.state {
            shared.forget_waker();
        }
    }
}

impl<K: Send + 'static> Unpin for Wait<K> {}

// User code never runs under a lock of the wait, so a panic leaves no inconsistent state.
impl<K> UnwindSafe for Waiting<K> {}
impl<K> RefUnwindSafe for Waiting<K> {}

impl<K: Send + 'static> fmt::Debug for Wait<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            WaitState::New(_) => "Wait(new)",
            WaitState::Registered(..) => "Wait(waiting)",
            WaitState::Done => "Wait(done)",
        })
    }
}

/// Waits as futures, with the feature `future`.
impl<K: Hash + Eq + Send + 'static> AsyncPurgatory<K> {
    /// Waits for an event on one of the keys, or for the conditions of a
    /// [`Watch`](crate::purgatory::Watch), for at most `delay`.
    ///
    /// With [`when`](Wait::when), it waits for an event after which a condition holds. The result
    /// is [`Completion::Satisfied`], [`Completion::Expired`], or another end of the operation.
    ///
    /// # Examples
    ///
    /// [`AsyncPurgatory`] has an example with events. This one waits for a value:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, Condition, Watch, future::AsyncPurgatory};
    /// use pollster::block_on;
    ///
    /// let purgatory = AsyncPurgatory::<u32>::new();
    /// let wait = purgatory
    ///     .wait(Watch::any([Condition::Threshold(3, 100)]), Duration::from_secs(30))
    ///     .when_reached(|_key, threshold| threshold <= 120);
    /// assert_eq!(block_on(wait)?, Completion::Satisfied);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// See [`Wait`].
    pub fn wait(&self, watches: impl Watches<K>, delay: Duration) -> Wait<K> {
        let (purgatory, mut conditions) = (self.clone(), Conditions::new());
        self.collect(watches, &mut conditions);
        Wait {
            state: WaitState::New(New { purgatory, conditions, delay, when: None, reached: None }),
        }
    }
}
