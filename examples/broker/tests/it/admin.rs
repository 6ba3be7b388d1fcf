//! Topics made and deleted, idempotent producers, refusals, and every version of their requests.

use bytes::Bytes;
use delaywheel_broker::broker::Config;
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, ApiVersionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
        DescribeClusterRequest, DescribeConfigsRequest, FetchRequest, InitProducerIdRequest,
        ListOffsetsRequest, MetadataRequest, ProduceRequest, TopicName, TransactionalId,
        create_topics_request::{CreatableTopic, CreatableTopicConfig},
        describe_configs_request::DescribeConfigsResource,
        fetch_request::FetchPartition,
        list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
        metadata_request::MetadataRequestTopic,
    },
};

use crate::harness::{
    HOUR_MS, PRODUCE_VERSION, Raw, TOPIC, config, data, fetch, in_every_version, name, outcome,
    produce, record_batch, soon, start, system_broker, text, until_fetches_wait,
    until_produces_wait, virtual_broker,
};

#[tokio::test]
async fn librdkafka_is_told_of_the_version_that_it_looks_for_before_it_compresses() {
    let server = system_broker().await;
    let offered = Raw::connect(&server).await.call(3, &ApiVersionsRequest::default()).await;
    let produce = offered.api_keys.iter().find(|key| key.api_key == ApiKey::Produce as i16);
    assert_eq!(produce.unwrap().min_version, 0);
}

#[tokio::test]
async fn records_are_produced_found_and_fetched_in_every_version() {
    let server = system_broker().await;
    let client = &mut Raw::connect(&server).await;
    in_every_version::<ProduceRequest>(
        client,
        |_| produce(0, -1, 1),
        |version, response| assert_eq!(outcome(&response).error_code, 0, "version {version}"),
    )
    .await;
    in_every_version::<FetchRequest>(
        client,
        |_| fetch(&[0], 1, 0),
        |_, response| assert_eq!((data(&response)[0].error_code, data(&response).len()), (0, 1)),
    )
    .await;
    in_every_version::<ListOffsetsRequest>(
        client,
        |_| {
            let partition = ListOffsetsPartition::default().with_timestamp(-1);
            let topic =
                ListOffsetsTopic::default().with_name(name(TOPIC)).with_partitions(vec![partition]);
            ListOffsetsRequest::default().with_topics(vec![topic])
        },
        |_, response| assert_eq!(response.topics[0].partitions[0].offset, 9),
    )
    .await;
    in_every_version::<MetadataRequest>(
        client,
        |_| {
            let topic = MetadataRequestTopic::default().with_name(Some(name(TOPIC)));
            MetadataRequest::default().with_topics(Some(vec![topic]))
        },
        |version, response| {
            assert_eq!(response.topics[0].partitions.len(), 4);
            assert_eq!(response.cluster_id.is_some(), version >= 2, "clients need an id");
        },
    )
    .await;
}

fn create(name: &'static str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(TopicName(text(name)))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
}

#[tokio::test]
async fn topics_are_made_and_deleted_in_every_version() {
    let server = system_broker().await;
    let client = &mut Raw::connect(&server).await;
    let exists = ResponseError::TopicAlreadyExists.code();
    in_every_version::<CreateTopicsRequest>(
        client,
        |_| CreateTopicsRequest::default().with_topics(vec![create("made", 3)]),
        |version, response| {
            let expected = if version == 2 { 0 } else { exists };
            assert_eq!(response.topics[0].error_code, expected);
        },
    )
    .await;
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    in_every_version::<DeleteTopicsRequest>(
        client,
        |_| DeleteTopicsRequest::default().with_topic_names(vec![TopicName(text("made"))]),
        |version, response| {
            let expected = if version == 1 { 0 } else { unknown };
            assert_eq!(response.responses[0].error_code, expected);
        },
    )
    .await;
    in_every_version::<DescribeConfigsRequest>(
        client,
        |_| {
            let topic = DescribeConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text(TOPIC))
                .with_configuration_keys(None);
            let broker = topic.clone().with_resource_type(4).with_resource_name(text("1"));
            DescribeConfigsRequest::default().with_resources(vec![topic, broker])
        },
        |_, response| {
            for result in &response.results {
                assert!(result.error_code == 0 && result.configs.len() > 5);
            }
        },
    )
    .await;
    in_every_version::<DescribeClusterRequest>(
        client,
        |_| DescribeClusterRequest::default(),
        |_, response| assert!(response.brokers.len() == 1 && !response.cluster_id.is_empty()),
    )
    .await;
}

