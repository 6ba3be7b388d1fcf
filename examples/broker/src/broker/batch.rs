//! Batches of records as they come in: checked, and otherwise left as they are.

use std::iter;

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::{ResponseError, records::RecordBatchDecoder};

use super::producer::Stamp;

/// Bytes of a batch before its records.
const HEADER_BYTES: usize = 61;

const MAGIC_AT: usize = 16;
const LAST_OFFSET_DELTA_AT: usize = 23;
const ATTRIBUTES_AT: usize = 21;
const BASE_TIMESTAMP_AT: usize = 27;
const MAX_TIMESTAMP_AT: usize = 35;

/// The bits of the attributes that name the compression.
const COMPRESSION: u8 = 7;

/// The format of batches with a header; the only one since Kafka 4.
const MAGIC: u8 = 2;

#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// The whole batch, header and all. The records may be compressed. The broker does not
    /// decompress them.
    bytes: BytesMut,
    pub(super) count: i64,
    pub(super) max_timestamp: i64,
    /// `None` if the producer is not idempotent.
    pub(super) stamp: Option<Stamp>,
}

impl Batch {
    /// Checks the bytes that a producer sent for a partition: exactly one batch of records,
    /// undamaged.
    ///
    /// The checksum covers everything from the attributes on.
    pub(super) fn check(bytes: &Bytes) -> Result<Self, ResponseError> {
        match bytes.get(MAGIC_AT) {
            Some(&MAGIC) if bytes.len() >= HEADER_BYTES => {}
            Some(&magic) if magic < MAGIC => {
                return Err(ResponseError::UnsupportedForMessageFormat);
            }
            _ => return Err(ResponseError::CorruptMessage),
        }
        let mut rest = bytes.clone();
        let batches = RecordBatchDecoder::decode_batch_info(&mut rest)
            .map_err(|_| ResponseError::CorruptMessage)?;
        let [batch] = &batches[..] else { return Err(ResponseError::InvalidRecord) };
        let last_delta = (&bytes[LAST_OFFSET_DELTA_AT..]).get_i32();
        let is_counted = batch.record_count > 0 && last_delta == batch.record_count - 1;
        if !is_counted || batch.control || !rest.is_empty() {
            return Err(ResponseError::InvalidRecord);
        }
        if batch.transactional {
            return Err(ResponseError::InvalidTxnState);
        }
        let max_timestamp = (&bytes[MAX_TIMESTAMP_AT..]).get_i64();
        // A copy, so that the log does not keep the whole request.
        Ok(Self {
            bytes: BytesMut::from(&bytes[..]),
            count: batch.record_count.into(),
            max_timestamp,
            stamp: Stamp::new(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.record_count,
            ),
        })
    }

    /// Gives the batch its place in a log, which the checksum does not cover.
    pub(super) fn place(mut self, base: i64) -> Bytes {
        self.bytes[..8].copy_from_slice(&base.to_be_bytes());
        self.bytes.freeze()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Returns the offset of each record within its batch, and its time; nothing for a batch that is
/// compressed, and the records before the first malformed one.
pub(super) fn times(batch: &Bytes) -> impl Iterator<Item = (i64, i64)> {
    let is_compressed = batch[ATTRIBUTES_AT + 1] & COMPRESSION != 0;
    let base = (&batch[BASE_TIMESTAMP_AT..]).get_i64();
    let mut rest = if is_compressed { &[] } else { &batch[HEADER_BYTES..] };
    iter::from_fn(move || {
        let length = varint(&mut rest)?;
        // Behind its attributes.
        let mut record = rest.get(1..usize::try_from(length).ok()?)?;
        rest = &rest[record.len() + 1..];
        let time = varint(&mut record)?;
        Some((varint(&mut record)?, base.wrapping_add(time)))
    })
}

/// Reads a number, seven bits in each byte, the lowest first. Odd numbers stand for negative ones.
fn varint(from: &mut &[u8]) -> Option<i64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let half = i64::try_from(number >> 1).ok()?;
            return Some(if number & 1 == 0 { half } else { !half });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::batch;

    #[test]
    fn anything_but_one_batch_in_full_is_refused() {
        let whole = batch(3);
        for length in 0..whole.len() {
            assert!(Batch::check(&whole.slice(..length)).is_err(), "{length}");
        }
        for more in [&whole[..], &[0; 17]] {
            assert!(Batch::check(&[&whole, more].concat().into()).is_err());
        }
        // The checksum covers all bytes after the format.
        for index in MAGIC_AT..whole.len() {
            let mut bytes = whole.to_vec();
            bytes[index] ^= 1;
            assert!(Batch::check(&bytes.into()).is_err(), "{index}");
        }
    }
}
