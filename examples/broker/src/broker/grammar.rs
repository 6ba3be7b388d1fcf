//! The requests on offer: their versions and their grammar.
//!
//! The codec reserves memory for as many elements as an array claims to have. So [`check`] first
//! walks a request along the grammar of its version, without an allocation: each length has to fit
//! into the rest of the frame, and all arrays together hold at most [`MAX_ELEMENTS`].
//!
//! Newer versions of a request are *compact*: lengths take as many bytes as they need, and each
//! structure ends with tagged fields.

use std::ops::RangeInclusive;

use bytes::Buf;
use kafka_protocol::messages::ApiKey;

use super::{refusal::Refusal, request::Malformed};

/// Elements of all arrays of a request: topics, partitions, tagged fields. A request may name all
/// topics and partitions of a broker.
pub(super) const MAX_ELEMENTS: usize = 8_000;

pub(super) const MAX_STRING_BYTES: usize = 1_000;

pub(super) enum Part {
    /// This many bytes.
    Fixed(usize),
    /// A string, or none.
    Text,
    /// Bytes, or none.
    Blob,
    /// An array of a part, or none.
    All(&'static Part),
    /// An array of structures of these parts, or none.
    Each(&'static [Part]),
    /// A part that exists since a version.
    Since(i16, &'static Part),
    /// A part that exists up to a version.
    Until(i16, &'static Part),
}

use Part::{All, Blob, Each, Fixed, Since, Text, Until};

const FLAG: Part = Fixed(1);
const EPOCH: Part = Fixed(4);
const NAMES: Part = All(&Text);
const NUMBERS: Part = All(&Fixed(4));
const NUMBERS_BY_NAME: Part = Each(&[Text, NUMBERS]);
const NAMED_BLOBS: Part = Each(&[Text, Blob]);

/// A kind of request, its versions on offer, and its parts.
pub(super) type Offer = (ApiKey, RangeInclusive<i16>, &'static [Part]);

/// The requests on offer. Later versions name topics by number.
pub(super) const OFFERED: [Offer; 22] = [
    (ApiKey::Produce, 3..=11, PRODUCE),
    (ApiKey::Fetch, 4..=12, FETCH),
    (ApiKey::ListOffsets, 1..=7, LIST_OFFSETS),
    (ApiKey::Metadata, 0..=12, METADATA),
    (ApiKey::OffsetCommit, 2..=9, OFFSET_COMMIT),
    (ApiKey::OffsetFetch, 1..=8, OFFSET_FETCH),
    (ApiKey::FindCoordinator, 0..=4, &[Until(3, &Text), Since(1, &FLAG), Since(4, &NAMES)]),
    (ApiKey::JoinGroup, 0..=8, JOIN_GROUP),
    (ApiKey::Heartbeat, 0..=4, &[Text, Fixed(4), Text, Since(3, &Text)]),
    (ApiKey::LeaveGroup, 0..=5, LEAVE_GROUP),
    (ApiKey::SyncGroup, 0..=5, SYNC_GROUP),
    (ApiKey::DescribeGroups, 0..=5, &[NAMES, Since(3, &FLAG)]),
    (ApiKey::ListGroups, 0..=4, &[Since(4, &NAMES)]),
    (ApiKey::DeleteGroups, 0..=2, &[NAMES]),
    (ApiKey::ApiVersions, 0..=3, &[Since(3, &Text), Since(3, &Text)]),
    (ApiKey::InitProducerId, 0..=4, &[Text, Fixed(4), Since(3, &Fixed(10))]),
    (ApiKey::CreateTopics, 2..=7, CREATE_TOPICS),
    (ApiKey::DeleteTopics, 1..=5, &[NAMES, Fixed(4)]),
    (ApiKey::CreatePartitions, 0..=3, &[Each(&[Text, Fixed(4), Each(&[NUMBERS])]), Fixed(5)]),
    (ApiKey::DeleteRecords, 0..=2, &[Each(&[Text, Each(&[Fixed(12)])]), Fixed(4)]),
    (ApiKey::DescribeConfigs, 1..=4, &[Each(&[FLAG, Text, NAMES]), FLAG, Since(3, &FLAG)]),
    (ApiKey::DescribeCluster, 0..=1, &[FLAG, Since(1, &FLAG)]),
];

const PRODUCE: &[Part] = &[Text, Fixed(6), Each(&[Text, Each(&[Fixed(4), Blob])])];

const FETCH: &[Part] = &[
    Fixed(17),
    Since(7, &Fixed(8)),
    Each(&[Text, Each(FETCH_PARTITION)]),
    Since(7, &NUMBERS_BY_NAME),
    Since(11, &Text),
];

const FETCH_PARTITION: &[Part] =
    &[Fixed(4), Since(9, &EPOCH), Fixed(8), Since(12, &EPOCH), Since(5, &Fixed(8)), Fixed(4)];

const LIST_OFFSETS: &[Part] =
    &[Fixed(4), Since(2, &FLAG), Each(&[Text, Each(&[Fixed(4), Since(4, &EPOCH), Fixed(8)])])];

const METADATA: &[Part] = &[
    Each(&[Since(10, &Fixed(16)), Text]),
    Since(4, &FLAG),
    Since(8, &Until(10, &FLAG)),
    Since(8, &FLAG),
];

const OFFSET_COMMIT: &[Part] = &[
    Text,
    Fixed(4),
    Text,
    Since(7, &Text),
    Until(4, &Fixed(8)),
    Each(&[Text, Each(&[Fixed(12), Since(6, &EPOCH), Text])]),
];

const OFFSET_FETCH: &[Part] = &[
    Until(7, &Text),
    Until(7, &NUMBERS_BY_NAME),
    Since(8, &Each(&[Text, NUMBERS_BY_NAME])),
    Since(7, &FLAG),
];

const JOIN_GROUP: &[Part] = &[
    Text,
    Fixed(4),
    Since(1, &Fixed(4)),
    Text,
    Since(5, &Text),
    Text,
    NAMED_BLOBS,
    Since(8, &Text),
];

const LEAVE_GROUP: &[Part] =
    &[Text, Until(2, &Text), Since(3, &Each(&[Text, Text, Since(5, &Text)]))];

const SYNC_GROUP: &[Part] =
    &[Text, Fixed(4), Text, Since(3, &Text), Since(5, &Text), Since(5, &Text), NAMED_BLOBS];

const CREATE_TOPICS: &[Part] =
    &[Each(&[Text, Fixed(6), Each(&[Fixed(4), NUMBERS]), Each(&[Text, Text])]), Fixed(5)];

/// Checks that a frame is a header and a request of its kind and version.
///
/// Bytes behind it are ignored, as in Kafka: librdkafka leaves some behind a request for all
/// topics.
pub(super) fn check(frame: &[u8], key: ApiKey, version: i16) -> Result<(), Refusal> {
    let offer = OFFERED.into_iter().find(|(offered, ..)| *offered == key);
    let (_, versions, parts) = offer.ok_or(Refusal::Unknown(key as i16))?;
    if !versions.contains(&version) {
        return Err(Refusal::Version(key, version));
    }
    let is_compact = key.request_header_version(version) >= 2;
    let mut walk = Walk { rest: frame, version, is_compact, elements: Some(MAX_ELEMENTS) };
    let walked = walk.header().and_then(|()| walk.structure(parts));
    walked.map_err(|Malformed| match walk.elements {
        Some(_) => Refusal::Malformed(key, version),
        None => Refusal::TooMany(key),
    })
}

struct Walk<'a> {
    rest: &'a [u8],
    version: i16,
    is_compact: bool,
    /// Elements that may still come; `None` once there are too many.
    elements: Option<usize>,
}

impl Walk<'_> {
    /// The name of the client never has a compact length.
    fn header(&mut self) -> Result<(), Malformed> {
        self.skip(8)?;
        let bytes = self.short_length()?;
        self.text(bytes)?;
        self.tags()
    }

    fn structure(&mut self, parts: &[Part]) -> Result<(), Malformed> {
        parts.iter().try_for_each(|part| self.part(part))?;
        self.tags()
    }

    fn part(&mut self, part: &Part) -> Result<(), Malformed> {
        match part {
            Fixed(bytes) => self.skip(*bytes),
            Text => {
                let bytes = if self.is_compact { self.length()? } else { self.short_length()? };
                self.text(bytes)
            }
            Blob => {
                let bytes = self.length()?;
                self.skip(bytes)
            }
            All(part) => (0..self.count()?).try_for_each(|_| self.part(part)),
            Each(parts) => (0..self.count()?).try_for_each(|_| self.structure(parts)),
            Since(version, part) if *version <= self.version => self.part(part),
            Until(version, part) if *version >= self.version => self.part(part),
            Since(..) | Until(..) => Ok(()),
        }
    }

    /// Skips the tagged fields of a structure.
    fn tags(&mut self) -> Result<(), Malformed> {
        let count = if self.is_compact { self.varint()? } else { 0 };
        for _ in 0..self.take(count)? {
            self.varint()?;
            let bytes = self.varint()?;
            self.skip(bytes)?;
        }
        Ok(())
    }

    /// Reads the length of an array.
    fn count(&mut self) -> Result<usize, Malformed> {
        let elements = self.length()?;
        self.take(elements)
    }

    fn take(&mut self, elements: usize) -> Result<usize, Malformed> {
        self.elements = self.elements.and_then(|left| left.checked_sub(elements));
        self.elements.map(|_| elements).ok_or(Malformed)
    }

    /// Reads the length of bytes or of an array. A compact length is one more; zero stands for
    /// none.
    fn length(&mut self) -> Result<usize, Malformed> {
        if self.is_compact {
            return self.varint().map(|length| length.saturating_sub(1));
        }
        length(self.rest.try_get_i32().map_err(|_| Malformed)?)
    }

    fn short_length(&mut self) -> Result<usize, Malformed> {
        length(self.rest.try_get_i16().map_err(|_| Malformed)?.into())
    }

    /// Reads a number of up to 31 bits, seven in each byte, the lowest first.
    fn varint(&mut self) -> Result<usize, Malformed> {
        let mut number = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = self.rest.try_get_u8().map_err(|_| Malformed)?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return i32::try_from(number).map_err(|_| Malformed).and_then(length);
            }
        }
        Err(Malformed)
    }

    fn text(&mut self, bytes: usize) -> Result<(), Malformed> {
        if bytes > MAX_STRING_BYTES { Err(Malformed) } else { self.skip(bytes) }
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.rest = self.rest.get(bytes..).ok_or(Malformed)?;
        Ok(())
    }
}

/// Returns the length of bytes or of an array; -1 stands for none.
fn length(number: i32) -> Result<usize, Malformed> {
    if number == -1 { Ok(0) } else { usize::try_from(number).map_err(|_| Malformed) }
}
