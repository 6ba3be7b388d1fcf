//! The buckets of all levels: which one a deadline belongs to, and when each is due.
//!
//! Read ticks as numbers in base `size`. A deadline belongs to the level of the highest digit in
//! which it differs from the tick up to which timeouts have expired. That digit of the deadline is
//! its bucket. So one exclusive or gives level and bucket.
//!
//! A bucket is due at its *expiration*:
//!
//! - While it is *sparse*, that is the least deadline that it had since it was last visited. A
//!   cancel or a reset to later leaves it too early. A single timeout a year ahead expires from its
//!   coarse bucket, without an earlier wake-up.
//! - Once it is *crowded*, it is the start of its range, as in Kafka. So the wheel moves its
//!   timeouts to finer levels before the first of them is due, and a burst is not late.

use alloc::{boxed::Box, vec::Vec};

use super::{
    opened::Opened,
    queue::{BucketQueue, Occupied},
    records::{BucketId, CHUNK, NIL, Record, Records},
};
use crate::{error::BuildError, tick::Tick};

/// Buckets that are allocated together: 512 bytes.
const BLOCK: usize = 32;

/// Largest range of a bucket whose records are listed by tick when it is due.
const OPENED: usize = 256;

/// The chunk of the root.
const ROOT: u32 = 0;

/// The widths of all levels. A level has `2^bits` buckets, 2 to 65536.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Logarithm of the size, 1..=16.
    bits: u32,
    /// The size, less one.
    mask: u32,
    /// Indexed by the logarithm of a difference: the number of the level's first bucket, and in the
    /// lowest byte the shift of its digit.
    levels: [u32; u64::BITS as usize],
}

impl Geometry {
    /// Makes levels with at least `size` buckets, rounded up to a power of two.
    pub(super) fn new(size: usize) -> Result<Self, BuildError> {
        if !(2..=1 << 16).contains(&size) {
            return Err(BuildError::SizeOutOfRange { size });
        }
        let bits = size.next_power_of_two().ilog2();
        let mut levels = [0; u64::BITS as usize];
        for (msb, entry) in (0..).zip(&mut levels) {
            let level = msb / bits;
            *entry = level << bits << 8 | (level * bits);
        }
        Ok(Self { bits, mask: (1 << bits) - 1, levels })
    }

    /// Returns the number of buckets of a level.
    pub(super) fn size(&self) -> usize {
        1 << self.bits
    }

    /// Returns the bucket of a timeout with this deadline once timeouts have expired up to
    /// `expired_to`.
    #[inline]
    pub(super) fn bucket(&self, expired_to: Tick, deadline: Tick) -> BucketId {
        debug_assert!(expired_to <= deadline, "{deadline:?} has passed at {expired_to:?}");
        let difference = (expired_to.get() ^ deadline.get()) | 1;
        let level = self.levels[difference.ilog2() as usize];
        // The shift looks only at the lowest six bits of its operand.
        #[expect(clippy::cast_possible_truncation, reason = "the mask takes the lowest digit")]
        let index = deadline.get().wrapping_shr(level) as u32 & self.mask;
        BucketId(level >> 8 | index)
    }

    /// Returns the level of a bucket.
    #[inline]
    pub(super) fn level(&self, id: BucketId) -> u32 {
        id.0 >> self.bits
    }

    /// Returns the level of a bucket and its index there.
    #[inline]
    pub(super) fn split(&self, id: BucketId) -> (u32, usize) {
        (self.level(id), id.number() & self.mask as usize)
    }

    /// Returns the bucket with this index.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a level has at most 65536 buckets")]
    pub(super) fn id(&self, level: u32, index: usize) -> BucketId {
        BucketId(level << self.bits | index as u32)
    }

    /// Returns the first tick of the range of a bucket, which contains `tick`.
    #[inline]
    pub(super) fn start(&self, id: BucketId, tick: Tick) -> Tick {
        let shift = self.level(id) * self.bits;
        Tick::new(tick.get().checked_shr(shift).map_or(0, |digits| digits << shift))
    }

    /// Returns whether a tick is in the range of a bucket, once timeouts have expired up to
    /// `expired_to`.
    pub(super) fn is_in_lap(&self, id: BucketId, tick: Tick, expired_to: Tick) -> bool {
        let (level, index) = self.split(id);
        let shift = level * self.bits;
        let above = |tick: Tick| tick.get() >> shift >> self.bits;
        let digit = tick.get() >> shift & u64::from(self.mask);
        digit == index as u64 && above(tick) == above(expired_to)
    }
}

