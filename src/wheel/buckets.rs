//! The buckets of all levels: which one a deadline belongs to, and when each is due.
//!
//! Read ticks as numbers in base `size`. A deadline belongs to the level of the highest digit in
//! which it differs from the tick up to which timeouts have expired. This digit of the deadline is
//! the number of its bucket. So one exclusive or gives level and bucket.
//!
//! A bucket is due at its *expiration*:
//!
//! - A *sparse* bucket is due at the least deadline that it has had since the wheel last visited
//!   it. If that timeout is cancelled or reset to a later deadline, this is too early. A single
//!   timeout a year ahead expires from its coarse bucket, without an earlier wake-up.
//! - A *crowded* bucket is due at the start of its range, as in Kafka. So the wheel moves its
//!   timeouts to finer levels before the first of them is due, and a burst is not late.
//!
//! A bucket holds its only record itself. So a timeout that comes and goes needs no chunk.

use alloc::{boxed::Box, vec::Vec};

use super::{
    opened::Opened,
    queue::{BucketQueue, Occupied},
    records::{BucketId, CHUNK, NIL, Record, Records},
};
use crate::{error::BuildError, tick::Tick};

/// Buckets that are allocated together: 768 bytes.
const BLOCK: usize = 32;

/// Largest range, in ticks, of a bucket whose records the wheel lists by tick when it is due.
const OPENED: usize = 256;

/// The widths of all levels. A level has `2^bits` buckets, 2 to 65536.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Logarithm of the size, 1..=16.
    bits: u32,
    /// The size, less one.
    mask: u32,
    /// By the logarithm of the difference of two ticks: the number of the level's first bucket, and
    /// in the lowest byte the shift of the level's digit.
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
        // The shift uses only the lowest six bits of `level`.
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

    /// Returns the first tick of the range of a bucket, if that range contains `tick`.
    #[inline]
    pub(super) fn start(&self, id: BucketId, tick: Tick) -> Tick {
        let shift = self.level(id) * self.bits;
        Tick::new(tick.get() >> shift << shift)
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
    pub(super) contents: Contents,
}

/// The records of a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) enum Contents {
    Empty,
    /// The only record, which has had no other beside it. Its position is the bucket's link.
    One(Record),
    Chunks {
        /// The chunk that takes new records. While the bucket has other chunks, this one stays even
        /// without live records: so a timeout that comes and goes makes no chunk.
        newest: u32,
        /// Whether the bucket has had two chunks since it was empty.
        is_crowded: bool,
    },
}

const _: () = assert!(size_of::<Bucket>() == 24);

impl Bucket {
    const EMPTY: Self = Self { expiration: Tick::ZERO, contents: Contents::Empty };

