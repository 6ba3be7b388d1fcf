//! Frames: a length of four bytes, and that many more.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::{
    messages::{ApiKey, ResponseHeader},
    protocol::Encodable,
};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::request::{Header, Malformed};

/// Bytes of a frame's length.
const LENGTH_BYTES: usize = 4;

/// The shortest request: key, version, correlation id.
const MIN_FRAME_BYTES: usize = 8;

/// Memory that is set aside for what is read next. A frame's buffer grows as its bytes come in, so
/// that announcing a long frame costs nothing.
const READ_BYTES: usize = 8 << 10;

/// Reads a frame; `None` if the connection has been closed after the last one.
pub(super) async fn read(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    max_bytes: usize,
) -> Result<Option<Bytes>, Malformed> {
    loop {
        if let Some(frame) = split(buffer, max_bytes)? {
            return Ok(Some(frame));
        }
        buffer.reserve(READ_BYTES);
        match from.read_buf(buffer).await {
            Ok(0) | Err(_) if buffer.is_empty() => return Ok(None),
            Ok(0) | Err(_) => return Err(Malformed),
            Ok(_) => {}
        }
    }
}

/// Takes the first frame out of a buffer; `None` if it is not there in full.
fn split(buffer: &mut BytesMut, max_bytes: usize) -> Result<Option<Bytes>, Malformed> {
    let Some(mut length) = buffer.get(..LENGTH_BYTES) else { return Ok(None) };
    let length = usize::try_from(length.get_i32()).map_err(|_| Malformed)?;
    if !(MIN_FRAME_BYTES..=max_bytes).contains(&length) {
        return Err(Malformed);
    }
    if buffer.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Makes the frame of a response.
pub(super) fn encode(
    key: ApiKey,
    header: Header,
    body: &impl Encodable,
) -> Result<BytesMut, Malformed> {
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    ResponseHeader::default()
        .with_correlation_id(header.correlation_id)
        .encode(&mut frame, key.response_header_version(header.version))
        .map_err(|_| Malformed)?;
    body.encode(&mut frame, header.version).map_err(|_| Malformed)?;
    let length = i32::try_from(frame.len() - LENGTH_BYTES).map_err(|_| Malformed)?;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: i32, bytes: usize) -> BytesMut {
        let mut buffer = BytesMut::new();
        buffer.put_i32(length);
        buffer.put_bytes(7, bytes);
        buffer
    }

    #[test]
    fn a_frame_is_taken_once_it_is_there_in_full() {
        for bytes in 0..20 {
            let mut buffer = frame(20, bytes);
            assert_eq!(split(&mut buffer, 100), Ok(None), "{bytes} of 20");
        }
        let mut buffer = frame(20, 25);
        assert_eq!(
            split(&mut buffer, 100).map(|frame| frame.map(|frame| frame.len())),
            Ok(Some(20))
        );
        assert_eq!(buffer.len(), 5);
        assert_eq!(split(&mut BytesMut::from(&[0, 0, 0][..]), 100), Ok(None));
    }

    #[test]
    fn a_length_out_of_bounds_is_malformed_before_its_bytes_come() {
        for length in [i32::MIN, -1, 0, 7, 101, i32::MAX] {
            assert_eq!(split(&mut frame(length, 0), 100), Err(Malformed), "{length}");
        }
    }
}
