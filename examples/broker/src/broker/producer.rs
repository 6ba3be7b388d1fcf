//! Idempotent producers: the ids they get, and the sequence numbers that find their duplicates.
//!
//! A producer numbers its records for each partition. A batch that arrives again, because its
//! answer was lost, gets the same answer and is not appended. One that leaves a gap is refused.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicI64, Ordering},
};

use crate::prelude::*;

/// Batches of a producer that a partition remembers; no client has more in flight.
const REMEMBERED: usize = 5;

/// Producers that a partition knows. One more displaces the one that has been silent the longest.
const MAX_PRODUCERS: usize = 1_000;

/// Stands for no producer.
const NONE: i64 = -1;

/// The ids of producers.
#[derive(Debug)]
pub(super) struct Producers(AtomicI64);

impl Default for Producers {
    /// Starts at random, since a producer that has outlived a broker continues with its id.
    fn default() -> Self {
        Self(AtomicI64::new(i64::from(fastrand::u32(..)) << 16))
    }
}

impl Producers {
    /// Hands out an id, or the next epoch of one.
    pub(super) fn init(&self, asked: &InitProducerIdRequest) -> InitProducerIdResponse {
        let response = InitProducerIdResponse::default();
        if asked.transactional_id.is_some() {
            let error = ResponseError::TransactionalIdAuthorizationFailed;
            return response.with_error_code(error.code()).with_producer_id(ProducerId(NONE));
        }
        let (ProducerId(id), epoch) = (asked.producer_id, asked.producer_epoch);
        let (id, epoch) = match epoch.checked_add(1) {
            Some(next) if id >= 0 && epoch >= 0 => (id, next),
            _ => (self.0.fetch_add(1, Ordering::Relaxed), 0),
        };
        response.with_producer_id(ProducerId(id)).with_producer_epoch(epoch)
    }
}

/// Who made a batch, and which of its records the batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) producer: i64,
    pub(super) epoch: i16,
    /// The number of the first record.
    pub(super) first: i32,
    /// The number of the last record.
    pub(super) last: i32,
}

impl Stamp {
    /// Makes the stamp of a batch; `None` if its producer is not idempotent.
    pub(super) fn new(producer: i64, epoch: i16, first: i32, count: i32) -> Option<Self> {
        let last = after(first, count - 1);
        (producer >= 0).then_some(Self { producer, epoch, first, last })
    }
}

/// A number of a sequence that starts again after the greatest.
const fn after(number: i32, more: i32) -> i32 {
    number.wrapping_add(more) & i32::MAX
}

/// The latest batches of the producers of a partition.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    producers: HashMap<i64, Sequence>,
    /// Batches that were recorded.
    count: u64,
}

#[derive(Debug)]
struct Sequence {
    epoch: i16,
    /// The latest batches, and the offset at which each begins.
    recent: VecDeque<(Stamp, i64)>,
    /// The count of batches when the latest was recorded.
    used: u64,
}

impl Sequences {
    /// Decides whether a batch is the next of its producer. Returns the offset of the first record
    /// if the batch was appended before.
    ///
    /// # Errors
    ///
    /// `InvalidProducerEpoch` if the producer has a later epoch, `OutOfOrderSequenceNumber` if
    /// records before these are missing.
    pub(super) fn check(&self, stamp: Stamp) -> Result<Option<i64>, ResponseError> {
        if stamp.epoch < 0 || stamp.first < 0 {
            return Err(ResponseError::InvalidRecord);
        }
        // A producer that was displaced may continue with any number.
        let Some(sequence) = self.producers.get(&stamp.producer) else { return Ok(None) };
        if stamp.epoch < sequence.epoch {
            return Err(ResponseError::InvalidProducerEpoch);
        }
        let is_same_epoch = stamp.epoch == sequence.epoch;
        let mut recent = sequence.recent.iter().filter(|_| is_same_epoch);
        if let Some((_, base)) = recent.clone().find(|(known, _)| *known == stamp) {
            return Ok(Some(*base));
        }
        let expected = recent.next_back().map_or(0, |(latest, _)| after(latest.last, 1));
        if stamp.first == expected {
            Ok(None)
        } else {
            Err(ResponseError::OutOfOrderSequenceNumber)
        }
    }

