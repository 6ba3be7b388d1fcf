//! Partitions: batches of records in memory, and the offset up to which they are replicated and
//! readable.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    ptr,
    sync::{Mutex, MutexGuard},
};

use super::{
    batch::{self, Batch},
    producer::Sequences,
    storage::Storage,
};
use crate::prelude::*;

/// A partition of a topic: a log under a lock. It is the key of requests that wait, so two are
/// equal if they are the same.
#[derive(Debug, Default)]
pub(super) struct Partition(Mutex<Log>);

impl Partition {
    pub(super) fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// Returns the offset below which records are replicated and may be read.
    pub(super) fn high_watermark(&self) -> i64 {
        self.lock().high_watermark
    }
}

impl PartialEq for Partition {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for Partition {}

impl Hash for Partition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::hash(self, state);
    }
}

/// The place of a batch in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    /// The offset of the first record.
    pub(super) base: i64,
    /// Whether it has been appended now, and not by an earlier request of its producer.
    pub(super) is_new: bool,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    batches: VecDeque<Entry>,
    /// Offset of the oldest record.
    pub(super) start: i64,
    /// Offset of the record to be appended next.
    pub(super) end: i64,
    /// The offset below which records are replicated and may be read. It is not below `start`, not
    /// above `end`, and always between two batches.
    pub(super) high_watermark: i64,
    /// Bytes of all batches that were ever appended.
    appended: u64,
    sequences: Sequences,
    is_deleted: bool,
}

#[derive(Debug)]
struct Entry {
    /// Orders the batches of all partitions by age.
    number: u64,
    base: i64,
    /// One past the last.
    end: i64,
    /// Bytes that were appended before this.
    position: u64,
    max_timestamp: i64,
    bytes: Bytes,
}

impl Entry {
    fn find(&self, timestamp: i64, start: i64) -> Option<(i64, i64)> {
        let records = batch::times(&self.bytes);
        let records = records.map(|(delta, time)| (self.base.wrapping_add(delta), time));
        // The checksum does not make a producer honest.
        let mut records = records.filter(|(offset, _)| (start..self.end).contains(offset));
        let found = records.find(|&(_, time)| time >= timestamp);
        found.or(Some((self.base.max(start), self.max_timestamp)))
    }
}

impl Log {
    /// Appends a batch, unless its producer has sent it before.
    ///
    /// # Errors
    ///
    /// `NotEnoughReplicas` if the memory is full of records that are not replicated;
    /// `UnknownTopicOrPartition` if the partition was deleted; and those of [`Sequences::check`].
    pub(super) fn append(&mut self, batch: Batch, storage: &Storage) -> Result<Placed> {
        if self.is_deleted {
            return Err(ResponseError::UnknownTopicOrPartition);
        }
        if let Some(stamp) = batch.stamp {
            if let Some(base) = self.sequences.check(stamp)? {
                return Ok(Placed { base, is_new: false });
            }
        }
        let length = batch.len() as u64;
        if storage.is_full(length) {
            return Err(ResponseError::NotEnoughReplicas);
        }
        let base = self.end;
        if let Some(stamp) = batch.stamp {
            self.sequences.record(stamp, base);
        }
        self.end += batch.count;
        let (position, max_timestamp) = (self.appended, batch.max_timestamp);
        let (number, end, bytes) = (storage.add(length), self.end, batch.place(base));
        self.batches.push_back(Entry { number, base, end, position, max_timestamp, bytes });
        self.appended += length;
        Ok(Placed { base, is_new: true })
    }

    /// Returns the number of the oldest batch, if it is replicated.
    pub(super) fn droppable(&self) -> Option<u64> {
        let oldest = self.batches.front().filter(|oldest| oldest.end <= self.high_watermark);
        oldest.map(|oldest| oldest.number)
    }

    /// Drops the oldest batch, if it is replicated. Returns its bytes.
    pub(super) fn drop_oldest(&mut self) -> u64 {
        let oldest = self.droppable().and_then(|_| self.batches.pop_front());
        let Some(oldest) = oldest else { return 0 };
        self.start = oldest.end;
        oldest.bytes.len() as u64
    }

    /// Drops all batches, and refuses to append others. Returns the number of dropped bytes.
    pub(super) fn delete(&mut self) -> u64 {
        let kept = self.kept();
        self.is_deleted = true;
        self.batches.clear();
        kept
    }

    /// Drops the batches before an offset, and begins there. -1 stands for all that is replicated.
    /// Returns the number of dropped bytes.
    ///
    /// # Errors
    ///
    /// `OffsetOutOfRange` if there is no such offset, or it is not replicated.
    pub(super) fn delete_before(&mut self, offset: i64) -> Result<u64> {
        let offset = if offset == -1 { self.high_watermark } else { offset };
        if !(0..=self.high_watermark).contains(&offset) {
            return Err(ResponseError::OffsetOutOfRange);
        }
        let kept = self.kept();
        self.batches.drain(..self.index(offset));
        self.start = offset.max(self.start);
        Ok(kept - self.kept())
    }

    /// Bytes of all batches that are there.
    fn kept(&self) -> u64 {
        self.batches.front().map_or(0, |oldest| self.appended - oldest.position)
    }

