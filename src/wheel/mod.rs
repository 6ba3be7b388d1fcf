//! Hierarchical timing wheels with a bucket delay queue: the deterministic core.
//!
//! Time is an argument. The wheel reads no clock, takes no lock and starts no thread; it is told
//! what the time is by [`TimingWheel::advance`], and tells when it wants to be told again by
//! [`TimingWheel::next_expiration`].
//!
//! # Contract
//!
//! Here *now* is the tick of the latest `advance` or `observe`, and `d(t)` the deadline of timeout `t`: the tick
//! given to `insert` or `reset`, or the wheel's clock at that moment if the tick had already
//! passed.
//!
//! 1. *Never early.* `t` expires in `advance(now)` only if `d(t) <= now`.
//! 2. *Never held.* After `advance(now)` has been drained, every timeout left has `d(t) > now`.
//! 3. *Exactly once.* A key ends as expired, or cancelled, or drained; once; then it is dead for
//!    ever, and no later key ever answers to it.
//! 4. *In order.* One `advance` yields non-decreasing `d`; so do all of a wheel's life together,
//!    resets and insertions in between included. The order of equal deadlines is determined by the
//!    calls made, and is not otherwise promised: it need not be the order of insertion.
//! 5. *Bounded.* A step expires one timeout or moves one, or drops one stale record, or looks at
//!    one sparse bucket (at most 15 records). No step is proportional to the time skipped or to the
//!    number of empty buckets.
//! 6. *No surprise.* `next_expiration()` is the least tick at which `advance` would expire or move
//!    something; it is never later than the least deadline, and `None` if and only if the wheel is
//!    empty. An emptied bucket leaves no wake-up behind.
//!
//! [`TimingWheel::check_invariants`] checks what of this can be seen from within at one moment.
//!
//! # Implementation
//!
//! Timeouts live in an arena and never move. [`geometry`] says which bucket of which level a
//! deadline belongs to; buckets hold [`records`], four-byte hints to look at a slot of the arena;
//! non-empty buckets stand in the [`queue`] by their expiration. Advancing pops buckets in that
//! order, expires what is due and moves the rest to finer levels. The hierarchy is that of Varghese
//! and Lauck's scheme 7; the delay queue of buckets and the lazily made overflow wheels are Apache
//! Kafka's.

mod advance;
mod arena;
mod bucket;
mod builder;
mod departures;
mod drain;
mod geometry;
mod invariants;
mod iter;
mod queue;
mod records;
mod shape;

pub use self::{
    advance::{Advance, Expired},
    arena::Key,
    builder::WheelBuilder,
    drain::Drain,
    iter::Iter,
    shape::{BucketShape, LevelShape, Shape},
};
use self::{
    arena::{Arena, Spot},
    bucket::{Bucket, Levels},
    departures::{Departures, LAG},
    geometry::{Geometry, Place},
    queue::BucketQueue,
    records::Pool,
};
use crate::{InsertError, Tick};

/// Records that one call may sweep.
const SWEEP_SLICE: u32 = 32;

/// A set of timeouts, each a value and a deadline, that expire in order as time is advanced.
///
/// What inserting, cancelling and resetting take does not depend on how many timeouts are pending,
/// nor on how far ahead they lie. Any tick from 0 to `u64::MAX` is valid as a start, a deadline or
/// *now*.
///
/// The [contract](self#contract) says what it promises. Dropping the wheel drops the pending values,
/// as dropping a `Vec` does: if one drop panics, the others still happen; a second panic aborts.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TimingWheel};
///
/// let mut wheel = TimingWheel::new(Tick::ZERO);
/// wheel.insert(Tick::new(10), "soon")?;
/// let request = wheel.insert(Tick::new(30), "request")?;
/// wheel.insert(Tick::new(31_536_000_000), "in a year of milliseconds")?;
///
/// assert_eq!(wheel.next_expiration(), Some(Tick::new(10)));
/// assert_eq!(wheel.advance(Tick::new(9)).count(), 0);
/// let due: Vec<_> = wheel.advance(Tick::new(10)).map(|expired| expired.value).collect();
/// assert_eq!(due, ["soon"]);
///
/// assert_eq!(wheel.cancel(request), Some("request"));
/// assert_eq!(wheel.next_expiration(), Some(Tick::new(31_536_000_000)));
/// # Ok::<_, delaywheel::InsertError<&str>>(())
/// ```
pub struct TimingWheel<T> {
    geometry: Geometry,
    /// The tick of the latest `advance`.
    now: Tick,
    /// How far expiry has come: `now`, or less while buckets are due that have not been drained.
    ///
    /// Every level's clock is this tick in the level's own units. No queued expiration is before
    /// it.
    clock: Tick,
    arena: Arena<T>,
    levels: Levels,
    pool: Pool,
    queue: BucketQueue,
    departures: Departures,
    /// Number of times that a timeout was moved from one bucket to another as time advanced.
    cascades: u64,
}