    /// Records a batch that was appended.
    pub(super) fn record(&mut self, stamp: Stamp, base: i64) {
        self.count += 1;
        if self.producers.len() >= MAX_PRODUCERS && !self.producers.contains_key(&stamp.producer) {
            let silent = self.producers.iter().min_by_key(|(_, sequence)| sequence.used);
            let silent = silent.map(|(&producer, _)| producer);
            silent.and_then(|producer| self.producers.remove(&producer));
        }
        let new = || Sequence { epoch: stamp.epoch, recent: VecDeque::new(), used: 0 };
        let sequence = self.producers.entry(stamp.producer).or_insert_with(new);
        if sequence.epoch != stamp.epoch {
            *sequence = new();
        }
        sequence.used = self.count;
        if sequence.recent.len() == REMEMBERED {
            sequence.recent.pop_front();
        }
        sequence.recent.push_back((stamp, base));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(producer: i64, epoch: i16, first: i32, count: i32) -> Stamp {
        Stamp::new(producer, epoch, first, count).unwrap()
    }

    #[test]
    fn a_batch_is_appended_once_and_in_order() {
        let mut sequences = Sequences::default();
        for batch in 0..8 {
            let stamp = stamp(7, 0, 3 * batch, 3);
            assert_eq!(sequences.check(stamp), Ok(None));
            sequences.record(stamp, i64::from(batch) * 10);
            assert_eq!(sequences.check(stamp), Ok(Some(i64::from(batch) * 10)), "a duplicate");
        }
        let gap = Err(ResponseError::OutOfOrderSequenceNumber);
        assert_eq!(sequences.check(stamp(7, 0, 27, 1)), gap);
        assert_eq!(sequences.check(stamp(7, 0, 21, 2)), gap, "another batch of the same begin");
        assert_eq!(sequences.check(stamp(7, 0, 9, 3)), Ok(Some(30)), "the fifth before the next");
        assert_eq!(sequences.check(stamp(7, 0, 6, 3)), gap, "too old to be remembered");
        assert_eq!(sequences.check(stamp(8, 0, 40, 1)), Ok(None), "a producer of another time");
        for invalid in [stamp(8, -1, 0, 1), stamp(8, 0, -1, 1)] {
            assert_eq!(sequences.check(invalid), Err(ResponseError::InvalidRecord));
        }
        // Numbers start again after the greatest.
        let last = stamp(9, 0, i32::MAX - 1, 3);
        assert_eq!(last.last, 0);
        sequences.record(last, 0);
        assert_eq!(sequences.check(stamp(9, 0, 1, 1)), Ok(None));
    }

    #[test]
    fn a_later_epoch_starts_again_at_0_and_an_earlier_one_is_refused() {
        let mut sequences = Sequences::default();
        sequences.record(stamp(7, 1, 0, 5), 0);
        let gap = Err(ResponseError::OutOfOrderSequenceNumber);
        assert_eq!(sequences.check(stamp(7, 2, 5, 1)), gap);
        assert_eq!(sequences.check(stamp(7, 2, 0, 5)), Ok(None));
        sequences.record(stamp(7, 2, 0, 5), 5);
        assert_eq!(sequences.check(stamp(7, 1, 5, 1)), Err(ResponseError::InvalidProducerEpoch));
    }

    #[test]
    fn a_partition_knows_a_limited_number_of_producers() {
        let mut sequences = Sequences::default();
        for producer in 0..1_500 {
            sequences.record(stamp(producer, 0, 0, 1), producer);
        }
        assert_eq!(sequences.producers.len(), MAX_PRODUCERS);
        assert_eq!(sequences.check(stamp(1_499, 0, 0, 1)), Ok(Some(1_499)));
        assert_eq!(sequences.check(stamp(499, 0, 0, 1)), Ok(None));
    }
}
