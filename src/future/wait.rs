//! Waits in a [`Purgatory`], as futures.
//!
//! A wait registers an operation at its first poll. The operation and the future share the
//! completion and the waker, in the one allocation of a wait. It outlives both: the future may be
//! moved or dropped while another thread ends the operation, and the task reads the completion
//! after that. When the operation ends, or is dropped, it stores its completion and wakes the task.
//! When the future is dropped, its guard cancels the operation.

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

use smallvec::SmallVec;

use crate::{
    purgatory::{
        Completion, DelayedOperation, OperationGuard, Purgatory, Watch, WatchError, Watched,
    },
    sync::{AtomicBool, Mutex, Ordering},
    timer::contain,
};

/// A purgatory for tasks, which await [`wait`](Purgatory::wait), [`wait_any`](Purgatory::wait_any)
/// and [`wait_all`](Purgatory::wait_all).
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
/// use delaywheel::{AsyncPurgatory, Completion, future::block_on};
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
pub type AsyncPurgatory<K, R = ()> = Purgatory<K, Waiting<K, R>, R>;

/// Error of a [`Wait`] that the purgatory refuses.
pub type WaitError<K, R = ()> = WatchError<Waiting<K, R>>;

type When = Box<dyn FnMut() -> bool + Send>;
type Reached<K> = Box<dyn FnMut(&K, u64) -> bool + Send>;

/// The operation of a [`Wait`], in an [`AsyncPurgatory`].
///
/// If it is dropped without being completed, such as after [`Purgatory::shutdown`], its wait ends
/// with [`Completion::ShutDown`].
pub struct Waiting<K, R = ()> {
    when: Option<When>,
    reached: Option<Reached<K>>,
    shared: Arc<Shared<R>>,
}

/// The part that an operation and its future share.
pub(super) struct Shared<R> {
    /// Whether the operation is registered. Each check after that follows an event.
    is_registered: AtomicBool,
    pub(super) end: Mutex<End<R>>,
}

pub(super) enum End<R> {
    /// The operation has not ended. Holds the waker of the task that polled last.
    Open(Option<Waker>),
    Ended(Option<Completion<R>>),
}

impl<R> Shared<R> {
    /// Makes the shared part of a wait. It has no waker, so an end within the first poll wakes no
    /// task.
    pub(super) fn new() -> Self {
        Self { is_registered: AtomicBool::new(false), end: Mutex::new(End::Open(None)) }
    }

    /// Stores the completion, if there is none, and wakes the task.
    pub(super) fn finish(&self, completion: Completion<R>) {
        let mut end = self.end.lock();
        if let End::Open(waker) = &mut *end {
            let waker = waker.take();
            *end = End::Ended(Some(completion));
            drop(end);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the completion, or keeps a clone of the waker.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Completion<R>> {
        let mut clone = None;
        loop {
            let mut end = self.end.lock();
            match &mut *end {
                End::Ended(completion) => {
                    let completion = completion.take();
                    drop(end);
                    return Poll::Ready(completion.expect("a wait is not polled after its end"));
                }
                End::Open(Some(held)) if held.will_wake(waker) => return Poll::Pending,
                // Cloning and dropping a waker runs user code, so neither happens under the lock.
                End::Open(held) if clone.is_some() => {
                    mem::swap(held, &mut clone);
                    debug_assert!(held.is_some(), "the task of this poll is not woken");
                    drop(end);
                    return Poll::Pending;
                }
                End::Open(_) => {}
            }
            drop(end);
            clone = Some(waker.clone());
        }
    }

    fn has_ended(&self) -> bool {
        matches!(&*self.end.lock(), End::Ended(_))
    }

    fn has_waker(&self) -> bool {
        matches!(&*self.end.lock(), End::Open(Some(_)))
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

impl<K, R> DelayedOperation<K, R> for Waiting<K, R>
where
    K: 'static,
    R: Send + 'static,
{
    fn try_complete(&mut self) -> bool {
        match &mut self.when {
            Some(when) => when(),
            None => self.shared.is_registered.load(Ordering::Acquire),
        }
    }

    fn has_reached(&mut self, key: &K, threshold: u64) -> bool {
        self.reached.as_mut().is_some_and(|reached| reached(key, threshold))
    }

    fn complete(self, completion: Completion<R>) {
        self.shared.finish(completion);
    }
}

impl<K, R> Drop for Waiting<K, R> {
    fn drop(&mut self) {
        contain(|| self.shared.finish(Completion::ShutDown));
        debug_assert!(self.shared.has_ended(), "the wait would never end");
    }
}

impl<K, R> fmt::Debug for Waiting<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

/// Waits in a purgatory; from [`Purgatory::wait`], [`wait_any`](Purgatory::wait_any) and
/// [`wait_all`](Purgatory::wait_all).
///
/// The wait begins at the first poll. Do not poll it again after its end.
///
/// # Errors
///
/// [`WaitError`] if a limit of the purgatory is reached, if there are too many keys, if the
/// purgatory is shut down, or if its timer cannot start a thread.
///
/// # Panics
///
/// Panics if it is polled after its end.
///
/// # Cancel safety
///
/// A dropped wait is cancelled and leaves the purgatory. This loses no event, because an event
/// carries no message: the next wait checks its condition first.
#[must_use = "futures do nothing unless awaited"]
pub struct Wait<K, R = ()>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    state: State<K, R>,
}

enum State<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    New(New<K, R>),
    /// The guard cancels the operation when it is dropped. `None` if the operation has ended, or
    /// ends when the completion in progress on the thread of the first poll has returned.
    Waiting(Arc<Shared<R>>, Option<OperationGuard<K, Waiting<K, R>, R>>),
    Done,
}

/// A wait that has not been polled.
struct New<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    purgatory: AsyncPurgatory<K, R>,
    register: Register<K, R>,
    watches: Watches<K>,
    delay: Duration,
    when: Option<When>,
    reached: Option<Reached<K>>,
}

type Watches<K> = SmallVec<[Watch<K>; 2]>;

/// Registers an operation. A function, because only two of the three ways need `K: Clone`, which
/// [`Wait::poll`] does not have.
type Register<K, R> = fn(
    &AsyncPurgatory<K, R>,
    Waiting<K, R>,
    Watches<K>,
    Duration,
) -> Result<Watched, WaitError<K, R>>;

impl<K, R> New<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    fn register(self) -> Result<State<K, R>, WaitError<K, R>> {
        let shared = Arc::new(Shared::new());
        let operation =
            Waiting { when: self.when, reached: self.reached, shared: Arc::clone(&shared) };
        let added = (self.register)(&self.purgatory, operation, self.watches, self.delay)?;
        let guard = added.key().map(|key| self.purgatory.guard(key));
        debug_assert!(!shared.has_waker(), "an end within this poll would wake the task");
        shared.is_registered.store(true, Ordering::Release);
        Ok(State::Waiting(shared, guard))
    }
}