impl<T> TimingWheel<T> {
    /// Makes an empty wheel of the default size whose clock stands at `start`. Allocates nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let wheel: TimingWheel<u64> = TimingWheel::new(Tick::new(1_000));
    /// assert_eq!(wheel.now(), Tick::new(1_000));
    /// assert!(wheel.is_empty());
    /// ```
    #[must_use]
    pub fn new(start: Tick) -> Self {
        match WheelBuilder::new().start(start).build() {
            Ok(wheel) => wheel,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }

    /// Adds a timeout that expires at `deadline`.
    ///
    /// A deadline that has passed is taken as the wheel's clock: the timeout is due at once, that
    /// is, at the next [`advance`](Self::advance), to any tick.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::new(100));
    /// let late = wheel.insert(Tick::new(7), "late")?;
    /// assert_eq!(wheel.deadline(late), Some(Tick::new(100)));
    /// assert_eq!(wheel.advance(Tick::new(100)).count(), 1);
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InsertError`] hands the value back when
    /// [`max_pending`](WheelBuilder::max_pending) timeouts are pending.
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized, and *O*(log b) if that makes its bucket, one of b non-empty
    /// ones, due earlier. Allocates at most one segment of the arena (1024 slots), one of records
    /// (16 KiB), the buckets of levels that are not made yet, and room in the tables of those. No
    /// timeout that is there is copied.
    #[inline]
    pub fn insert(&mut self, deadline: Tick, value: T) -> Result<Key, InsertError<T>> {
        if !self.arena.make_room() {
            return Err(InsertError::full(value));
        }
        self.forward();
        let deadline = deadline.max(self.clock);
        let place = self.geometry.place(self.clock, deadline);
        self.ready(place);
        let bucket = self.levels.bucket_mut(place);
        let key = self.arena.insert(deadline, value, Spot::new(place, bucket.phase()));
        if bucket.admit(key.index(), deadline) {
            self.requeue(place, deadline);
        }
        Ok(key)
    }

    /// Takes out a timeout and returns its value, or `None` if the key is dead.
    ///
    /// The value is the caller's at once; the wheel keeps nothing of it.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 'a')?;
    /// assert_eq!(wheel.cancel(key), Some('a'));
    /// assert_eq!(wheel.cancel(key), None);
    /// assert_eq!(wheel.next_expiration(), None);
    /// # Ok::<_, delaywheel::InsertError<char>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized over sweeps of stale records, of which one call passes over at
    /// most 32; *O*(log b) if that empties its bucket, one of b non-empty ones. May allocate one
    /// segment of records.
    #[inline]
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let pending = self.arena.remove(key)?;
        self.leave(pending.place());
        Some(pending.value)
    }

    /// Moves a timeout to a new deadline, earlier or later, and returns the old one; `None` if the
    /// key is dead.
    ///
    /// The key stays good. A deadline that has passed is taken as the wheel's clock, as by
    /// [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let session = wheel.insert(Tick::new(30), "session")?;
    /// assert_eq!(wheel.reset(session, Tick::new(60)), Some(Tick::new(30)));
    /// assert_eq!(wheel.advance(Tick::new(59)).count(), 0);
    /// assert_eq!(wheel.advance(Tick::new(60)).count(), 1);
    /// assert_eq!(wheel.reset(session, Tick::new(90)), None);
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// To a deadline at which its bucket has been due, as when a timeout is put off: one store; the
    /// timeout moves on when the bucket is. To an earlier one, that of [`cancel`](Self::cancel) and
    /// [`insert`](Self::insert).
    #[inline]
    pub fn reset(&mut self, key: Key, deadline: Tick) -> Option<Tick> {
        self.forward();
        let deadline = deadline.max(self.clock);
        let pending = self.arena.get_mut(key)?;
        let previous = core::mem::replace(&mut pending.deadline, deadline);
        let place = pending.place();
        if deadline < self.levels.bucket(place).expiration() {
            self.bring_forward(key, place, deadline);
        }
        Some(previous)
    }

    /// Returns the value of a timeout, or `None` if the key is dead. Takes *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 7)?;
    /// assert_eq!(wheel.get(key), Some(&7));
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.arena.get(key).map(|pending| &pending.value)
    }

    /// Returns the value of a timeout to be changed, or `None` if the key is dead. Takes *O*(1)
    /// time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 7)?;
    /// *wheel.get_mut(key).unwrap() += 1;
    /// assert_eq!(wheel.cancel(key), Some(8));
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.arena.get_mut(key).map(|pending| &mut pending.value)
    }

    /// Returns the deadline of a timeout, or `None` if the key is dead. Takes *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), ())?;
    /// assert_eq!(wheel.deadline(key), Some(Tick::new(5)));
    /// # Ok::<_, delaywheel::InsertError<()>>(())
    /// ```
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<Tick> {
        self.arena.get(key).map(|pending| pending.deadline)
    }

    /// Lets time pass until `now`, and returns the timeouts that are due as an iterator that takes
    /// them out.
    ///
    /// What has not been taken when the iterator is dropped stays due, and the next `advance` goes
    /// on there, whatever was inserted, cancelled or reset in between. [`Advance::limit`] bounds
    /// the work of one call.
    ///
    /// Time does not run backwards: a `now` before the latest one is taken as the latest one.
    /// [`observe`](Self::observe) lets time pass without taking timeouts out.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// for deadline in [30, 10, 20, 40] {
    ///     wheel.insert(Tick::new(deadline), deadline)?;
    /// }
    /// let due: Vec<_> = wheel.advance(Tick::new(30)).map(|expired| expired.value).collect();
    /// assert_eq!(due, [10, 20, 30]);
    /// # Ok::<_, delaywheel::InsertError<u64>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time when nothing is due. A timeout that expires costs *O*(log b), of b
    /// non-empty buckets, and the same for each cascade, of which there are at most as many as
    /// there were levels below it when it was inserted, or last reset.
    #[inline]
    pub fn advance(&mut self, now: Tick) -> Advance<'_, T> {
        self.observe(now);
        Advance::new(self)
    }

