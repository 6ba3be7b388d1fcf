//! Expired entries of a [`DelayMap`], for one task or for many.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, pending, poll_fn},
    hash::Hash,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Poll, Waker},
    time::Instant,
    vec::Vec,
};

use super::{Sleep, SleepError, default_timer, sleep_until};
use crate::{
    sync::{Mutex, MutexGuard},
    time::{DelayMap, Source},
    timer::Timer,
    waker::{discard, poll_or_store, wake_all},
};

/// A future, with the feature `future`.
impl<K: Hash + Eq, V> DelayMap<K, V> {
    /// Waits for the next entry that is due, and removes it; `None` if the map is empty.
    ///
    /// The task sleeps on the timer of the map. A map without a timer uses the [default
    /// timer](super::default_timer()) or, if the default timer has a clock of your own, another
    /// timer of this process. Entries that never expire keep the task asleep.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::time::DelayMap;
    ///
    /// # pollster::block_on(async {
    /// let mut requests = DelayMap::new();
    /// requests.insert(7, "ping", Duration::from_millis(2))?;
    /// requests.insert(8, "pong", Duration::from_millis(1))?;
    /// while let Some((id, request)) = requests.next().await? {
    ///     println!("{id}, {request}, was not answered");
    /// }
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`SleepError`] if the timer is full or shut down. The map has lost nothing.
    ///
    /// # Cancel safety
    ///
    /// An entry leaves the map only when the future is ready. So it can be a branch of `select!`,
    /// beside a branch that waits for work and inserts it into the map. Call `next` again after the
    /// insert: it then waits for the earliest entry.
    pub async fn next(&mut self) -> Result<Option<(K, V)>, SleepError> {
        loop {
            if let Some(expired) = self.pop_expired() {
                return Ok(Some(expired));
            }
            if self.is_empty() {
                return Ok(None);
            }
            let Some(next) = self.next_expiration() else { pending().await };
            // The clock of a map without a timer may be behind the clock of this sleep by a moment.
            self.sleep_until(next).await?;
        }
    }

    fn sleep_until(&self, instant: Instant) -> Sleep {
        static SYSTEM: LazyLock<Timer> = LazyLock::new(Timer::new);
        match &self.source {
            Source::Timer(timer) => timer.sleep_until(instant),
            Source::System(_) if default_timer().clock().is_system => sleep_until(instant),
            Source::System(_) => SYSTEM.sleep_until(instant),
        }
    }
}

/// A [`DelayMap`] that tasks and threads share. Clones are the same map.
///
/// All functions of the map are behind [`lock`](Self::lock). While some tasks insert and remove
/// entries, others wait in [`next`](Self::next) for due entries. A new entry with an earlier
/// deadline wakes the waiting tasks.
///
/// # Examples
///
/// ```
/// use std::{thread, time::Duration};
///
/// use delaywheel::future::SharedDelayMap;
/// use pollster::block_on;
///
/// let sessions = SharedDelayMap::new();
/// let expired = thread::spawn({
///     let sessions = sessions.clone();
///     move || block_on(sessions.next())
/// });
/// sessions.lock().insert("ann", 1, Duration::from_secs(3600))?;
/// sessions.lock().insert("bob", 2, Duration::from_millis(5))?;
/// assert_eq!(expired.join().unwrap()?, ("bob", 2));
/// assert_eq!(sessions.lock().remove("ann"), Some(1));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct SharedDelayMap<K, V>(Arc<Mutex<SharedMap<K, V>>>);

/// A map, and the tasks that wait for its entries.
///
/// A waiting task sleeps until the `next_expiration` that it saw. If a guard leaves the map with an
/// earlier expiration, its drop wakes the task. So no task sleeps past the next expiration.
struct SharedMap<K, V> {
    map: DelayMap<K, V>,
    /// For each waiting future, by its number: the instant until which its task sleeps, and the
    /// waker of the task, unless a guard has woken it.
    waiting: BTreeMap<u64, (Option<Instant>, Option<Waker>)>,
    /// The number of futures so far.
    futures: u64,
}

impl<K, V> SharedDelayMap<K, V> {
    /// Makes an empty map that reads the system's clock, in ticks of 1 ms.
    #[must_use]
    pub fn new() -> Self {
        Self::with(DelayMap::new())
    }

    /// Makes an empty map with the clock and the tick of a timer, of which it holds a clone.
    #[must_use]
    pub fn on(timer: &Timer) -> Self {
        Self::with(DelayMap::on(timer))
    }