/// Timeouts of one level whose deadlines fall into one range of ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    /// When the bucket is due: not after any deadline in it. Meaningless while it is empty.
    pub(super) expiration: Tick,
    /// The chunk that takes new records, or `NIL`.
    pub(super) newest: u32,
    /// Whether it has had two chunks since it was empty.
    pub(super) is_crowded: bool,
}

const _: () = assert!(size_of::<Bucket>() == 16);

impl Bucket {
    const EMPTY: Self = Self { expiration: Tick::ZERO, newest: NIL, is_crowded: false };

    pub(super) const fn is_empty(&self) -> bool {
        self.newest == NIL
    }
}

/// The part of the wheel that is due first.
#[derive(Debug, Clone, Copy)]
pub(super) enum FirstDue {
    /// A bucket.
    Bucket(BucketId),
    /// The front record of the opened bucket.
    Opened(u32),
}

/// The records of a wheel in buckets, and the queue of the buckets that are due first.
#[derive(Debug)]
pub(super) struct Buckets {
    pub(super) geometry: Geometry,
    pub(super) records: Records,
    /// By number of the bucket. A block is made when a timeout first needs it.
    blocks: Vec<Option<Box<[Bucket; BLOCK]>>>,
    /// The levels up to the last that was ever used.
    levels: Vec<Occupied>,
    queue: BucketQueue,
    /// The bucket above all levels, whose range is all time. Its only chunk is the first one, and
    /// a timeout that finds a free position there needs no other bucket. So few timeouts, or one
    /// that comes and goes, make no chunk and no bucket.
    root: Bucket,
    /// Whether the root has no free position.
    is_root_full: bool,
    pub(super) opened: Opened,
    /// The chunk that emptied last, or `NIL`. It stays the newest chunk of its bucket, which keeps
    /// its place in the queue even if this makes it *hollow*, without any live record. So a timeout
    /// that comes and goes beside many others makes no chunk and no bucket. The next bucket that
    /// needs a chunk takes this one, and `advance` frees it.
    kept: u32,
}