    /// Lets time pass until `now` without taking timeouts out.
    ///
    /// Due timeouts stay pending until the next [`advance`](Self::advance). Call `observe` before an
    /// insert or reset whose deadline may have passed by now: the deadline then counts from `now`
    /// instead of from the latest `advance`. A `now` before the latest one changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// wheel.observe(Tick::new(100));
    /// assert_eq!(wheel.now(), Tick::new(100));
    ///
    /// let late = wheel.insert(Tick::new(7), "late")?;
    /// assert_eq!(wheel.deadline(late), Some(Tick::new(100)));
    /// wheel.observe(Tick::new(200));
    /// assert_eq!(wheel.len(), 1);
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time.
    #[inline]
    pub fn observe(&mut self, now: Tick) {
        self.now = self.now.max(now);
        self.forward();
    }

    /// Returns the least tick at which [`advance`](Self::advance) would expire or move a timeout;
    /// `None` if and only if none is pending.
    ///
    /// It is never later than the least deadline. It may be earlier when the timeout with the least
    /// deadline of its bucket was cancelled or put off, and where a crowded bucket wants to be
    /// spread over finer levels. A timeout that is due shows as a tick that is not after
    /// [`now`](Self::now).
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// assert_eq!(wheel.next_expiration(), None);
    /// wheel.insert(Tick::new(1 << 40), "in 34 years of milliseconds")?;
    /// assert_eq!(wheel.next_expiration(), Some(Tick::new(1 << 40)));
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time; *O*(b), of b non-empty buckets, if the one that is due first has emptied
    /// within the last 8 departures and nothing was advanced since.
    #[inline]
    #[must_use]
    pub fn next_expiration(&self) -> Option<Tick> {
        let (place, expiration) = self.queue.first()?;
        if self.live(place) > 0 {
            return Some(expiration);
        }
        self.queue.iter().filter(|&(place, _)| self.live(place) > 0).map(|(_, tick)| tick).min()
    }

