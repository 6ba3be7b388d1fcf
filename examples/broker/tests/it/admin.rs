//! Every version of every request, and the limits of topics, records and answers.

use crate::prelude::*;

fn create(topic: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
}

#[tokio::test]
async fn requests_about_topics_are_answered_in_every_version() {
    let server = system_broker().await;
    let client = &mut Raw::connect(&server).await;
    in_every_version(client, |_| produce(0, -1, 1), None).await;
    in_every_version(client, |_| fetch(&[0], 1, 0), None).await;
    in_every_version(client, |_| metadata(&[TOPIC], true), None).await;
    let partition = ListOffsetsPartition::default().with_timestamp(-1);
    let topic = ListOffsetsTopic::default().with_name(name(TOPIC)).with_partitions(vec![partition]);
    let list = ListOffsetsRequest::default().with_topics(vec![topic]);
    in_every_version(client, |_| list.clone(), None).await;
    assert_eq!(client.call_in(6, &list).await.topics[0].partitions[0].offset, 9, "one a version");
    let init = InitProducerIdRequest::default().with_transactional_id(None);
    in_every_version(client, |_| init.clone(), None).await;
    let topic = |version| create(&format!("topic-{version}"), 3);
    let create = |version| CreateTopicsRequest::default().with_topics(vec![topic(version)]);
    in_every_version(client, create, None).await;
    // Creation begins with version 2, and deletion with version 1.
    let topic = |version| vec![name(&format!("topic-{}", version + 1))];
    let delete = |version| DeleteTopicsRequest::default().with_topic_names(topic(version));
    in_every_version(client, delete, None).await;
    let unknown = Some(ResponseError::UnknownTopicOrPartition);
    in_every_version(client, delete, unknown).await;
    let topic = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text(TOPIC))
        .with_configuration_keys(None);
    let broker = topic.clone().with_resource_type(4).with_resource_name(text("1"));
    let describe = DescribeConfigsRequest::default().with_resources(vec![topic, broker]);
    in_every_version(client, |_| describe.clone(), None).await;
    in_every_version(client, |_| DescribeClusterRequest::default(), None).await;
    let described = client.call_in(1, &DescribeClusterRequest::default()).await;
    let listed = client.call_in(12, &metadata(&[TOPIC], true)).await;
    assert_eq!(listed.cluster_id, Some(described.cluster_id), "clients need it");
}

#[tokio::test]
async fn a_topic_that_cannot_be_created_is_refused_with_a_reason() {
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
        let response = client.call_in(7, &request).await;
        assert_eq!(response.topics[0].error_code, error.code());
        assert!(response.topics[0].error_message.as_ref().is_some_and(|text| !text.is_empty()));
    }
    let request = CreateTopicsRequest::default()
        .with_topics(vec![create("validated", 3)])
        .with_validate_only(true);
    for _ in 0..2 {
        assert_eq!(client.call_in(7, &request).await.topics[0].error_code, 0, "it is only checked");
    }
}

#[tokio::test]
async fn metadata_creates_topics_only_if_client_and_broker_allow_it() {
    let topics = vec![("words".to_owned(), 3)];
    for (no_auto_create, created) in
        [(false, 0), (true, ResponseError::UnknownTopicOrPartition.code())]
    {
        let server = start(Config { topics: topics.clone(), no_auto_create, ..config() }).await;
        let client = &mut Raw::connect(&server).await;
        for (topic, creates, code) in [
            ("words", false, 0),
            ("new", false, ResponseError::UnknownTopicOrPartition.code()),
            ("in/valid", false, ResponseError::InvalidTopicException.code()),
            ("new", true, created),
            ("new", false, created),
        ] {
            let response = client.call(&metadata(&[topic], creates)).await;
            assert_eq!(response.topics[0].error_code, code, "{topic}");
        }
        soon(server.shutdown()).await;
    }
    let topics = vec![("words".to_owned(), 3), ("words".to_owned(), 1)];
    let error = Server::start("localhost:0", Config { topics, ..config() }).await.unwrap_err();
    assert!(error.to_string().contains("words:1"), "{error}");
}

#[tokio::test]
async fn deleting_a_topic_ends_the_requests_that_wait_for_it() {
    let (server, _clock) = stopped_broker().await;
    let mut consumer = Raw::waiting(&server, &fetch(&[0], 1, HOUR_MS)).await;
    let mut producer = Raw::waiting(&server, &produce(0, -1, 1)).await;
    let request = DeleteTopicsRequest::default().with_topic_names(vec![name(TOPIC)]);
    assert_eq!(Raw::connect(&server).await.call_in(5, &request).await.responses[0].error_code, 0);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(codes(&consumer.receive::<FetchRequest>().await), [unknown]);
    assert_eq!(outcome(&producer.receive::<ProduceRequest>().await).error_code, unknown);
}

#[tokio::test]
async fn requests_over_a_limit_are_refused_and_the_connection_goes_on() {
    let server = start(Config { common_frame_bytes: 1_000, ..config() }).await;
    let client = &mut Raw::connect(&server).await;
    let large = vec![0; (1 << 20) + 1].into();
    let response = client.call(&produce_records(-1, large)).await;
    assert_eq!(outcome(&response).error_code, ResponseError::MessageTooLarge.code());
    let mut request = fetch(&[0], 1, 0);
    request.topics[0].partitions = vec![FetchPartition::default(); 5_000];
    let response = client.call(&request).await;
    assert_eq!(response.error_code, ResponseError::InvalidRequest.code());
    assert_eq!(client.produce(0, 1, 1).await, 0);
    assert_eq!(server.broker().stats().counts.rejected, 0);
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
    let response = client.call(&fetch(&[0, 1, 2, 3], 1, 0)).await;
    assert_eq!(codes(&response), [ResponseError::OffsetOutOfRange.code(); 4]);
}

#[tokio::test]
async fn an_answer_that_repeats_topics_is_bounded() {
    let topics = vec![("wide".to_owned(), 1_000)];
    let server = start(Config { topics, ..config() }).await;
    let client = &mut Raw::connect(&server).await;
    let response = client.call(&metadata(&vec!["wide"; 3_000], false)).await;
    let refused = ResponseError::PolicyViolation.code();
    let codes: Vec<_> = response.topics.iter().map(|topic| topic.error_code).collect();
    // A partition takes 34 bytes.
    let described = (16 << 20) / 34_000;
    assert!(codes[..described].iter().all(|&code| code == 0));
    assert!(codes[described..].iter().all(|&code| code == refused));
}
