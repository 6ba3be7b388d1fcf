//! Frames: a length of four bytes, and that many more.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::{messages::ResponseHeader, protocol::Encodable};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::Semaphore,
};

use super::{
    refusal::Refusal,
    request::{Header, Malformed},
};

/// Bytes of a frame's length.
const LENGTH_BYTES: usize = 4;

/// Bytes that the header of a response takes at most: its correlation id, and no tagged fields.
const MAX_HEADER_BYTES: usize = 5;

/// The longest answer about groups or topics, in bytes. Every group fits.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The shortest request: key, version, correlation id.
const MIN_FRAME_BYTES: usize = 8;

/// Memory reserved for the next read. A frame's buffer grows as its bytes come in, so that
/// announcing a long frame costs nothing.
const READ_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Limits {
    /// The longest frame that is read at any time.
    common_bytes: usize,
    max_bytes: usize,
    /// Bytes of all frames that are longer than common ones. A request that needs more waits for
    /// others.
    large: Semaphore,
}

impl Limits {
    pub(super) fn new(common_bytes: usize, max_bytes: usize) -> Self {
        let max_bytes = max_bytes.max(common_bytes).min(Semaphore::MAX_PERMITS);
        Self { common_bytes, max_bytes, large: Semaphore::new(max_bytes) }
    }
}

/// Reads a frame; `None` if the connection has been closed after the last one. Calls `use_it`
/// before it releases a large frame's share of the memory.
pub(super) async fn read<T>(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    limits: &Limits,
    use_it: impl FnOnce(Bytes) -> Result<T, Refusal>,
) -> Result<Option<T>, Refusal> {
    let Some(length) = read_length(from, buffer, limits.max_bytes).await? else { return Ok(None) };
    let is_large = length > limits.common_bytes;
    let bytes = if is_large { u32::try_from(length).unwrap_or(u32::MAX) } else { 0 };
    let share = limits.large.acquire_many(bytes).await.map_err(|_| Refusal::Frame)?;
    while buffer.len() < length {
        if fill(from, buffer).await == 0 {
            return Err(Refusal::Frame);
        }
    }
    let used = use_it(buffer.split_to(length).freeze());
    if is_large {
        // The buffer has grown for it.
        *buffer = BytesMut::from(&buffer[..]);
    }
    drop(share);
    used.map(Some)
}

async fn read_length(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    max_bytes: usize,
) -> Result<Option<usize>, Refusal> {
    while buffer.len() < LENGTH_BYTES {
        if fill(from, buffer).await == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(Refusal::Frame) };
        }
    }
    let length = usize::try_from(buffer.get_i32()).map_err(|_| Refusal::Frame)?;
    let is_allowed = (MIN_FRAME_BYTES..=max_bytes).contains(&length);
    if is_allowed { Ok(Some(length)) } else { Err(Refusal::Frame) }
}

/// Reads the available bytes. Returns zero at the end.
async fn fill(from: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> usize {
    buffer.reserve(READ_BYTES);
    from.read_buf(buffer).await.unwrap_or(0)
}

/// Remaining bytes of an answer that repeats data of clients: a short request may name the same
/// thing many times.
pub(super) struct Room(usize);

impl Room {
    pub(super) fn new() -> Self {
        Self(MAX_ANSWER_BYTES)
    }

    /// Takes the bytes of an item. Returns whether there was enough.
    pub(super) fn take(&mut self, item: &impl Encodable, version: i16) -> bool {
        let bytes = item.compute_size(version).unwrap_or(usize::MAX);
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

pub(super) fn encode(header: Header, body: &impl Encodable) -> Result<BytesMut, Malformed> {
    let head = ResponseHeader::default().with_correlation_id(header.correlation_id);
    let head_version = header.key.response_header_version(header.version);
    let body_bytes = body.compute_size(header.version).map_err(|_| Malformed)?;
    // Growing step by step would take up to twice the memory.
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + MAX_HEADER_BYTES + body_bytes);
    frame.put_i32(0);
    head.encode(&mut frame, head_version).map_err(|_| Malformed)?;
    body.encode(&mut frame, header.version).map_err(|_| Malformed)?;
    let length = i32::try_from(frame.len() - LENGTH_BYTES).map_err(|_| Malformed)?;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    const LIMITS: (usize, usize) = (50, 100);

    /// Reads frames from these bytes, until they end. Returns their lengths, and the end.
    fn lengths(mut from: &[u8]) -> (Vec<usize>, Result<(), Refusal>) {
        let (limits, mut buffer) = (Limits::new(LIMITS.0, LIMITS.1), BytesMut::new());
        let mut lengths = Vec::new();
        loop {
            let read = read(&mut from, &mut buffer, &limits, |frame| Ok(frame.len()));
            match read.now_or_never().expect("what is in memory can be read at once") {
                Ok(Some(length)) => lengths.push(length),
                Ok(None) => return (lengths, Ok(())),
                Err(refusal) => return (lengths, Err(refusal)),
            }
        }
    }

    fn frame(length: i32, bytes: usize) -> BytesMut {
        let mut buffer = BytesMut::new();
        buffer.put_i32(length);
        buffer.put_bytes(7, bytes);
        buffer
    }

    #[test]
    fn a_frame_is_taken_in_full_and_a_length_out_of_bounds_is_refused_before_its_bytes_come() {
        let frames = [frame(20, 20), frame(100, 100), frame(8, 8)].concat();
        assert_eq!(lengths(&frames), (vec![20, 100, 8], Ok(())));
        let refused = (vec![], Err(Refusal::Frame));
        for bytes in 0..20 {
            assert_eq!(lengths(&frame(20, bytes)), refused, "{bytes} of 20");
        }
        assert_eq!(lengths(&[0, 0, 0]), refused);
        for length in [i32::MIN, -1, 0, 7, 101, i32::MAX] {
            assert_eq!(lengths(&frame(length, 0)), refused, "{length}");
        }
    }

    #[test]
    fn large_frames_wait_for_each_other_and_common_ones_do_not() {
        let limits = Limits::new(LIMITS.0, LIMITS.1);
        let mut first = BytesMut::new();
        let (mut nothing_yet, mut far_end) = tokio::io::duplex(1_000);
        far_end.write_all(&frame(60, 0)).now_or_never().unwrap().unwrap();
        let mut reading = Box::pin(read(&mut nothing_yet, &mut first, &limits, Ok));
        assert!((&mut reading).now_or_never().is_none(), "its bytes are still to come");

        let (large, common) = (frame(60, 60), frame(50, 50));
        let mut buffers = [BytesMut::new(), BytesMut::new()];
        let [one, other] = &mut buffers;
        let (mut large, mut common) = (&large[..], &common[..]);
        let mut waiting = Box::pin(read(&mut large, one, &limits, Ok));
        assert!((&mut waiting).now_or_never().is_none(), "there is no room for both");
        let read = read(&mut common, other, &limits, Ok).now_or_never();
        assert!(matches!(read, Some(Ok(Some(_)))));
        drop(reading);
        assert!(matches!(waiting.now_or_never(), Some(Ok(Some(_)))));
    }
}
