//! Input that is not what the protocol allows: an error or a closed connection, and nothing worse.

use bytes::{BufMut, BytesMut};
use delaywheel_broker::broker::Server;
use kafka_protocol::{
    ResponseError,
    messages::{
        AddOffsetsToTxnRequest, ApiKey, ApiVersionsRequest, FetchRequest, MetadataRequest,
        metadata_request::MetadataRequestTopic,
    },
};

use crate::harness::{
    HOUR_MS, METADATA_VERSION, Raw, fetch, frame, name, produce, system_broker, until,
};

/// Sends bytes on a connection of their own, and returns what comes back until it is closed.
async fn answer(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut client = Raw::connect(server).await;
    client.send_bytes(bytes).await;
    client.receive_rest().await
}

async fn assert_serving(server: &Server) {
    assert_eq!(Raw::connect(server).await.produce(0, 1, 1).await, 0);
}

#[tokio::test]
async fn a_connection_with_a_bad_frame_is_closed_and_others_are_served() {
    let server = system_broker().await;
    let mut bad: Vec<BytesMut> = Vec::new();
    for length in [i32::MIN, -1, 0, 7, (100 << 20) + 1, i32::MAX] {
        bad.push(BytesMut::from(&length.to_be_bytes()[..]));
    }
    // Requests that are not known, or not in that version.
    bad.push(frame(1, 0, &AddOffsetsToTxnRequest::default()));
    bad.push(frame(1, 13, &FetchRequest::default()));
    let mut unknown = frame(1, 4, &FetchRequest::default());
    unknown[4..6].copy_from_slice(&999_i16.to_be_bytes());
    bad.push(unknown);
    // More elements than there can be.
    let mut endless = BytesMut::new();
    endless.put_i32(14);
    endless.put_i16(ApiKey::Metadata as i16);
    endless.put_i16(1);
    endless.put_i32(1);
    endless.put_i16(-1);
    endless.put_i32(i32::MAX);
    bad.push(endless);
    let count = bad.len() as u64;
    for bytes in bad {
        assert!(answer(&server, &bytes).await.is_empty(), "{bytes:?}");
    }
    assert_eq!(server.broker().counts().rejected, count);
    assert_serving(&server).await;
}

#[tokio::test]
async fn a_frame_that_is_cut_off_anywhere_ends_the_connection() {
    let server = system_broker().await;
    let whole = frame(1, 11, &fetch(&[0, 1], 1, HOUR_MS));
    for length in 1..whole.len() {
        let mut client = Raw::connect(&server).await;
        client.send_bytes(&whole[..length]).await;
        client.finish().await;
        assert!(client.receive_rest().await.is_empty(), "{length}");
    }
    assert_eq!(server.broker().counts().fetches, 0);
    assert_serving(&server).await;
}

#[tokio::test]
async fn a_client_that_is_too_new_is_told_what_there_is() {
    let server = system_broker().await;
    let mut client = Raw::connect(&server).await;
    let mut asked = frame(7, 3, &ApiVersionsRequest::default());
    asked[6..8].copy_from_slice(&99_i16.to_be_bytes());
    client.send_bytes(&asked).await;
    let (id, response) = client.receive::<ApiVersionsRequest>(0).await;
    assert_eq!((id, response.error_code), (7, ResponseError::UnsupportedVersion.code()));
    assert!(response.api_keys.iter().any(|offered| offered.api_key == ApiKey::Fetch as i16));
    // The connection is good for another try.
    assert_eq!(client.call(3, &ApiVersionsRequest::default()).await.error_code, 0);
    let response = Raw::connect(&server).await.call(3, &ApiVersionsRequest::default()).await;
    assert_eq!((response.error_code, response.api_keys.len()), (0, 20));
}

#[tokio::test]
async fn topics_are_made_only_if_asked_for_and_well_named() {
    let server = system_broker().await;
    let mut client = Raw::connect(&server).await;
    let ask = |topic: &str, creates| {
        let topic = MetadataRequestTopic::default().with_name(Some(name(topic)));
        MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(creates)
    };
    for (topic, creates, code) in [
        ("new", false, ResponseError::UnknownTopicOrPartition.code()),
        ("in/valid", true, ResponseError::InvalidTopicException.code()),
        ("new", true, 0),
        ("new", false, 0),
    ] {
        let response = client.call(METADATA_VERSION, &ask(topic, creates)).await;
        assert_eq!(response.topics[0].error_code, code, "{topic}");
    }
}

#[tokio::test]
async fn garbage_is_answered_or_cut_off_and_leaves_nothing() {
    let server = system_broker().await;
    let good = [frame(1, 11, &fetch(&[0, 1], 1, HOUR_MS)), frame(1, 8, &produce(0, -1, 2))];
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..300 {
        let mut bytes = good[random.usize(..good.len())].to_vec();
        for _ in 0..random.usize(1..6) {
            let index = random.usize(4..bytes.len());
            bytes[index] = random.u8(..);
        }
        let mut client = Raw::connect(&server).await;
        client.send_bytes(&bytes).await;
        client.finish().await;
        client.receive_rest().await;
    }
    until("the connections' end", || server.broker().counts().connections == 0).await;
    let (fetches, produces) = (server.broker().fetches().0, server.broker().produces().0);
    assert_eq!((fetches.watched, fetches.panicked, produces.watched), (0, 0, 0));
    assert_serving(&server).await;
}
