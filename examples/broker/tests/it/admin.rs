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
    let client = &mut Client::connect(server.address()).await;
    in_every_version(client, |_| produce(0, 1, 1), None).await;
    in_every_version(client, |_| fetch(&[0], 1, 0), None).await;
    in_every_version(client, |_| metadata(&[TOPIC], true), None).await;
    let partition = ListOffsetsPartition::default().with_timestamp(-1);
    let topic = ListOffsetsTopic::default().with_name(name(TOPIC)).with_partitions(vec![partition]);
    let list = ListOffsetsRequest::default().with_topics(vec![topic]);
    in_every_version(client, |_| list.clone(), None).await;
    assert_eq!(client.call_in(6, &list).await.topics[0].partitions[0].offset, 9, "readable");
    let init = InitProducerIdRequest::default().with_transactional_id(None);
    in_every_version(client, |_| init.clone(), None).await;
    let transaction = init.clone().with_transactional_id(Some(TransactionalId(text("any"))));
    let refused = Some(ResponseError::TransactionalIdAuthorizationFailed);
    in_every_version(client, |_| transaction.clone(), refused).await;
    let topic = |version| create(&format!("topic-{version}"), 3);
    let create = |version| CreateTopicsRequest::default().with_topics(vec![topic(version)]);
    in_every_version(client, create, None).await;
    let topic = |version: i16| {
        let count = i32::from(version) + 4;
        CreatePartitionsTopic::default().with_name(name("topic-7")).with_count(count)
    };
    let grow = |version| CreatePartitionsRequest::default().with_topics(vec![topic(version)]);
    in_every_version(client, grow, None).await;
    let listed = client.call_in(12, &metadata(&["topic-7"], false)).await;
    assert_eq!(listed.topics[0].partitions.len(), 7);
    in_every_version(client, |_| grow(3), Some(ResponseError::InvalidPartitions)).await;
    let elsewhere = CreatePartitionsAssignment::default().with_broker_ids(vec![BrokerId(10)]);
    let topic = topic(9).with_assignments(Some(vec![elsewhere]));
    let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
    let refused = client.call(&request).await.results[0].error_code;
    assert_eq!(refused, ResponseError::InvalidReplicaAssignment.code());
    let partition = |offset| DeleteRecordsPartition::default().with_offset(offset);
    let records = |offset| {
        let topic = DeleteRecordsTopic::default().with_name(name(TOPIC));
        let topic = topic.with_partitions(vec![partition(offset)]);
        DeleteRecordsRequest::default().with_topics(vec![topic])
    };
    in_every_version(client, |version| records(version.into()), None).await;
    in_every_version(client, |_| records(99), Some(ResponseError::OffsetOutOfRange)).await;
    assert_eq!(client.call_in(0, &records(-1)).await.topics[0].partitions[0].low_watermark, 9);
    // Creation begins with version 2, and deletion with version 1.
    let topic = |version| vec![name(&format!("topic-{}", version + 1))];
    let delete = |version| DeleteTopicsRequest::default().with_topic_names(topic(version));
    in_every_version(client, delete, None).await;
    in_every_version(client, delete, Some(ResponseError::UnknownTopicOrPartition)).await;
    let topic = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text(TOPIC))
        .with_configuration_keys(None);
    let broker = topic.clone().with_resource_type(4).with_resource_name(text("1"));
    let describe = DescribeConfigsRequest::default().with_resources(vec![topic, broker]);
    in_every_version(client, |_| describe.clone(), None).await;
    let described = client.call_in(4, &describe.with_include_synonyms(true)).await.results;
    let setting = described[0].configs.iter().find(|each| &*each.name == "max.message.bytes");
    let synonym = &setting.unwrap().synonyms[0];
    assert_eq!((&*synonym.name, synonym.source), ("message.max.bytes", 4));
    in_every_version(client, |_| DescribeClusterRequest::default(), None).await;
    let described = client.call_in(1, &DescribeClusterRequest::default()).await;
    let listed = client.call_in(12, &metadata(&[TOPIC], true)).await;
    assert_eq!(listed.cluster_id, Some(described.cluster_id), "clients need it");
}

#[tokio::test]
async fn a_topic_is_created_with_the_settings_that_all_have_or_refused_with_a_reason() {
    let server = start(Config { max_topics: 5, ..config() }).await;
    let client = &mut Client::connect(server.address()).await;
    let with = |topic: &str, setting: &str, value: Option<&str>| {
        let setting = CreatableTopicConfig::default().with_name(text(setting));
        create(topic, 1).with_configs(vec![setting.with_value(value.map(text))])
    };
    for (topic, error) in [
        (create(TOPIC, 1), Some(ResponseError::TopicAlreadyExists)),
        (create("in/valid", 1), Some(ResponseError::InvalidTopicException)),
        (create("none", 0), Some(ResponseError::InvalidPartitions)),
        (create("huge", i32::MAX), Some(ResponseError::PolicyViolation)),
        (create("x", 1).with_replication_factor(3), Some(ResponseError::InvalidReplicationFactor)),
        (with("x", "cleanup.policy", Some("compact")), Some(ResponseError::InvalidConfig)),
        (with("x", "retention.ms", Some("1000")), Some(ResponseError::InvalidConfig)),
        (with("x", "segment.bytes", Some("1000")), Some(ResponseError::InvalidConfig)),
        (with("a", "cleanup.policy", Some("delete")), None),
        (with("b", "retention.ms", Some("-1")), None),
        (with("c", "max.message.bytes", Some("1048576")), None),
        (with("d", "retention.bytes", None), None),
        (create("e", 1), Some(ResponseError::PolicyViolation)),
    ] {
        let setting = topic.configs.first().map(|setting| setting.name.to_string());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        // The first is only checked.
        for request in [request.clone().with_validate_only(true), request] {
            let created = &client.call_in(7, &request).await.topics[0];
            assert_eq!(created.error_code, error.map_or(0, |error| error.code()), "{setting:?}");
            let message = created.error_message.as_ref();
            assert_eq!(message.is_some(), error.is_some(), "null, not empty: {message:?}");
            assert!(message.is_none_or(|text| text.contains(setting.as_deref().unwrap_or(" "))));
        }
    }
}

#[tokio::test]
async fn metadata_creates_topics_only_if_client_and_broker_allow_it() {
    let topics = vec![("words".to_owned(), 3)];
    for (no_auto_create, created) in
        [(false, 0), (true, ResponseError::UnknownTopicOrPartition.code())]
    {
        let server = start(Config { topics: topics.clone(), no_auto_create, ..config() }).await;
        let client = &mut Client::connect(server.address()).await;
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
    let (server, _clock) = virtual_broker(HOUR).await;
    let mut consumer = waiting_client(&server, &fetch(&[0], 1, HOUR_MS)).await;
    let mut producer = waiting_client(&server, &produce(0, -1, 1)).await;
    let request = DeleteTopicsRequest::default().with_topic_names(vec![name(TOPIC)]);
    let deleted = Client::connect(server.address()).await.call_in(5, &request).await;
    assert_eq!(deleted.responses[0].error_code, 0);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(codes(&consumer.receive::<FetchRequest>().await), [unknown]);
    assert_eq!(outcome(&producer.receive::<ProduceRequest>().await).error_code, unknown);
}