impl<K, R> Wait<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    /// Sets the condition, which the purgatory checks at the first poll and after each event on a
    /// key. Without it, an event on a key after the first poll ends the wait.
    ///
    /// Like [`DelayedOperation::try_complete`], it runs on the thread that announces the event.
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

    fn new_mut(&mut self) -> &mut New<K, R> {
        let State::New(new) = &mut self.state else { panic!("the wait has begun") };
        new
    }
}

impl<K, R> Future for Wait<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    type Output = Result<Completion<R>, WaitError<K, R>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = match mem::replace(&mut self.state, State::Done) {
            State::New(new) => new.register()?,
            state => state,
        };
        let State::Waiting(shared, guard) = state else {
            panic!("a wait is polled after its end");
        };
        let polled = shared.poll(cx.waker());
        if polled.is_pending() {
            self.state = State::Waiting(shared, guard);
        } else {
            debug_assert!(shared.has_ended(), "its operation still waits");
            guard.into_iter().for_each(OperationGuard::disarm);
        }
        polled.map(Ok)
    }
}

impl<K, R> Drop for Wait<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    fn drop(&mut self) {
        if let State::Waiting(shared, _) = &self.state {
            shared.forget_waker();
            debug_assert!(!shared.has_waker(), "the end of a dropped wait wakes its task");
        }
    }
}

impl<K, R> Unpin for Wait<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
}

// User code never runs under a lock of the wait, so a panic leaves no inconsistent state.
impl<K, R> UnwindSafe for Waiting<K, R> {}
impl<K, R> RefUnwindSafe for Waiting<K, R> {}

impl<K, R> fmt::Debug for Wait<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::New(_) => "Wait(new)",
            State::Waiting(..) => "Wait(waiting)",
            State::Done => "Wait(done)",
        })
    }
}

/// Waits as futures, with the feature `future`.
impl<K, R> AsyncPurgatory<K, R>
where
    K: Hash + Eq + Send + 'static,
    R: Default + Send + 'static,
{
    /// Waits for an event on one of the keys, for at most `delay`.
    ///
    /// With [`when`](Wait::when), it waits for an event after which a condition holds. The result
    /// is [`Completion::Satisfied`], [`Completion::Expired`], or another end of the operation.
    ///
    /// [`AsyncPurgatory`] has an example.
    ///
    /// # Cancel safety
    ///
    /// See [`Wait`].
    pub fn wait(&self, keys: impl IntoIterator<Item = K>, delay: Duration) -> Wait<K, R> {
        let register: Register<K, R> = |purgatory, operation, watches, delay| {
            let keys = watches.into_iter().map(|watch| match watch {
                Watch::Events(key) | Watch::Threshold(key, _) => key,
            });
            purgatory.try_complete_else_watch(operation, keys, delay)
        };
        self.new_wait(register, keys.into_iter().map(Watch::Events), delay)
    }

    /// Waits until one of the watches holds: a threshold is reached, or an event on another key,
    /// after which the condition of [`when`](Wait::when) holds.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{AsyncPurgatory, Completion, Watch, future::block_on};
    ///
    /// let purgatory = AsyncPurgatory::<u32>::new();
    /// let wait = purgatory
    ///     .wait_any([Watch::Threshold(3, 100)], Duration::from_secs(30))
    ///     .when_reached(|_key, threshold| threshold <= 120);
    /// assert_eq!(block_on(wait)?, Completion::Satisfied);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// See [`Wait`].
    pub fn wait_any(
        &self,
        watches: impl IntoIterator<Item = Watch<K>>,
        delay: Duration,
    ) -> Wait<K, R>
    where
        K: Clone,
    {
        self.new_wait(AsyncPurgatory::watch_any, watches, delay)
    }

    /// Waits until all watches hold: every threshold is reached, and, if there are other keys, the
    /// condition of [`when`](Wait::when) holds after an event on one of them.
    ///
    /// # Cancel safety
    ///
    /// See [`Wait`].
    pub fn wait_all(
        &self,
        watches: impl IntoIterator<Item = Watch<K>>,
        delay: Duration,
    ) -> Wait<K, R>
    where
        K: Clone,
    {
        self.new_wait(AsyncPurgatory::watch_all, watches, delay)
    }

    fn new_wait(
        &self,
        register: Register<K, R>,
        watches: impl IntoIterator<Item = Watch<K>>,
        delay: Duration,
    ) -> Wait<K, R> {
        let (purgatory, watches) = (self.clone(), watches.into_iter().collect());
        let new = New { purgatory, register, watches, delay, when: None, reached: None };
        Wait { state: State::New(new) }
    }
}