#[tokio::test]
async fn a_topic_that_cannot_be_made_is_refused_with_a_reason() {
    let server = start(Config { max_topics: 2, ..config() }).await;
    let client = &mut Raw::connect(&server).await;
    let setting = CreatableTopicConfig::default().with_name(text("cleanup.policy"));
    for (topic, error) in [
        (create(TOPIC, 1), ResponseError::TopicAlreadyExists),
        (create("in/valid", 1), ResponseError::InvalidTopicException),
        (create("none", 0), ResponseError::InvalidPartitions),
        (create("huge", i32::MAX), ResponseError::PolicyViolation),
        (create("three", 1).with_replication_factor(3), ResponseError::InvalidReplicationFactor),
        (create("compact", 1).with_configs(vec![setting]), ResponseError::InvalidConfig),
    ] {
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        let response = client.call(7, &request).await;
        assert_eq!(response.topics[0].error_code, error.code());
        assert!(response.topics[0].error_message.as_ref().is_some_and(|text| !text.is_empty()));
    }
    let request = CreateTopicsRequest::default()
        .with_topics(vec![create("validated", 3)])
        .with_validate_only(true);
    for _ in 0..2 {
        assert_eq!(client.call(7, &request).await.topics[0].error_code, 0, "nothing is made");
    }
}

#[tokio::test]
async fn deleting_a_topic_ends_the_requests_that_wait_for_it() {
    let (server, _clock) = virtual_broker().await;
    server.broker().stop_follower();
    let (mut consumer, mut producer) = (Raw::connect(&server).await, Raw::connect(&server).await);
    consumer.send(11, &fetch(&[0], 1, HOUR_MS)).await;
    producer.send(PRODUCE_VERSION, &produce(0, -1, 1)).await;
    until_fetches_wait(&server, 1).await;
    until_produces_wait(&server, 1).await;
    let request = DeleteTopicsRequest::default().with_topic_names(vec![name(TOPIC)]);
    assert_eq!(Raw::connect(&server).await.call(5, &request).await.responses[0].error_code, 0);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(data(&consumer.receive_fetch().await)[0].error_code, unknown);
    let (_, response) = producer.receive::<ProduceRequest>(PRODUCE_VERSION).await;
    assert_eq!(outcome(&response).error_code, unknown);
}

/// A batch of an idempotent producer.
fn batch(producer_id: i64, first: i32, count: i32) -> Bytes {
    record_batch(producer_id, first..first + count, &Bytes::from_static(b"value"))
}

async fn send(client: &mut Raw, records: Bytes) -> (i16, i64) {
    let mut request = produce(0, -1, 1);
    request.topic_data[0].partition_data[0].records = Some(records);
    let response = client.call(PRODUCE_VERSION, &request).await;
    (outcome(&response).error_code, outcome(&response).base_offset)
}

