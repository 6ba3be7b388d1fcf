//! Frames: a length of four bytes, and that many more.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::{messages::ResponseHeader, protocol::Encodable};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::{Semaphore, SemaphorePermit},
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

/// The first part of a frame. It waits for nothing, so that long requests never hold up short ones.
/// Each further part is as long as all before it, so announcing a long frame costs next to nothing.
const PART_BYTES: usize = 1 << 10;

/// The memory of frames that are being read, on all connections, but for the first part of each.
#[derive(Debug)]
pub(super) struct Memory {
    /// The longest frame.
    max_bytes: usize,
    /// Bytes of parts that have come in, or are the next to come in.
    shared_bytes: usize,
    shared: Semaphore,
    /// Memory for one frame of any length, so that one continues when the rest is used up.
    last: Semaphore,
}

impl Memory {
    pub(super) fn new(shared_bytes: usize, max_bytes: usize) -> Self {
        Self {
            max_bytes,
            shared_bytes,
            shared: Semaphore::new(shared_bytes),
            last: Semaphore::new(1),
        }
    }

    /// Returns the shared bytes that are in use.
    pub(super) fn used(&self) -> u64 {
        (self.shared_bytes - self.shared.available_permits()) as u64
    }

    /// Waits until there is memory for this many bytes, or for all the rest of a frame.
    async fn take(&self, bytes: usize) -> (SemaphorePermit<'_>, bool) {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (permit, is_last) = tokio::select! {
            biased;
            permit = self.shared.acquire_many(permits) => (permit, false),
            permit = self.last.acquire() => (permit, true),
        };
        (permit.expect("it is never closed"), is_last)
    }
}

/// Reads a frame after its first byte, at which its time begins. Calls `use_it` before it releases
/// the frame's memory.
pub(super) async fn read<T>(
    from: &mut (impl AsyncRead + Unpin),
    first: u8,
    memory: &Memory,
    use_it: impl FnOnce(Bytes) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let mut length = [first, 0, 0, 0];
    from.read_exact(&mut length[1..]).await.map_err(|_| Refusal::Frame)?;
    let length = usize::try_from(i32::from_be_bytes(length)).map_err(|_| Refusal::Frame)?;
    if !(MIN_FRAME_BYTES..=memory.max_bytes).contains(&length) {
        return Err(Refusal::Frame);
    }
    let (mut frame, mut shares, mut has_all) = (Vec::new(), Vec::new(), false);
    while frame.len() < length {
        let part = PART_BYTES.max(frame.len()).min(length - frame.len());
        if !has_all && !frame.is_empty() {
            let (share, is_last) = memory.take(part).await;
            shares.push(share);
            has_all = is_last;
        }
        frame.reserve_exact(part);
        let mut part = (&mut frame).limit(part);
        while part.has_remaining_mut() {
            if from.read_buf(&mut part).await.unwrap_or(0) == 0 {
                return Err(Refusal::Frame);
            }
        }
    }
    use_it(frame.into())
}

/// Remaining bytes of an answer that repeats data of clients: a short request may name the same
/// thing many times.
pub(super) struct Room(usize);

impl Room {
    pub(super) fn new() -> Self {
        Self(MAX_ANSWER_BYTES)
    }

    /// Makes an item, or refuses it and all later ones, if there is not enough.
    pub(super) fn fit<T: Encodable>(
        &mut self,
        version: i16,
        item: impl FnOnce() -> T,
        refused: impl FnOnce() -> T,
    ) -> T {
        let item = (self.0 > 0).then(item);
        let bytes = item.as_ref().and_then(|item| item.compute_size(version).ok());
        self.0 = bytes.map_or(0, |bytes| self.0.saturating_sub(bytes));
        item.filter(|_| self.0 > 0).unwrap_or_else(refused)
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
    use fastrand::Rng;
    use futures::{FutureExt, StreamExt, future, stream::FuturesUnordered};
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LONGEST: usize = 16 << 10;

    /// Steps after which the test closes the connection of an incomplete frame.
    const PATIENCE: usize = 20;

    /// Returns the next result, if there is one without more input. Its futures yield at times.
    fn next<F: Future>(reads: &mut FuturesUnordered<F>) -> Option<F::Output> {
        (0..8).find_map(|_| reads.next().now_or_never()).flatten()
    }

    struct Peer {
        to: DuplexStream,
        began: usize,
        /// The step in which the test closes its connection. A fair frame must be whole before.
        end: usize,
        left: usize,
        /// Whether it sends all of its frame at once. Others never do.
        is_fair: bool,
        reading: future::AbortHandle,
    }

    /// Only futures that were woken are polled, so a lost wake-up is noticed.
    #[test]
    fn a_frame_that_is_sent_is_read_whatever_others_claim_send_and_close() {
        for seed in 0..30 {
            let mut random = Rng::with_seed(seed);
            let memory = &Memory::new(4 << 10, LONGEST);
            let (mut reads, mut peers, mut fair) = (FuturesUnordered::new(), Vec::new(), 0);
            for step in 0..1_000 {
                let longest = if random.bool() { PART_BYTES } else { LONGEST };
                let length = random.usize(MIN_FRAME_BYTES..=longest);
                let (mut to, mut from) = duplex(LONGEST);
                to.write_u32(u32::try_from(length).unwrap()).now_or_never().unwrap().unwrap();
                let (read, reading) = future::abortable(async move {
                    let first = from.read_u8().await.unwrap();
                    read(&mut from, first, memory, Ok).await.is_ok()
                });
                reads.push(read.map(move |is_read| (step, is_read == Ok(true))));
                let is_fair = random.u8(..4) == 0;
                let waits = length.div_ceil(PART_BYTES).next_power_of_two().ilog2() as usize;
                let end = step + PATIENCE * if is_fair { waits } else { 1 };
                peers.push(Peer { to, began: step, end, left: length, is_fair, reading });
                peers.retain_mut(|peer: &mut Peer| {
                    let most =
                        if peer.is_fair { peer.left } else { random.usize(..=peer.left / 2) };
                    let sent = peer.to.write(&[0; LONGEST][..most]).now_or_never();
                    peer.left -= sent.map_or(0, Result::unwrap);
                    let is_over = random.u8(..20) == 0 || step == peer.end;
                    if !peer.is_fair && is_over && random.bool() {
                        peer.reading.abort();
                    }
                    peer.is_fair || !is_over
                });
                while let Some((began, is_read)) = next(&mut reads) {
                    fair += usize::from(is_read);
                    peers.retain(|peer| {
                        assert!(peer.began != began || peer.is_fair == is_read);
                        peer.began != began
                    });
                }
                let is_late = |peer: &&Peer| peer.is_fair && step >= peer.end;
                assert_eq!(peers.iter().filter(is_late).count(), 0, "seed {seed}");
            }
            peers.clear();
            while next(&mut reads).is_some() {}
            let left = (reads.len(), memory.used(), memory.last.available_permits());
            assert_eq!(left, (0, 0, 1), "all ends are noticed");
            assert!(fair > 100, "{fair} frames were read");
        }
    }
}
