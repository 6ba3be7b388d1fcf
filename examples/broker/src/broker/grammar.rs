//! The limits of requests, which are checked before the codec sees them.
//!
//! The codec sets memory aside for as many elements as an array says it has. So a request is first
//! walked along the grammar of its version: every length must fit into what is left of the frame,
//! and all arrays together hold no more than [`MAX_ELEMENTS`]. Nothing is allocated for that. Only
//! versions with lengths of a fixed size are on offer, which keeps the grammar short.

use bytes::Buf;

use super::request::Malformed;

/// Elements of all arrays of a request: topics and partitions.
pub(super) const MAX_ELEMENTS: usize = 4_000;

/// The longest string, in bytes.
const MAX_STRING_BYTES: usize = 1_000;

/// A part of a request.
pub(super) enum Part {
    /// So many bytes.
    Fixed(usize),
    /// A string, or none: a length of two bytes.
    Text,
    /// Bytes, or none: a length of four bytes.
    Blob,
    /// An array, or none: a length of four bytes, and the parts of each element.
    Each(&'static [Part]),
    /// A part that is there since a version.
    Since(i16, &'static Part),
}

use Part::{Blob, Each, Fixed, Since, Text};

pub(super) const HEADER: &[Part] = &[Fixed(8), Text];

pub(super) const METADATA: &[Part] = &[Each(&[Text]), Since(4, &Fixed(1)), Since(8, &Fixed(2))];

pub(super) const PRODUCE: &[Part] = &[Text, Fixed(6), Each(&[Text, Each(&[Fixed(4), Blob])])];

pub(super) const LIST_OFFSETS: &[Part] = &[
    Fixed(4),
    Since(2, &Fixed(1)),
    Each(&[Text, Each(&[Fixed(4), Since(4, &Fixed(4)), Fixed(8)])]),
];

pub(super) const FETCH: &[Part] = &[
    Fixed(17),
    Since(7, &Fixed(8)),
    Each(&[Text, Each(&[Fixed(4), Since(9, &Fixed(4)), Fixed(8), Since(5, &Fixed(8)), Fixed(4)])]),
    Since(7, &Each(&[Text, Each(&[Fixed(4)])])),
    Since(11, &Text),
];

/// Checks that a frame is a header and a request of that grammar, and nothing more.
pub(super) fn check(mut frame: &[u8], grammar: &[Part], version: i16) -> Result<(), Malformed> {
    let mut walk = Walk { version, elements: MAX_ELEMENTS };
    walk.parts(&mut frame, HEADER)?;
    walk.parts(&mut frame, grammar)?;
    if frame.is_empty() { Ok(()) } else { Err(Malformed) }
}

struct Walk {
    version: i16,
    /// Elements that may still come.
    elements: usize,
}

impl Walk {
    fn parts(&mut self, rest: &mut &[u8], parts: &[Part]) -> Result<(), Malformed> {
        parts.iter().try_for_each(|part| self.part(rest, part))
    }

    fn part(&mut self, rest: &mut &[u8], part: &Part) -> Result<(), Malformed> {
        match part {
            Fixed(bytes) => skip(rest, *bytes),
            Text => {
                let bytes = length(rest.try_get_i16().ok().map(i32::from))?;
                if bytes > MAX_STRING_BYTES { Err(Malformed) } else { skip(rest, bytes) }
            }
            Blob => {
                let bytes = length(rest.try_get_i32().ok())?;
                skip(rest, bytes)
            }
            Each(parts) => {
                let count = length(rest.try_get_i32().ok())?;
                self.elements = self.elements.checked_sub(count).ok_or(Malformed)?;
                (0..count).try_for_each(|_| self.parts(rest, parts))
            }
            Since(version, part) if *version <= self.version => self.part(rest, part),
            Since(..) => Ok(()),
        }
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

fn skip(rest: &mut &[u8], bytes: usize) -> Result<(), Malformed> {
    *rest = rest.get(bytes..).ok_or(Malformed)?;
    Ok(())
}
