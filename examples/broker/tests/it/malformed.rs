//! Input that the protocol does not allow: an error or a closed connection, and nothing worse.

use crate::prelude::*;

/// Sends bytes on a connection of their own. Returns the answer until the connection is closed.
async fn answer(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut client = Client::connect(server.address()).await;
    client.send_bytes(bytes).await;
    client.finish().await;
    client.receive_rest().await
}

#[tokio::test]
async fn a_connection_with_a_bad_frame_is_closed_and_others_are_served() {
    let server = system_broker().await;
    let lengths = [i32::MIN, -1, 0, 7, (100 << 20) + 1, i32::MAX];
    let mut bad: Vec<_> =
        lengths.iter().map(|length| BytesMut::from(&length.to_be_bytes()[..])).collect();
    // An unknown request, and a version that is not on offer.
    bad.push(frame(1, 0, &AddOffsetsToTxnRequest::default()));
    bad.push(frame(1, 13, &FetchRequest::default()));
    let mut unknown = frame(1, 4, &FetchRequest::default());
    unknown[4..6].copy_from_slice(&999_i16.to_be_bytes());
    bad.push(unknown);
    // Metadata, version 1, a correlation id, no client, and an array of an impossible length.
    for elements in [i32::MAX, i32::MAX / 2, 8_001, -2, i32::MIN] {
        let mut metadata = BytesMut::from(&[0, 0, 0, 14, 0, 3, 0, 1, 0, 0, 0, 1, 255, 255][..]);
        metadata.put_i32(elements);
        bad.push(metadata);
    }
    bad.push(frame(1, 1, &metadata(&[&"x".repeat(1_001)], true)));
    bad.push(frame(1, 1, &metadata(&vec![""; 8_001], true)));
    let cut_off = frame(1, 11, &fetch(&[0, 1], 1, HOUR_MS));
    bad.push(BytesMut::from(&cut_off[..cut_off.len() - 1]));
    for bytes in &bad {
        assert!(answer(&server, bytes).await.is_empty(), "{bytes:?}");
    }
    assert_eq!(server.broker().stats().counts.rejected, bad.len() as u64);
    let mut good = Client::connect(server.address()).await;
    assert_eq!(good.call(&metadata(&vec![""; 8_000], true)).await.topics.len(), 8_000);
    assert_eq!(good.produce(0, 1, 1).await, 0);
}

#[tokio::test]
async fn a_client_that_is_too_new_gets_the_list_of_versions() {
    let server = system_broker().await;
    let mut client = Client::connect(server.address()).await;
    let mut request = frame(7, 3, &ApiVersionsRequest::default());
    request[6..8].copy_from_slice(&99_i16.to_be_bytes());
    client.send_bytes(&request).await;
    let (id, response) = client.receive_in::<ApiVersionsRequest>(0).await;
    assert_eq!((id, response.error_code), (7, ResponseError::UnsupportedVersion.code()));
    assert_eq!(response.api_keys.len(), 22);
    // The connection is good for another try.
    assert_eq!(client.call(&ApiVersionsRequest::default()).await.error_code, 0);
}
