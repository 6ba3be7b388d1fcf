//! A map whose entries expire.
//!
//! The wheel owns the user's keys and values. The hash table has only the keys of the wheel, so a
//! key of the user is stored once. The wheel has its hash beside it, for the growth of the table
//! and for the expiry. So `Hash` and `Eq`, which are code of the user, run before a call changes
//! anything, and their panics leave the map as it was.

use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasher, Hash},
    time::{Duration, Instant},
};

use foldhash::quality::RandomState;
use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    clock::{Reading, TickClock},
    error::InsertError,
    tick::Tick,
    timer::Timer,
    wheel::{Expired, Key, TimingWheel},
};

/// A map whose entries expire: timeouts by your own ids.
///
/// The map is for one owner, such as a task or an event loop; `future::SharedDelayMap` is the same
/// map for many owners. Each entry has a deadline. An entry that is due stays in the map until
/// [`pop_expired`](Self::pop_expired) returns it, so the owner learns of every end. Until then,
/// [`get`](Self::get) finds it. If a look-up must not find a due entry, first call `pop_expired`
/// until it returns `None`. If a task waits for expired entries, such calls would take them from
/// the task: compare [`deadline`](Self::deadline) with [`Timer::now`] instead.
///
/// Without the feature `future`, threads share a map behind a `Mutex`. A thread that sleeps until
/// [`next_expiration`](Self::next_expiration) must wake when another thread makes this time
/// earlier. So let it wait on a `Condvar`, and notify the `Condvar` after each insert and reset.
///
/// A call hashes only the key that it gets, and hashes it once. Hashes have a random seed, which
/// makes collisions hard to provoke. The map keeps a key once, in the wheel, beside its hash and
/// value.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ManualClock, Timer, time::DelayMap};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let minute = Duration::from_secs(60);
/// let mut sessions = DelayMap::on(&timer); // or `DelayMap::new()`, in real time
/// sessions.insert("ann", 1, minute)?;
/// sessions.insert("bob", 2, minute)?;
///
/// clock.advance(minute / 2);
/// assert!(sessions.reset("ann", minute), "she is active");
/// clock.advance(minute / 2);
/// assert_eq!(sessions.pop_expired(), Some(("bob", 2)));
/// assert_eq!(sessions.pop_expired(), None);
/// assert_eq!(sessions.get("ann"), Some(&1));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct DelayMap<K, V> {
    table: HashTable<Key>,
    /// The hash of the key, the key and the value of each entry.
    entries: TimingWheel<(u64, K, V)>,
    seed: RandomState,
    pub(crate) source: Source,
}

/// Whose clock a map reads.
pub(crate) enum Source {
    System(TickClock),
    /// A timer, on which tasks wait.
    Timer(Timer),
}

impl<K, V> DelayMap<K, V> {
    /// Makes an empty map that reads the system's clock, in ticks of 1 ms, whatever clock the
    /// default timer has.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Source::System(TickClock::new(None, Duration::from_millis(1))))
    }

    /// Makes an empty map with the clock and the tick of a timer. The map holds a clone of the
    /// timer.
    #[must_use]
    pub fn on(timer: &Timer) -> Self {
        Self::with(Source::Timer(timer.clone()))
    }

    fn with(source: Source) -> Self {
        let (table, entries) = (HashTable::new(), TimingWheel::new(Tick::ZERO));
        Self { table, entries, seed: RandomState::default(), source }
    }

    pub(crate) fn clock(&self) -> &TickClock {
        match &self.source {
            Source::System(clock) => clock,
            Source::Timer(timer) => timer.clock(),
        }
    }

    /// Returns the number of entries, due ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the map has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entries, due ones included, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(_, _, (_, key, value))| (key, value))
    }

    /// Returns when to call [`pop_expired`](Self::pop_expired) next; `None` if no entry ever
    /// expires.
    ///
    /// The result is never later than the first deadline. It may be earlier, such as at a deadline
    /// that was moved later: then `pop_expired` only moves entries within the wheel.
    #[must_use]
    pub fn next_expiration(&self) -> Option<Instant> {
        self.clock().instant(self.entries.next_expiration()?)
    }

    /// Removes all entries, and returns memory to the allocator.
    pub fn clear(&mut self) {
        self.table = HashTable::new();
        drop(self.entries.drain());
        self.entries.shrink();
    }
}

impl<K: Hash + Eq, V> DelayMap<K, V> {
    /// Adds an entry that expires after a delay. If the map has an entry with an equal key,
    /// replaces its value and deadline, and returns the old value, even if that entry was due. The
    /// old key stays.
    ///
    /// A delay of `Duration::MAX` never ends.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::time::DelayMap;
    ///
    /// let mut cache = DelayMap::new();
    /// assert_eq!(cache.insert("a", 1, Duration::from_secs(5))?, None);
    /// assert_eq!(cache.insert("a", 2, Duration::MAX)?, Some(1));
    /// assert_eq!((cache.get("a"), cache.deadline("a")), (Some(&2), None));
    /// # Ok::<_, delaywheel::InsertError<_>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InsertError`] hands key and value back if the map has as many entries as a wheel can
    /// address.
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized: the table of hashes doubles when it is full.
    pub fn insert(
        &mut self,
        key: K,
        value: V,
        delay: Duration,
    ) -> Result<Option<V>, InsertError<(K, V)>> {
        let deadline = self.tick_of(|clock, read| clock.deadline(read, delay));
        self.put(key, value, deadline)
    }