    pub(super) const fn is_empty(&self) -> bool {
        matches!(self.contents, Contents::Empty)
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
    /// The buckets by number, in blocks. A block is made when a timeout first needs it.
    blocks: Vec<Option<Box<[Bucket; BLOCK]>>>,
    /// The non-empty buckets of each level, up to the last level that has been used.
    levels: Vec<Occupied>,
    queue: BucketQueue,
    pub(super) opened: Opened,
}

impl Buckets {
    pub(super) const fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            records: Records::new(),
            blocks: Vec::new(),
            levels: Vec::new(),
            queue: BucketQueue::new(),
            opened: Opened::new(),
        }
    }

    /// Returns the bucket or the opened record that is due first, and when; `None` if there is
    /// neither. None is due before `expired_to`.
    #[inline]
    pub(super) fn first_due(&self, expired_to: Tick) -> Option<(FirstDue, Tick)> {
        let opened = self.opened.front();
        if let Some((tick, position)) = opened.filter(|&(tick, _)| tick <= expired_to) {
            return Some((FirstDue::Opened(position), tick));
        }
        let bucket = self.queue.first();
        match opened {
            // The rest of a bucket that is being opened comes before the records that are already
            // listed.
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

    /// Returns the tick at which a bucket or an opened record is due first.
    pub(super) fn next_expiration(&self) -> Option<Tick> {
        let bucket = self.queue.first().map(|(_, expiration)| expiration);
        let opened = self.opened.front().map(|(tick, _)| tick);
        bucket.into_iter().chain(opened).min()
    }

    /// Adds a record and returns its position, if only the newest chunk of the bucket changes.
    #[expect(clippy::inline_always, reason = "an insert makes no call on its usual path")]
    #[inline(always)]
    pub(super) fn place_quickly(&mut self, id: BucketId, record: Record) -> Option<u32> {
        let block = self.blocks.get(id.number() / BLOCK)?.as_ref()?;
        let bucket = &block[id.number() % BLOCK];
        match bucket.contents {
            Contents::Chunks { newest, .. } if record.deadline() >= bucket.expiration => {
                self.records.add(newest, record)
            }
            _ => None,
        }
    }

    /// Adds a record to a bucket. Returns its position. If the bucket itself held a record, that
    /// record moves to the position before this one, and the call returns its slot too.
    #[inline]
    pub(super) fn place(&mut self, id: BucketId, record: Record) -> (u32, Option<u32>) {
        let bucket = match self.blocks.get_mut(id.number() / BLOCK) {
            Some(Some(block)) => &mut block[id.number() % BLOCK],
            _ => make(&mut self.blocks, id),
        };
        if !bucket.is_empty() {
            return self.place_beside_others(id, record);
        }
        let expiration = record.deadline();
        *bucket = Bucket { expiration, contents: Contents::One(record) };
        self.occupy(id, expiration);
        (id.link(), None)
    }

    #[inline(never)]
    fn place_beside_others(&mut self, id: BucketId, record: Record) -> (u32, Option<u32>) {
        let bucket = bucket_of(&mut self.blocks, id);
        let deadline = record.deadline();
        let (mut expiration, mut other) = (bucket.expiration.min(deadline), None);
        let position = match bucket.contents {
            Contents::Empty => unexpected(id),
            Contents::One(first) => {
                let newest = self.records.allocate(id, NIL);
                bucket.contents = Contents::Chunks { newest, is_crowded: false };
                self.records.add(newest, first);
                other = Some(first.slot);
                self.records.add(newest, record)
            }
            Contents::Chunks { newest, is_crowded } => {
                self.records.add(newest, record).or_else(|| {
                    let newest = self.records.allocate(id, newest);
                    bucket.contents = Contents::Chunks { newest, is_crowded: true };
                    if !is_crowded {
                        expiration = self.geometry.start(id, deadline);
                    }
                    self.records.add(newest, record)
                })
            }
        };
        if expiration != bucket.expiration {
            self.set_expiration(id, expiration);
        }
        (position.expect("the newest chunk has room"), other)
    }

    /// Returns the record at a position.
    #[inline]
    pub(super) fn record(&self, position: u32) -> Record {
        let Some(id) = BucketId::of_link(position) else { return self.records.get(position) };
        match self.bucket(id).contents {
            Contents::One(record) => record,
            _ => unexpected(id),
        }
    }

    #[inline]
    pub(super) fn record_mut(&mut self, position: u32) -> &mut Record {
        let Some(id) = BucketId::of_link(position) else { return self.records.get_mut(position) };
        match &mut self.bucket_mut(id).contents {
            Contents::One(record) => record,
            _ => unexpected(id),
        }
    }

    /// Marks a bucket as non-empty.
    #[inline]
    fn occupy(&mut self, id: BucketId, expiration: Tick) {
        let (level, index) = self.geometry.split(id);
        if level as usize >= self.levels.len() {
            self.levels.resize_with(level as usize + 1, Occupied::new);
        }
        if self.levels[level as usize].set(index) {
            self.queue.set(level, expiration);
        }
    }

    /// Removes a record. Returns whether few live records are left in its chunk.
    #[inline]
    pub(super) fn remove(&mut self, position: u32) -> bool {
        if let Some(id) = BucketId::of_link(position) {
            self.vacate(id);
            return false;
        }
        let left = self.records.clear(position);
        if left == 0 {
            self.end_chunk(position / CHUNK);
        }
        if self.opened.is_front(position) {
            self.opened.find_front(&self.records);
        }
        left != 0 && self.records.are_few(left)
    }

    /// Frees a chunk without live records, unless it is the newest of several and takes new ones.
    fn end_chunk(&mut self, chunk: u32) {
        let (newer, older) = self.records.neighbours(chunk);
        if newer.is_none() && older != NIL {
            return;
        }
        self.detach(chunk);
        if let Some(newer) = newer.filter(|&newer| self.records.is_dead(newer)) {
            self.end_chunk(newer);
        }
    }

    /// Takes a chunk out of its bucket, and frees it if it has no live record.
    fn detach(&mut self, chunk: u32) {
        match self.records.detach(chunk) {
            Some((id, NIL)) => self.vacate(id),
            Some((id, older)) => {
                let contents = Contents::Chunks { newest: older, is_crowded: true };
                self.bucket_mut(id).contents = contents;
            }
            None => {}
        }
    }

    /// Returns the positions of the records of a bucket.
    #[inline]
    pub(super) fn records_of(&self, id: BucketId) -> impl Iterator<Item = u32> {
        let (one, newest) = match self.bucket(id).contents {
            Contents::Empty => (None, NIL),
            Contents::One(_) => (Some(id.link()), NIL),
            Contents::Chunks { newest, .. } => (None, newest),
        };
        one.into_iter().chain(self.records.list(newest))
    }

    /// Returns whether the wheel lists the records of a due bucket by tick, instead of moving each
    /// to a finer level.
    pub(super) fn is_opened_when_due(&self, level: u32) -> bool {
        level == 1 && self.geometry.size() <= OPENED
    }

    /// Lists the records of one chunk of a due bucket by tick. Returns the positions of those that
    /// a reset has moved beyond the range of the bucket.
    pub(super) fn open(&mut self, id: BucketId, chunk: u32) -> impl Iterator<Item = u32> + use<> {
        let start = self.geometry.start(id, self.bucket(id).expiration);
        self.opened.begin(start, self.geometry.size());
        let mut beyond = [NIL; CHUNK as usize];
        for ((deadline, position), moved) in self.records.deadlines(chunk).zip(&mut beyond) {
            if !self.opened.push(deadline, position) {
                *moved = position;
            }
        }
        self.detach(chunk);
        self.opened.find_front(&self.records);
        beyond.into_iter().filter(|&position| position != NIL)
    }

    /// Removes the records of a chunk, and returns them.
    pub(super) fn take(&mut self, chunk: u32) -> impl Iterator<Item = Record> + Clone + use<> {
        let records = self.records.take(chunk);
        self.end_chunk(chunk);
        records
    }

    /// Makes a bucket empty.
    #[inline]
    fn vacate(&mut self, id: BucketId) {
        self.bucket_mut(id).contents = Contents::Empty;
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
        if self.levels[level as usize].first() == Some(index) {
            self.queue.set(level, expiration);
        }
    }

    #[inline]
    pub(super) fn bucket(&self, id: BucketId) -> &Bucket {
        match &self.blocks[id.number() / BLOCK] {
            Some(block) => &block[id.number() % BLOCK],
            None => unexpected(id),
        }
    }

    #[inline]
    fn bucket_mut(&mut self, id: BucketId) -> &mut Bucket {
        bucket_of(&mut self.blocks, id)
    }

    /// Frees blocks, levels and chunks without timeouts.
    #[inline]
    pub(super) fn shrink(&mut self) {
        // `Records::shrink` frees the memory of chunks that have left their buckets here.
        for id in self.occupied().collect::<Vec<_>>() {
            let Contents::Chunks { newest, .. } = self.bucket(id).contents else { continue };
            if self.records.is_dead(newest) {
                self.detach(newest);
            }
        }
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

    /// Returns the non-empty buckets.
    pub(super) fn occupied(&self) -> impl Iterator<Item = BucketId> {
        let blocks = (0..).step_by(BLOCK).zip(&self.blocks);
        let buckets = blocks
            .flat_map(|(first, block)| (first..).zip(block.iter().flat_map(|block| block.iter())));
        let occupied = buckets.filter(|(_, bucket)| !bucket.is_empty());
        occupied.map(|(number, _)| BucketId(number))
    }

    /// Panics unless levels and queue know the first non-empty bucket of each level, and `opened`
    /// its first live record.
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
    }
}

/// Returns a bucket. Borrows only the blocks, so the caller can add records meanwhile.
#[inline]
fn bucket_of(blocks: &mut [Option<Box<[Bucket; BLOCK]>>], id: BucketId) -> &mut Bucket {
    match &mut blocks[id.number() / BLOCK] {
        Some(block) => &mut block[id.number() % BLOCK],
        None => unexpected(id),
    }
}

#[cold]
fn unexpected(id: BucketId) -> ! {
    unreachable!("bucket {} has other contents", id.0)
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
        let record = |at| {
            let record = Record { deadline: Tick::new(at), slot: 0 };
            (Geometry::new(64).unwrap().bucket(Tick::ZERO, record.deadline()), record)
        };
        for (id, record) in [100, 100].map(record) {
            buckets.place(id, record);
        }
        let mut is_short = |at| {
            let (id, record) = record(at);
            buckets.place_quickly(id, record).is_some()
        };
        assert!(is_short(100) && is_short(101) && !is_short(99) && !is_short(200));
    }
}