impl Buckets {
    pub(super) const fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            records: Records::new(),
            blocks: Vec::new(),
            levels: Vec::new(),
            queue: BucketQueue::new(),
            root: Bucket { expiration: Tick::ZERO, newest: ROOT, is_crowded: false },
            is_root_full: false,
            opened: Opened::new(),
            kept: NIL,
        }
    }

    /// Returns what is due first, and when; `None` if all buckets are empty. It may be the hollow
    /// bucket. Nothing is due before `expired_to`.
    #[inline]
    pub(super) fn first_due(&self, expired_to: Tick) -> Option<(FirstDue, Tick)> {
        let opened = self.opened.front();
        if let Some((tick, position)) = opened.filter(|&(tick, _)| tick <= expired_to) {
            return Some((FirstDue::Opened(position), tick));
        }
        let bucket = self.queue.first();
        if let Some(root) = self.root_expiration() {
            let is_first = |other: Tick| root <= other;
            let (opened, bucket) = (opened.map(|first| first.0), bucket.map(|first| first.1));
            if opened.is_none_or(is_first) && bucket.is_none_or(is_first) {
                return Some((FirstDue::Bucket(BucketId::ROOT), root));
            }
        }
        match opened {
            // A bucket that is being opened comes before the records that it has listed.
            Some((tick, position)) if bucket.is_none_or(|(_, expiration)| tick < expiration) => {
                Some((FirstDue::Opened(position), tick))
            }
            _ => {
                let (level, expiration) = bucket?;
                let index = self.levels[level as usize].first()?;
                Some((FirstDue::Bucket(self.geometry.id(level, index)), expiration))
            }
        }
    }

    /// Returns the tick at which something is due first.
    #[inline]
    pub(super) fn next_expiration(&self) -> Option<Tick> {
        let mut bucket = self.queue.first().map(|(_, expiration)| expiration);
        if let Some(hollow) = self.hollow() {
            let (level, index) = self.geometry.split(hollow);
            let first = self.levels[level as usize].first().filter(|&first| first < index);
            let after = first.or_else(|| self.levels[level as usize].after(index));
            let after = after.map(|next| self.bucket(self.geometry.id(level, next)).expiration);
            bucket = self.queue.first_but(level).into_iter().chain(after).min();
        }
        let opened = self.opened.front().map(|(tick, _)| tick);
        bucket.into_iter().chain(opened).chain(self.root_expiration()).min()
    }

    #[inline]
    pub(super) fn root_expiration(&self) -> Option<Tick> {
        self.records.bits(ROOT).filter(|&live| live != 0).map(|_| self.root.expiration)
    }

    /// Adds a record, if that changes nothing else than its bucket.
    #[expect(clippy::inline_always, reason = "an insert makes no call on its usual path")]
    #[inline(always)]
    pub(super) fn place_quickly(
        &mut self,
        expired_to: Tick,
        deadline: Tick,
        slot: u32,
    ) -> Option<u32> {
        if !self.is_root_full {
            return None;
        }
        let id = self.geometry.bucket(expired_to, deadline);
        let block = self.blocks.get(id.number() / BLOCK)?.as_ref()?;
        let bucket = &block[id.number() % BLOCK];
        let is_plain = bucket.newest != self.kept && deadline >= bucket.expiration;
        if is_plain { self.records.add(bucket.newest, Record { deadline, slot }) } else { None }
    }

    /// Adds the record of a timeout to the bucket of its deadline. Returns its position.
    #[inline]
    pub(super) fn place(&mut self, expired_to: Tick, deadline: Tick, slot: u32) -> u32 {
        let record = Record { deadline, slot };
        if !self.is_root_full {
            return self.place_in_root(record);
        }
        let id = self.geometry.bucket(expired_to, deadline);
        let before = match self.blocks.get_mut(id.number() / BLOCK) {
            Some(Some(block)) => block[id.number() % BLOCK],
            _ => *make(&mut self.blocks, id),
        };
        let mut newest = before.newest;
        if self.records.bits(newest).is_none_or(|live| live == u16::MAX) {
            newest = self.add_chunk(id, newest);
        } else if newest == self.kept {
            self.kept = NIL;
        }
        // The first record of a chunk.
        let is_new = self.records.is_dead(newest);
        let has_older = is_new && self.records.older(newest) != NIL;
        let is_crowded = has_older || before.is_crowded && !is_new;
        let bucket = self.bucket_mut(id);
        (bucket.newest, bucket.is_crowded) = (newest, is_crowded);
        let becomes = is_crowded != before.is_crowded || is_new && !is_crowded;
        if becomes || deadline < before.expiration {
            if before.is_empty() {
                self.occupy(id);
            }
            let start = self.geometry.start(id, deadline);
            self.set_expiration(id, if is_crowded { start } else { deadline });
        }
        self.records.add(newest, record).expect("the newest chunk has room")
    }

    /// Adds a chunk to a bucket whose newest one is full: the kept one, or a new one.
    fn add_chunk(&mut self, id: BucketId, newest: u32) -> u32 {
        let Some((kept, chunk)) = self.take_kept() else {
            return self.records.allocate(id, newest);
        };
        let older = self.records.older(chunk);
        self.records.give(chunk, id, newest);
        self.set_newest(kept, older);
        chunk
    }

    /// Adds a record to the root, which must not be full.
    fn place_in_root(&mut self, record: Record) -> u32 {
        if self.records.bits(ROOT).is_none() {
            self.records.allocate(BucketId::ROOT, NIL);
        }
        if record.deadline() < self.root.expiration || self.records.is_dead(ROOT) {
            self.root.expiration = record.deadline();
        }
        let position = self.records.add(ROOT, record);
        self.is_root_full = self.records.bits(ROOT) == Some(u16::MAX);
        position.expect("the root has room")
    }

    /// Marks a bucket as non-empty.
    fn occupy(&mut self, id: BucketId) {
        let (level, index) = self.geometry.split(id);
        if level as usize >= self.levels.len() {
            self.levels.resize_with(level as usize + 1, Occupied::new);
        }
        self.levels[level as usize].set(index);
    }

    /// Removes a record. Returns whether few live ones are left in its chunk.
    #[inline]
    pub(super) fn remove(&mut self, position: u32) -> bool {
        let left = self.records.clear(position);
        if position / CHUNK == ROOT {
            self.leave_root(position);
            return false;
        }
        if left == 0 {
            self.end_chunk(position / CHUNK);
        }
        if self.opened.is_front(position) {
            self.opened.find_front(&self.records);
        }
        left != 0 && self.records.are_few(left)
    }

    /// Updates the expiration of the root after a record was removed.
    fn leave_root(&mut self, position: u32) {
        self.is_root_full = false;
        if self.records.get(position).deadline() == self.root.expiration {
            let left = self.records.deadlines(ROOT).map(|(deadline, _)| deadline);
            self.root.expiration = left.min().unwrap_or(Tick::ZERO);
        }
    }

    /// Keeps a chunk without live records if it is the newest of its bucket, and frees it if not.
    fn end_chunk(&mut self, chunk: u32) {
        if self.records.bucket_of(chunk).is_some() {
            self.end_kept();
            self.kept = chunk;
        } else {
            self.records.free(chunk);
        }
    }

    /// Frees the kept chunk. Returns whether there was one.
    #[inline]
    pub(super) fn end_kept(&mut self) -> bool {
        let kept = self.take_kept();
        if let Some((id, chunk)) = kept {
            let older = self.records.older(chunk);
            self.records.free(chunk);
            self.set_newest(id, older);
        }
        kept.is_some()
    }

    /// Takes the kept chunk and its bucket.
    #[inline]
    fn take_kept(&mut self) -> Option<(BucketId, u32)> {
        let chunk = core::mem::replace(&mut self.kept, NIL);
        if chunk == NIL {
            return None;
        }
        Some((self.records.bucket_of(chunk)?, chunk))
    }

    /// Returns the hollow bucket.
    #[inline]
    pub(super) fn hollow(&self) -> Option<BucketId> {
        if self.kept == NIL {
            return None;
        }
        let id = self.records.bucket_of(self.kept)?;
        (self.records.older(self.kept) == NIL).then_some(id)
    }

    /// Makes `chunk` the newest of a bucket, because the former newest has gone.
    fn set_newest(&mut self, id: BucketId, chunk: u32) {
        self.bucket_mut(id).newest = chunk;
        if chunk == NIL {
            self.bucket_mut(id).is_crowded = false;
            self.vacate(id);
        }
    }

    /// Returns a live record of a non-empty bucket.
    #[inline]
    pub(super) fn any_of(&self, id: BucketId) -> u32 {
        let newest = self.bucket(id).newest;
        self.records.live(newest).next().expect("a chunk has a live record")
    }

    /// Returns the positions of the records of a bucket.
    pub(super) fn records_of(&self, id: BucketId) -> impl Iterator<Item = u32> {
        let chunks = self.records.list(self.bucket(id).newest);
        chunks.flat_map(|chunk| self.records.live(chunk))
    }

    /// Returns whether the wheel lists the records of a due bucket by tick, instead of moving each
    /// to a finer level.
    pub(super) fn is_opened_when_due(&self, id: BucketId) -> bool {
        self.geometry.level(id) == 1 && self.geometry.size() <= OPENED
    }

    /// Lists the records of one chunk of a due bucket. Returns those that a reset has moved beyond
    /// its range.
    pub(super) fn open(&mut self, id: BucketId) -> impl Iterator<Item = u32> + use<> {
        let chunk = self.bucket(id).newest;
        let start = self.geometry.start(id, self.bucket(id).expiration);
        self.opened.begin(start, self.geometry.size());
        let mut beyond = [NIL; CHUNK as usize];
        for ((deadline, position), moved) in self.records.deadlines(chunk).zip(&mut beyond) {
            if !self.opened.push(deadline, position) {
                *moved = position;
            }
        }
        if let Some((id, next)) = self.records.detach(chunk) {
            self.set_newest(id, next);
        }
        self.opened.find_front(&self.records);
        beyond.into_iter().filter(|&position| position != NIL)
    }

    /// Marks a bucket as empty.
    fn vacate(&mut self, id: BucketId) {
        let (level, index) = self.geometry.split(id);
        let occupied = &mut self.levels[level as usize];
        if !occupied.clear(index) {
            return;
        }
        match occupied.first() {
            Some(next) => {
                let expiration = self.bucket(self.geometry.id(level, next)).expiration;
                self.queue.set(level, expiration);
            }
            None => self.queue.remove(level),
        }
    }

    /// Sets the expiration of a non-empty bucket.
    pub(super) fn set_expiration(&mut self, id: BucketId, expiration: Tick) {
        self.bucket_mut(id).expiration = expiration;
        let (level, index) = self.geometry.split(id);
        if id != BucketId::ROOT && self.levels[level as usize].first() == Some(index) {
            self.queue.set(level, expiration);
        }
    }

    #[inline]
    pub(super) fn bucket(&self, id: BucketId) -> &Bucket {
        if id == BucketId::ROOT {
            return &self.root;
        }
        match &self.blocks[id.number() / BLOCK] {
            Some(block) => &block[id.number() % BLOCK],
            None => unreachable!("{id:?} was never used"),
        }
    }

    #[inline]
    fn bucket_mut(&mut self, id: BucketId) -> &mut Bucket {
        if id == BucketId::ROOT {
            return &mut self.root;
        }
        match &mut self.blocks[id.number() / BLOCK] {
            Some(block) => &mut block[id.number() % BLOCK],
            None => unreachable!("{id:?} was never used"),
        }
    }

    /// Frees blocks, levels and chunks without timeouts.
    #[inline]
    pub(super) fn shrink(&mut self) {
        self.end_kept();
        for block in &mut self.blocks {
            block.take_if(|block| block.iter().all(Bucket::is_empty));
        }
        let last = self.blocks.iter().rposition(Option::is_some);
        self.blocks.truncate(last.map_or(0, |last| last + 1));
        self.blocks.shrink_to_fit();
        let last = self.levels.iter().rposition(|level| level.first().is_some());
        self.levels.truncate(last.map_or(0, |last| last + 1));
        self.levels.shrink_to_fit();
        self.queue.shrink();
        self.records.shrink();
        self.opened.shrink(&self.records);
    }

    /// Returns the buckets with a chunk but the root.
    pub(super) fn occupied(&self) -> impl Iterator<Item = BucketId> {
        let blocks = (0..).step_by(BLOCK).zip(&self.blocks);
        let buckets = blocks
            .flat_map(|(first, block)| (first..).zip(block.iter().flat_map(|block| block.iter())));
        let occupied = buckets.filter(|(_, bucket)| !bucket.is_empty());
        occupied.map(|(number, _)| BucketId(number))
    }

    /// Returns whether a chunk stays although it is without live records.
    pub(super) const fn keeps(&self, chunk: u32) -> bool {
        chunk == self.kept || chunk == ROOT
    }

    /// Panics unless levels and queue know the first bucket with a chunk of each level, and the
    /// next expiration is not that of a hollow one.
    #[inline]
    pub(super) fn check_invariants(&self) {
        let mut first = alloc::vec![None; self.levels.len()];
        for id in self.occupied() {
            let (level, index) = self.geometry.split(id);
            let level = level as usize;
            first[level] = first[level].or(Some((index, self.bucket(id).expiration)));
        }
        for (number, (level, first)) in (0..).zip(self.levels.iter().zip(&first)) {
            level.check_invariants();
            assert_eq!(level.first(), first.map(|(index, _)| index), "first bucket of {number}");
            let expiration = first.map(|(_, expiration)| expiration);
            assert_eq!(self.queue.expiration(number), expiration, "level {number} in the queue");
        }
        assert_eq!(self.queue.len(), first.iter().flatten().count(), "more levels are queued");
        let hints = self.opened.hints();
        let mut front = hints.filter(|&(_, position)| self.records.is_detached(position));
        let least = front.next().map(|(tick, _)| tick);
        assert_eq!(self.opened.front().map(|(tick, _)| tick), least, "another record is in front");
        let is_newest =
            self.records.is_dead(self.kept) && self.records.bucket_of(self.kept).is_some();
        assert!(self.kept == NIL || is_newest, "chunk {} is kept", self.kept);
        let is_full = self.records.bits(ROOT) == Some(u16::MAX);
        assert_eq!(self.is_root_full, is_full, "the root has another number of records");
        let hollow = self.hollow();
        let others = self.occupied().filter(|&id| Some(id) != hollow);
        let others = others.map(|id| self.bucket(id).expiration);
        assert_eq!(
            self.next_expiration(),
            others.chain(least).chain(self.root_expiration()).min(),
            "the queue and the buckets differ in the first expiration"
        );
    }
}

/// Makes the block of a bucket.
#[cold]
fn make(blocks: &mut Vec<Option<Box<[Bucket; BLOCK]>>>, id: BucketId) -> &mut Bucket {
    let number = id.number() / BLOCK;
    if number >= blocks.len() {
        blocks.reserve_exact(number + 1 - blocks.len());
        blocks.resize_with(number + 1, || None);
    }
    &mut blocks[number].insert(Box::new([Bucket::EMPTY; BLOCK]))[id.number() % BLOCK]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_insert_takes_the_short_path() {
        let mut buckets = Buckets::new(Geometry::new(64).unwrap());
        let place = |buckets: &mut Buckets| buckets.place(Tick::ZERO, Tick::new(100), 0);
        let first = place(&mut buckets);
        for _ in 0..CHUNK {
            place(&mut buckets);
        }
        let mut is_short = |at| buckets.place_quickly(Tick::ZERO, Tick::new(at), 0).is_some();
        assert!(is_short(100) && is_short(101) && !is_short(99));
        buckets.remove(first);
        assert_eq!(buckets.place_quickly(Tick::ZERO, Tick::new(100), 0), None, "the root has room");
    }
}