    /// Adds or replaces an entry like [`insert`](Self::insert). The entry expires at an instant.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn insert_at(
        &mut self,
        key: K,
        value: V,
        instant: Instant,
    ) -> Result<Option<V>, InsertError<(K, V)>> {
        let deadline = self.tick_of(|clock, read| clock.at(read, instant));
        self.put(key, value, deadline)
    }

    /// Removes an entry, due or not, and returns its value. Takes *O*(1) time, amortized.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let Self { table, entries, seed, .. } = self;
        let is_it =
            |entry: &Key| entries.get(*entry).is_some_and(|(_, other, _)| other.borrow() == key);
        let (entry, _) = table.find_entry(seed.hash_one(key), is_it).ok()?.remove();
        let (_, key, value) = entries.cancel(entry)?;
        // A panic of this drop at the end of the function would leak the returned value.
        drop(key);
        Some(value)
    }

    /// Moves the deadline of an entry to a delay from now, earlier or later. Returns whether the
    /// map has the key. An entry that was due is pending again: to avoid this, first compare its
    /// [`deadline`](Self::deadline) with [`Timer::now`]. Takes *O*(1) time, amortized.
    pub fn reset<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, delay: Duration) -> bool
    where
        K: Borrow<Q>,
    {
        let deadline = self.tick_of(|clock, read| clock.deadline(read, delay));
        self.find(key).is_some_and(|entry| self.entries.reset(entry, deadline).is_some())
    }

    /// Moves the deadline of an entry to an instant, like [`reset`](Self::reset).
    pub fn reset_at<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, instant: Instant) -> bool
    where
        K: Borrow<Q>,
    {
        let deadline = self.tick_of(|clock, read| clock.at(read, instant));
        self.find(key).is_some_and(|entry| self.entries.reset(entry, deadline).is_some())
    }

    /// Returns the value of an entry, also if the entry is due. Takes *O*(1) time.
    #[must_use]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        Some(&self.entries.get(self.find(key)?)?.2)
    }

    /// Returns a mutable reference to the value of an entry, also if the entry is due. Takes *O*(1)
    /// time.
    #[must_use]
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        Some(&mut self.entries.get_mut(self.find(key)?)?.2)
    }

    /// Returns the deadline of an entry, rounded up to a tick; `None` if the map has no such entry,
    /// or if it never expires. Takes *O*(1) time.
    #[must_use]
    pub fn deadline<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
    {
        self.clock().instant(self.entries.deadline(self.find(key)?)?)
    }

    /// Removes the due entry with the earliest deadline and returns it; `None` if no entry is due.
    ///
    /// An entry is never early by the clock. Entries whose deadlines are in one tick come in any
    /// order. If the clock steps back, the latest time that the map or its timer has seen counts.
    ///
    /// # Complexity
    ///
    /// As [`TimingWheel::advance`].
    pub fn pop_expired(&mut self) -> Option<(K, V)> {
        let now = self.clock().read().now;
        let Expired { key: entry, value: (hash, key, value), .. } =
            self.entries.advance(now).next()?;
        if let Ok(found) = self.table.find_entry(hash, |other| *other == entry) {
            found.remove();
        }
        Some((key, value))
    }

    /// Returns memory after a burst to the allocator. Takes time in proportion to the memory in
    /// use.
    pub fn shrink(&mut self) {
        self.entries.shrink();
        let entries = &self.entries;
        self.table.shrink_to_fit(|entry| entries.get(*entry).map_or(0, |(hash, ..)| *hash));
    }

    fn put(&mut self, key: K, value: V, deadline: Tick) -> Result<Option<V>, InsertError<(K, V)>> {
        let Self { table, entries, seed, .. } = self;
        let hash = seed.hash_one(&key);
        let is_it = |entry: &Key| entries.get(*entry).is_some_and(|(_, other, _)| *other == key);
        let hash_of = |entry: &Key| entries.get(*entry).map_or(0, |(hash, ..)| *hash);
        match table.entry(hash, is_it, hash_of) {
            Entry::Occupied(entry) => {
                entries.reset(*entry.get(), deadline);
                let old = entries.get_mut(*entry.get());
                let old = old.map(|(.., old)| std::mem::replace(old, value));
                drop(key);
                Ok(old)
            }
            Entry::Vacant(vacancy) => match entries.insert(deadline, (hash, key, value)) {
                Ok(entry) => {
                    vacancy.insert(entry);
                    Ok(None)
                }
                Err(full) => {
                    let (_, key, value) = full.into_value();
                    Err(InsertError::full((key, value)))
                }
            },
        }
    }

    fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Key>
    where
        K: Borrow<Q>,
    {
        let is_it = |entry: &Key| {
            self.entries.get(*entry).is_some_and(|(_, other, _)| other.borrow() == key)
        };
        self.table.find(self.seed.hash_one(key), is_it).copied()
    }

    /// Reads the clock, and returns the tick of a deadline from then on.
    fn tick_of(&mut self, deadline: impl FnOnce(&TickClock, Reading) -> Tick) -> Tick {
        let read = self.clock().read();
        self.entries.observe(read.now);
        deadline(self.clock(), read)
    }
}

impl<K, V> Default for DelayMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for DelayMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn an_entry_that_has_left_the_map_takes_no_memory() {
        let (clock, hour) = (ManualClock::new(), Duration::from_secs(3600));
        let timer = Timer::builder().clock(clock.clone()).build().expect("it can be built");
        let mut map = DelayMap::on(&timer);
        for end in 0..3 {
            for number in 0..5_000 {
                map.insert(number, 0, hour).expect("the map has room");
            }
            clock.advance(hour);
            match end {
                0 => map.clear(),
                1 => (0..5_000).for_each(|number| assert_eq!(map.remove(&number), Some(0))),
                _ => while map.pop_expired().is_some() {},
            }
            assert_eq!((map.len(), map.table.len()), (0, 0));
            if end > 0 {
                map.shrink();
            }
            assert_eq!((map.entries.slots(), map.table.capacity()), (0, 0), "end {end}");
        }
    }
}