    /// Marks records below an offset as replicated. Never takes that back.
    pub(super) fn replicated(&mut self, end: i64) {
        self.high_watermark = end.clamp(self.high_watermark, self.end);
    }

    /// Returns how many bytes a reader at an offset could read.
    ///
    /// # Errors
    ///
    /// `OffsetOutOfRange` if there is no such offset, or no longer; `UnknownTopicOrPartition` if
    /// the partition was deleted.
    pub(super) fn readable_bytes(&self, offset: i64) -> Result<u64> {
        if self.is_deleted {
            return Err(ResponseError::UnknownTopicOrPartition);
        }
        if !(self.start..=self.end).contains(&offset) {
            return Err(ResponseError::OffsetOutOfRange);
        }
        Ok(self.position(self.high_watermark).saturating_sub(self.position(offset)))
    }

    /// The index of the batch that holds an offset.
    fn index(&self, offset: i64) -> usize {
        self.batches.partition_point(|entry| entry.end <= offset)
    }

    /// Bytes that were appended before the batch that holds an offset.
    fn position(&self, offset: i64) -> u64 {
        self.batches.get(self.index(offset)).map_or(self.appended, |entry| entry.position)
    }

    /// Reads whole batches from an offset on, the first of which may begin before it. Ends before
    /// `max_bytes` would be exceeded, but for a first batch that `must_progress`.
    pub(super) fn read(&self, offset: i64, max_bytes: usize, must_progress: bool) -> Result<Bytes> {
        self.readable_bytes(offset)?;
        let mut bytes = 0;
        let fitting = self.readable(self.index(offset)).take_while(|entry| {
            let is_forced = must_progress && bytes == 0;
            bytes += entry.bytes.len();
            bytes <= max_bytes || is_forced
        });
        Ok(fitting.map(|entry| &*entry.bytes).collect::<Vec<_>>().concat().into())
    }

    /// The batches from an index on that may be read.
    fn readable(&self, from: usize) -> impl Iterator<Item = &Entry> {
        self.batches.range(from..).take_while(|entry| entry.end <= self.high_watermark)
    }

    /// Returns offset and timestamp of the first record at a time or later that may be read. In a
    /// compressed batch, they are those of the batch.
    pub(super) fn find(&self, timestamp: i64) -> Option<(i64, i64)> {
        let found = self.readable(0).find(|entry| entry.max_timestamp >= timestamp);
        found?.find(timestamp, self.start)
    }

    /// The same for the first record with the latest time.
    pub(super) fn latest(&self) -> Option<(i64, i64)> {
        let latest = self.readable(0).map(|entry| entry.max_timestamp).max()?;
        self.find(latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::batch;

    /// A log of batches of this many records.
    fn log(counts: &[i64]) -> Log {
        let mut log = Log::default();
        let storage = Storage::new(1 << 20);
        for &count in counts {
            log.append(Batch::check(&batch(count)).unwrap(), &storage).unwrap();
        }
        log
    }

    #[test]
    fn only_replicated_records_can_be_read_in_whole_batches() {
        let mut log = log(&[3, 2]);
        assert_eq!(log.readable_bytes(0), Ok(0));
        assert!(log.read(0, 1_000, true).unwrap().is_empty());
        log.replicated(3);
        let (three, two) = (batch(3).len(), batch(2).len());
        let readable = [0, 2, 3, 4].map(|offset| log.readable_bytes(offset).unwrap());
        assert_eq!(readable, [three as u64, three as u64, 0, 0]);
        log.replicated(2);
        log.replicated(9);
        assert_eq!(log.high_watermark, 5, "neither back nor past the end");
        assert_eq!(log.read(0, 1_000, true).unwrap().len(), three + two);
        for offset in [-1, 6, i64::MIN, i64::MAX] {
            assert_eq!(log.readable_bytes(offset), Err(ResponseError::OffsetOutOfRange));
        }
    }

    #[test]
    fn a_time_is_found_at_the_record_that_reaches_it() {
        let mut log = log(&[1, 3, 5]);
        log.replicated(4);
        let found = [0, 1, 2, 4].map(|time| log.find(time));
        // The second batch has times 0 to 2 at the offsets 1 to 3. The last is not replicated.
        assert_eq!(found, [Some((0, 0)), Some((2, 1)), Some((3, 2)), None]);
        assert_eq!(log.latest(), Some((3, 2)));
    }

    #[test]
    fn records_before_an_offset_can_be_deleted_up_to_the_replicated_ones() {
        let mut log = log(&[1, 3, 5]);
        log.replicated(4);
        assert_eq!(log.delete_before(5), Err(ResponseError::OffsetOutOfRange));
        assert_eq!(log.delete_before(2), Ok(batch(1).len() as u64));
        assert_eq!((log.start, log.delete_before(1)), (2, Ok(0)), "never back");
        assert_eq!(log.readable_bytes(1), Err(ResponseError::OffsetOutOfRange));
        assert_eq!(log.find(0), Some((2, 1)));
        assert_eq!(log.delete_before(-1), Ok(batch(3).len() as u64));
        assert_eq!((log.start, log.kept()), (4, batch(5).len() as u64));
    }
}
