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

/// Elements of all arrays of a request: topics, partitions, tagged fields.
pub(super) const MAX_ELEMENTS: usize = 4_000;

/// The longest string, in bytes.
const MAX_STRING_BYTES: usize = 1_000;

/// A part of a request.
pub(super) enum Part {
    /// So many bytes.
    Fixed(usize),
    /// A string, or none.
    Text,
    /// Bytes, or none.
    Blob,
    /// An array, or none, and the parts of each element.
    Each(&'static [Part]),
    /// Tagged fields, if the version is compact.
    Tags,
    /// A part that exists since a version.
    Since(i16, &'static Part),
    /// A part that exists up to a version.
    Until(i16, &'static Part),
}

use Part::{Blob, Each, Fixed, Since, Tags, Text, Until};

const FLAG: Part = Fixed(1);
const EPOCH: Part = Fixed(4);
const NAMES: Part = Each(&[Text]);
const NUMBERS: Part = Each(&[Fixed(4)]);
const TOPICS_WITH_NUMBERS: Part = Each(&[Text, NUMBERS, Tags]);
const NAMED_BLOBS: Part = Each(&[Text, Blob, Tags]);

/// A kind of request, its versions on offer, and its parts.
pub(super) type Offer = (ApiKey, RangeInclusive<i16>, &'static [Part]);

/// The requests on offer. Later versions name topics by number.
pub(super) const OFFERED: [Offer; 20] = [
    (ApiKey::Produce, 3..=11, PRODUCE),
    (ApiKey::Fetch, 4..=12, FETCH),
    (ApiKey::ListOffsets, 1..=6, LIST_OFFSETS),
    (ApiKey::Metadata, 0..=12, METADATA),
    (ApiKey::OffsetCommit, 2..=9, OFFSET_COMMIT),
    (ApiKey::OffsetFetch, 1..=9, OFFSET_FETCH),
    (ApiKey::FindCoordinator, 0..=4, &[Until(3, &Text), Since(1, &FLAG), Since(4, &NAMES), Tags]),
    (ApiKey::JoinGroup, 0..=9, JOIN_GROUP),
    (ApiKey::Heartbeat, 0..=4, &[Text, Fixed(4), Text, Since(3, &Text), Tags]),
    (ApiKey::LeaveGroup, 0..=5, LEAVE_GROUP),
    (ApiKey::SyncGroup, 0..=5, SYNC_GROUP),
    (ApiKey::DescribeGroups, 0..=5, &[NAMES, Since(3, &FLAG), Tags]),
    (ApiKey::ListGroups, 0..=4, &[Since(4, &NAMES), Tags]),
    (ApiKey::DeleteGroups, 0..=2, &[NAMES, Tags]),
    (ApiKey::ApiVersions, 0..=3, &[Since(3, &Text), Since(3, &Text), Tags]),
    (ApiKey::InitProducerId, 0..=4, &[Text, Fixed(4), Since(3, &Fixed(10)), Tags]),
    (ApiKey::CreateTopics, 2..=7, CREATE_TOPICS),
    (ApiKey::DeleteTopics, 1..=5, &[NAMES, Fixed(4), Tags]),
    (ApiKey::DescribeConfigs, 1..=4, DESCRIBE_CONFIGS),
    (ApiKey::DescribeCluster, 0..=1, &[FLAG, Since(1, &FLAG), Tags]),
];

const PRODUCE: &[Part] =
    &[Text, Fixed(6), Each(&[Text, Each(&[Fixed(4), Blob, Tags]), Tags]), Tags];

const FETCH: &[Part] = &[
    Fixed(17),
    Since(7, &Fixed(8)),
    Each(&[Text, Each(FETCH_PARTITION), Tags]),
    Since(7, &TOPICS_WITH_NUMBERS),
    Since(11, &Text),
    Tags,
];

const FETCH_PARTITION: &[Part] =
    &[Fixed(4), Since(9, &EPOCH), Fixed(8), Since(12, &EPOCH), Since(5, &Fixed(8)), Fixed(4), Tags];

const LIST_OFFSETS: &[Part] = &[
    Fixed(4),
    Since(2, &FLAG),
    Each(&[Text, Each(&[Fixed(4), Since(4, &EPOCH), Fixed(8), Tags]), Tags]),
    Tags,
];

const METADATA: &[Part] = &[
    Each(&[Since(10, &Fixed(16)), Text, Tags]),
    Since(4, &FLAG),
    Since(8, &Until(10, &FLAG)),
    Since(8, &FLAG),
    Tags,
];

const OFFSET_COMMIT: &[Part] = &[
    Text,
    Fixed(4),
    Text,
    Since(7, &Text),
    Until(4, &Fixed(8)),
    Each(&[Text, Each(&[Fixed(12), Since(6, &EPOCH), Text, Tags]), Tags]),
    Tags,
];

const OFFSET_FETCH: &[Part] = &[
    Until(7, &Text),
    Until(7, &TOPICS_WITH_NUMBERS),
    Since(8, &Each(&[Text, Since(9, &Text), Since(9, &EPOCH), TOPICS_WITH_NUMBERS, Tags])),
    Since(7, &FLAG),
    Tags,
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
    Tags,
];

const LEAVE_GROUP: &[Part] =
    &[Text, Until(2, &Text), Since(3, &Each(&[Text, Text, Since(5, &Text), Tags])), Tags];

const SYNC_GROUP: &[Part] =
    &[Text, Fixed(4), Text, Since(3, &Text), Since(5, &Text), Since(5, &Text), NAMED_BLOBS, Tags];

const CREATE_TOPICS: &[Part] = &[
    Each(&[Text, Fixed(6), Each(&[Fixed(4), NUMBERS, Tags]), Each(&[Text, Text, Tags]), Tags]),
    Fixed(5),
    Tags,
];

const DESCRIBE_CONFIGS: &[Part] = &[Each(&[FLAG, Text, NAMES, Tags]), FLAG, Since(3, &FLAG), Tags];

/// Checks that a frame is a header and a request of its kind and version.
///
/// Bytes behind it are ignored, as in Kafka: librdkafka leaves some behind a request for all topics.
pub(super) fn check(mut frame: &[u8], key: ApiKey, version: i16) -> Result<(), Refusal> {
    let offer = OFFERED.into_iter().find(|(offered, ..)| *offered == key);
    let (_, versions, parts) = offer.ok_or(Refusal::Unknown(key as i16))?;
    if !versions.contains(&version) {
        return Err(Refusal::Version(key, version));
    }
    let is_compact = key.request_header_version(version) >= 2;
    let mut walk = Walk { version, is_compact, elements: MAX_ELEMENTS, has_too_many: false };
    let walked = walk.header(&mut frame).and_then(|()| walk.parts(&mut frame, parts));
    let refusal =
        if walk.has_too_many { Refusal::TooMany(key) } else { Refusal::Malformed(key, version) };
    walked.map_err(|Malformed| refusal)
}

struct Walk {
    version: i16,
    is_compact: bool,
    /// Elements that may still come.
    elements: usize,
    has_too_many: bool,
}

impl Walk {
    /// The name of the client never has a compact length.
    fn header(&mut self, rest: &mut &[u8]) -> Result<(), Malformed> {
        skip(rest, 8)?;
        text(rest)?;
        self.part(rest, &Tags)
    }

    fn parts(&mut self, rest: &mut &[u8], parts: &[Part]) -> Result<(), Malformed> {
        parts.iter().try_for_each(|part| self.part(rest, part))
    }

    fn part(&mut self, rest: &mut &[u8], part: &Part) -> Result<(), Malformed> {
        match part {
            Fixed(bytes) => skip(rest, *bytes),
            Text if self.is_compact => {
                compact_length(rest).and_then(|bytes| skip_text(rest, bytes))
            }
            Text => text(rest),
            Blob => self.length(rest).and_then(|bytes| skip(rest, bytes)),
            Each(parts) => {
                let count = self.length(rest)?;
                self.count(count)?;
                (0..count).try_for_each(|_| self.parts(rest, parts))
            }
            Tags if self.is_compact => self.tags(rest),
            Since(version, part) if *version <= self.version => self.part(rest, part),
            Until(version, part) if *version >= self.version => self.part(rest, part),
            Tags | Since(..) | Until(..) => Ok(()),
        }
    }

    fn tags(&mut self, rest: &mut &[u8]) -> Result<(), Malformed> {
        let count = varint(rest)?;
        self.count(count)?;
        for _ in 0..count {
            varint(rest)?;
            let bytes = varint(rest)?;
            skip(rest, bytes)?;
        }
        Ok(())
    }

    fn count(&mut self, elements: usize) -> Result<(), Malformed> {
        let left = self.elements.checked_sub(elements);
        self.has_too_many = left.is_none();
        self.elements = left.ok_or(Malformed)?;
        Ok(())
    }

    /// Reads the length of bytes or of an array.
    fn length(&self, rest: &mut &[u8]) -> Result<usize, Malformed> {
        if self.is_compact { compact_length(rest) } else { length(rest.try_get_i32().ok()) }
    }
}

/// A length that was read; -1 stands for nothing.
fn length(read: Option<i32>) -> Result<usize, Malformed> {
    match read {
        Some(-1) => Ok(0),
        Some(length) => usize::try_from(length).map_err(|_| Malformed),
        None => Err(Malformed),
    }
}

/// A length plus one; zero stands for nothing.
fn compact_length(rest: &mut &[u8]) -> Result<usize, Malformed> {
    varint(rest).map(|length| length.saturating_sub(1))
}

/// A number of up to 31 bits, seven in each byte, the lowest first.
fn varint(rest: &mut &[u8]) -> Result<usize, Malformed> {
    let mut number = 0_usize;
    for shift in (0..35).step_by(7) {
        let byte = rest.try_get_u8().map_err(|_| Malformed)?;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return if i32::try_from(number).is_ok() { Ok(number) } else { Err(Malformed) };
        }
    }
    Err(Malformed)
}

fn text(rest: &mut &[u8]) -> Result<(), Malformed> {
    let bytes = length(rest.try_get_i16().ok().map(i32::from))?;
    skip_text(rest, bytes)
}

fn skip_text(rest: &mut &[u8], bytes: usize) -> Result<(), Malformed> {
    if bytes > MAX_STRING_BYTES { Err(Malformed) } else { skip(rest, bytes) }
}

fn skip(rest: &mut &[u8], bytes: usize) -> Result<(), Malformed> {
    *rest = rest.get(bytes..).ok_or(Malformed)?;
    Ok(())
}