#[tokio::test]
async fn a_batch_that_comes_again_is_answered_as_before_and_appended_once() {
    let server = system_broker().await;
    let client = &mut Raw::connect(&server).await;
    let asked = InitProducerIdRequest::default().with_transactional_id(None);
    let id = client.call(4, &asked).await.producer_id.0;
    assert_eq!(send(client, batch(id, 0, 3)).await, (0, 0));
    assert_eq!(send(client, batch(id, 0, 3)).await, (0, 0));
    assert_eq!(send(client, batch(id, 3, 2)).await, (0, 3));
    let gap = ResponseError::OutOfOrderSequenceNumber.code();
    assert_eq!(send(client, batch(id, 6, 1)).await, (gap, -1));
    assert_eq!(send(client, batch(id, 5, 1)).await, (0, 5));
    let counts = server.broker().counts();
    assert_eq!((counts.records, counts.duplicates), (6, 1));
}

#[tokio::test]
async fn ids_of_producers_are_handed_out_in_every_version_and_transactions_are_refused() {
    let server = system_broker().await;
    let client = &mut Raw::connect(&server).await;
    in_every_version::<InitProducerIdRequest>(
        client,
        |_| InitProducerIdRequest::default().with_transactional_id(None),
        |_, response| assert!(response.error_code == 0 && response.producer_id.0 >= 0),
    )
    .await;
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(text("transaction"))));
    let refused = ResponseError::TransactionalIdAuthorizationFailed.code();
    assert_eq!(client.call(4, &request).await.error_code, refused);
}

#[tokio::test]
async fn a_batch_over_the_limit_is_refused_and_the_connection_goes_on() {
    let server = start(Config { common_frame_bytes: 1_000, ..config() }).await;
    let client = &mut Raw::connect(&server).await;
    let too_large = ResponseError::MessageTooLarge.code();
    let large = Bytes::from(vec![0; (1 << 20) + 1]);
    assert_eq!(send(client, large).await, (too_large, -1));
    assert_eq!(client.produce(0, 1, 1).await, 0);
    assert_eq!(server.broker().counts().rejected, 0);
}

#[tokio::test]
async fn a_fetch_of_too_many_partitions_is_refused_and_the_connection_goes_on() {
    let server = system_broker().await;
    let client = &mut Raw::connect(&server).await;
    let mut request = fetch(&[0], 1, 0);
    request.topics[0].partitions = vec![FetchPartition::default(); 5_000];
    let response = client.call(11, &request).await;
    assert_eq!(response.error_code, ResponseError::InvalidRequest.code());
    assert_eq!(client.produce(0, 1, 1).await, 0);
}

#[tokio::test]
async fn the_oldest_records_make_room_for_others() {
    let server = start(Config { max_stored_bytes: 10_000, ..config() }).await;
    let client = &mut Raw::connect(&server).await;
    for _ in 0..300 {
        for partition in 0..4 {
            assert_eq!(client.produce(partition, 1, 1).await, 0);
        }
    }
    for partition in 0..4 {
        let response = client.fetch(&fetch(&[partition], 1, 0)).await;
        assert_eq!(data(&response)[0].error_code, ResponseError::OffsetOutOfRange.code());
    }
}

#[tokio::test]
async fn topics_are_made_at_the_start_and_only_then_if_clients_may_not() {
    let topics = vec![("words".to_owned(), 3)];
    let config = Config { topics, creates_topics: false, ..config() };
    let server = delaywheel_broker::broker::Server::start("localhost:0", config).await.unwrap();
    let client = &mut Raw::connect(&server).await;
    let ask = |topic| {
        let topic = MetadataRequestTopic::default().with_name(Some(name(topic)));
        MetadataRequest::default().with_topics(Some(vec![topic]))
    };
    assert_eq!(client.call(8, &ask("words")).await.topics[0].partitions.len(), 3);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(client.call(8, &ask("others")).await.topics[0].error_code, unknown);
    soon(server.shutdown()).await;
    let twice = vec![("words".to_owned(), 3), ("words".to_owned(), 1)];
    let config = Config { topics: twice, ..Config::default() };
    let error = delaywheel_broker::broker::Server::start("localhost:0", config).await.unwrap_err();
    assert!(error.to_string().contains("words:1"), "{error}");
}