    fn with(map: DelayMap<K, V>) -> Self {
        Self(Arc::new(Mutex::new(SharedMap { map, waiting: BTreeMap::new(), futures: 0 })))
    }

    /// Locks the map. Waits for other threads that have it locked.
    ///
    /// Code of yours that runs under the lock must not lock the map again, by this handle or
    /// another. Such code is `Hash`, `Eq` and `Debug`, drops of values, the clock, and the body of
    /// an `if let` on `lock().get(..)`. A future of [`next`](Self::next) locks the map in its polls
    /// and in its drop. Do not keep the guard across an `await`: it is not [`Send`]. A panic of
    /// your code unlocks the map. If you put a map of another timer in the place of this one, a
    /// task that waits may still wait for the first timer.
    #[must_use = "the map is unlocked at once"]
    pub fn lock(&self) -> impl DerefMut<Target = DelayMap<K, V>> + '_ {
        Guard(Some(self.0.lock()))
    }
}

impl<K: Hash + Eq, V> SharedDelayMap<K, V> {
    /// Waits for the next entry that is due, and removes it. While the map is empty, it waits for
    /// an entry.
    ///
    /// The task sleeps on the same timer as in [`DelayMap::next`]. Any number of tasks may wait. An
    /// expiration wakes all of them, and one gets the entry. So it is cheaper if one task waits and
    /// gives the entries to the others.
    ///
    /// # Errors
    ///
    /// [`SleepError`] if there is an entry to wait for, and the timer is full or shut down. The map
    /// has lost nothing. A shutdown does not end the wait at an empty map: drop the future.
    ///
    /// # Cancel safety
    ///
    /// An entry leaves the map only when the future is ready.
    pub async fn next(&self) -> Result<(K, V), SleepError> {
        let waiter = Waiter::new(&self.0);
        let mut sleep: Option<(Instant, Sleep)> = None;
        poll_fn(|cx| {
            loop {
                let mut next = None;
                let entry = poll_or_store(&self.0, cx.waker(), |shared| {
                    if let Some(expired) = shared.map.pop_expired() {
                        return Ok(expired);
                    }
                    next = shared.map.next_expiration();
                    let (until, waker) = shared.waiting.entry(waiter.number).or_default();
                    *until = next;
                    Err(waker)
                });
                if let Poll::Ready(expired) = entry {
                    discard(sleep.take());
                    return Poll::Ready(Ok(expired));
                }
                if sleep.as_ref().map(|(until, _)| *until) != next {
                    sleep = next.map(|until| (until, self.0.lock().map.sleep_until(until)));
                }
                // Without an expiration to wait for, only an insert wakes this task.
                let Some((_, slept)) = &mut sleep else { return Poll::Pending };
                match Pin::new(slept).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) => sleep = None,
                }
            }
        })
        .await
    }
}

/// Access to a shared map; from [`SharedDelayMap::lock`]. `None` within the drop.
struct Guard<'a, K, V>(Option<MutexGuard<'a, SharedMap<K, V>>>);

impl<K, V> Deref for Guard<'_, K, V> {
    type Target = DelayMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.0.as_ref().expect("it holds the lock").map
    }
}

impl<K, V> DerefMut for Guard<'_, K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0.as_mut().expect("it holds the lock").map
    }
}

impl<K, V> Drop for Guard<'_, K, V> {
    fn drop(&mut self) {
        let Some(mut shared) = self.0.take() else { return };
        if shared.waiting.is_empty() {
            return;
        }
        let Some(next) = shared.map.next_expiration() else { return };
        let late = shared.waiting.values_mut();
        let late = late.filter(|(until, _)| until.is_none_or(|until| next < until));
        let wakers: Vec<_> = late.filter_map(|(_, waker)| waker.take()).collect();
        drop(shared);
        wake_all(wakers);
    }
}

/// The number of a waiting future. Its drop removes the future from the waiting ones.
struct Waiter<'a, K, V> {
    shared: &'a Mutex<SharedMap<K, V>>,
    number: u64,
}

impl<'a, K, V> Waiter<'a, K, V> {
    fn new(shared: &'a Mutex<SharedMap<K, V>>) -> Self {
        let mut locked = shared.lock();
        locked.futures += 1;
        Self { shared, number: locked.futures }
    }
}

impl<K, V> Drop for Waiter<'_, K, V> {
    fn drop(&mut self) {
        // The drop of a waker is user code, so the lock is released first.
        let waiting = self.shared.lock().waiting.remove(&self.number);
        discard(waiting);
    }
}

impl<K, V> Clone for SharedDelayMap<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for SharedDelayMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedDelayMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().fmt(f)
    }
}