    /// Returns the latest tick given to [`advance`](Self::advance) or [`observe`](Self::observe), or
    /// the start.
    #[must_use]
    pub const fn now(&self) -> Tick {
        self.now
    }

    /// Returns the number of pending timeouts, those that are due but not taken included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Returns whether no timeout is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of buckets of each level.
    #[must_use]
    pub fn size(&self) -> usize {
        self.geometry.size()
    }

    /// Returns the number of levels made so far, from the finest to the highest that was needed.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, WheelBuilder};
    ///
    /// let mut wheel = WheelBuilder::new().size(64).build()?;
    /// assert_eq!(wheel.levels(), 0);
    /// wheel.insert(Tick::new(63), ())?;
    /// assert_eq!(wheel.levels(), 1);
    /// wheel.insert(Tick::new(64), ())?;
    /// assert_eq!(wheel.levels(), 2);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels.len() / self.size()
    }

    /// Returns how often a timeout was moved from one bucket to another as time advanced, since the
    /// wheel was made.
    #[must_use]
    pub const fn cascades(&self) -> u64 {
        self.cascades
    }

    /// Returns an iterator over the pending timeouts, in no particular order.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 'a')?;
    /// assert_eq!(wheel.iter().collect::<Vec<_>>(), [(key, Tick::new(5), &'a')]);
    /// # Ok::<_, delaywheel::InsertError<char>>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter<'_, T> {
        Iter::new(self)
    }

    /// Takes out all pending timeouts, in no particular order. Dropping the iterator drops the
    /// timeouts that it has not yielded; a panicking drop has the effect that [`clear`](Self::clear)
    /// describes.
    ///
    /// If the iterator is leaked, the timeouts that it has not yielded stay pending.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), "never ran")?;
    /// assert_eq!(wheel.drain().collect::<Vec<_>>(), [(key, Tick::new(5), "never ran")]);
    /// assert!(wheel.is_empty());
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    pub fn drain(&mut self) -> Drain<'_, T> {
        Drain::new(self)
    }

    /// Drops all pending timeouts; their keys are dead. Keeps the memory and the time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), "dropped")?;
    /// wheel.clear();
    /// assert!(wheel.is_empty() && wheel.get(key).is_none());
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if a value's `drop` panics. Every other value is dropped first, and the wheel is empty
    /// and usable. If several drops panic, `clear` goes on with the first panic; without the feature
    /// `std`, the second panic aborts the process.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Gives back the memory that pending timeouts do not need, as far as that leaves them in
    /// place.
    ///
    /// Keys stay good, dead keys stay dead.
    ///
    /// # Complexity
    ///
    /// Takes time proportional to the memory in use.
    pub fn shrink(&mut self) {
        self.settle_departures();
        self.arena.shrink();
        self.levels.shrink(&self.geometry);
        self.queue.shrink();
        let mut pool = Pool::new();
        for (place, bucket) in self.levels.iter_mut() {
            let Self { arena, pool: old, .. } = self;
            bucket.rewrite(place, old, &mut pool, |record, unseen| arena.keep(record, unseen));
        }
        self.pool = pool;
    }

    /// Number of timeouts that rest at a place.
    #[inline]
    fn live(&self, place: Place) -> u32 {
        self.levels.bucket(place).live() - self.departures.from(place)
    }

    /// Brings the clock up to now if no bucket is due, so that what is inserted rests as low as it
    /// can.
    #[inline]
    fn forward(&mut self) {
        if self.clock < self.now && !self.is_due() {
            self.clock = self.now;
        }
    }

    /// Whether a bucket is due. If so, all departures have been counted.
    #[inline]
    fn is_due(&mut self) -> bool {
        if !self.may_be_due() {
            return false;
        }
        self.settle_departures();
        self.may_be_due()
    }

    fn may_be_due(&self) -> bool {
        self.queue.first().is_some_and(|(_, expiration)| expiration <= self.now)
    }

    /// Puts a timeout of the arena into another bucket.
    #[inline]
    fn settle(&mut self, index: u32, deadline: Tick, place: Place) {
        self.ready(place);
        let bucket = self.levels.bucket_mut(place);
        self.arena.settle(index, Spot::new(place, bucket.phase()));
        if bucket.admit(index, deadline) {
            self.requeue(place, deadline);
        }
    }

    /// Readies a place to take in a timeout.
    #[inline]
    fn ready(&mut self, place: Place) {
        let is_ready = |bucket: &mut Bucket| !bucket.is_full() && bucket.live() > LAG;
        if !self.levels.get_mut(place).is_some_and(is_ready) {
            self.make_ready(place);
        }
    }

    /// Makes sure that the bucket exists, knows if it is empty, and has room.
    #[inline(never)]
    fn make_ready(&mut self, place: Place) {
        self.levels.reach(&self.geometry, place);
        if self.departures.from(place) > 0 && self.live(place) == 0 {
            self.renew(place);
        }
        let bucket = self.levels.bucket_mut(place);
        if bucket.is_full() && bucket.is_untidy() {
            // It ends the sweep that is under way, if there is one, and may find nothing stale.
            self.sweep(place, u32::MAX);
        }
        let bucket = self.levels.bucket_mut(place);
        if bucket.is_full() && bucket.make_room(&mut self.pool) {
            let start = self.geometry.start(place, bucket.expiration());
            self.requeue(place, start);
        }
        debug_assert!(!self.levels.bucket(place).is_full(), "{place:?} has no room");
    }

    /// Counts out all timeouts of a bucket that is about to take in another. It keeps its place in
    /// the queue, so that a bucket which is often emptied and filled again need not come and go.
    fn renew(&mut self, place: Place) {
        self.departures.forget(place);
        self.levels.bucket_mut(place).clear(&mut self.pool);
    }

    /// Makes a bucket, new to the queue or not, due at `expiration`.
    fn requeue(&mut self, place: Place, expiration: Tick) {
        self.levels.bucket_mut(place).set_expiration(expiration);
        self.queue.set(place, expiration);
    }

    /// Has a timeout at `place` seen to earlier than its bucket is due.
    fn bring_forward(&mut self, key: Key, place: Place, deadline: Tick) {
        let target = self.geometry.place(self.clock, deadline);
        if target == place {
            self.requeue(place, deadline);
        } else {
            self.settle(key.index(), deadline, target);
            self.leave(place);
        }
    }

    /// Notes that a timeout left a bucket, where its record goes stale; counts out an earlier one.
    #[inline]
    fn leave(&mut self, place: Place) {
        if let Some(place) = self.departures.exchange(place) {
            self.count_out(place);
        }
    }

    /// Counts out all timeouts that have left their buckets.
    fn settle_departures(&mut self) {
        if !self.departures.is_empty() {
            self.departures.take().for_each(|place| self.count_out(place));
        }
    }

    /// Counts a timeout out of its bucket, where its record remains; sweeps if there are too many
    /// such.
    #[inline]
    fn count_out(&mut self, place: Place) {
        let bucket = self.levels.bucket_mut(place);
        if bucket.leave() {
            self.retire(place);
        } else if bucket.is_littered() {
            self.sweep(place, SWEEP_SLICE);
        }
    }

    /// Counts a timeout out of its bucket, from which its record was taken.
    #[inline]
    fn depart(&mut self, place: Place) {
        if self.levels.bucket_mut(place).leave() {
            self.retire(place);
        }
    }

    /// Takes a bucket that has emptied out of the queue.
    fn retire(&mut self, place: Place) {
        self.levels.bucket_mut(place).clear(&mut self.pool);
        self.queue.remove(place);
    }

    /// Looks for stale records among the next `limit` of a bucket, and drops them.
    #[inline(never)]
    fn sweep(&mut self, place: Place, limit: u32) {
        let Self { levels, pool, arena, .. } = self;
        levels
            .bucket_mut(place)
            .sweep(place, pool, limit, |record, unseen| arena.keep(record, unseen));
    }
}

impl<T> Default for TimingWheel<T> {
    /// Makes an empty wheel of the default size whose clock stands at 0.
    fn default() -> Self {
        Self::new(Tick::ZERO)
    }
}

impl<'a, T> IntoIterator for &'a TimingWheel<T> {
    type Item = (Key, Tick, &'a T);
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}
