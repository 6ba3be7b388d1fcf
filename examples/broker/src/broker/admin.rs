//! `CreateTopics`, `DeleteTopics`, `DescribeConfigs` and `DescribeCluster`.

use std::net::SocketAddr;

use bytes::BytesMut;
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest,
        DeleteTopicsResponse, DescribeClusterResponse, DescribeConfigsRequest,
        DescribeConfigsResponse,
        create_topics_request::CreatableTopic,
        create_topics_response::CreatableTopicResult,
        delete_topics_response::DeletableTopicResult,
        describe_cluster_response::DescribeClusterBroker,
        describe_configs_request::DescribeConfigsResource,
        describe_configs_response::{DescribeConfigsResourceResult, DescribeConfigsResult},
    },
    protocol::StrBytes,
};

use super::{
    Broker, frame,
    metadata::{NODE, own},
    request::{Header, Malformed},
};

/// The kinds of things that have settings.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Says of a setting that it was given to the broker when it was started.
const STATIC_BROKER_CONFIG: i8 = 4;

/// The first version of `CreateTopics` that tells about the topics which it has made.
const TELLS_PARTITIONS: i16 = 5;
/// The first version of `DeleteTopics` that tells an error in words.
const TELLS_DELETE_ERROR: i16 = 5;

type Refusal = (ResponseError, &'static str);

/// Makes topics.
pub(super) fn create(
    broker: &Broker,
    header: Header,
    asked: &CreateTopicsRequest,
) -> Result<BytesMut, Malformed> {
    let topics = asked.topics.iter().map(|topic| {
        let answer = CreatableTopicResult::default().with_name(own(&topic.name));
        match create_topic(broker, topic, asked.validate_only) {
            Ok(count) if header.version >= TELLS_PARTITIONS => {
                answer.with_num_partitions(count).with_replication_factor(1)
            }
            Ok(_) => answer,
            Err((error, text)) => answer
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_static_str(text))),
        }
    });
    let response = CreateTopicsResponse::default().with_topics(topics.collect());
    frame::encode(ApiKey::CreateTopics, header, &response)
}

/// Makes a topic, or only tells whether it could be made. Returns how many partitions it has.
fn create_topic(
    broker: &Broker,
    asked: &CreatableTopic,
    only_validates: bool,
) -> Result<i32, Refusal> {
    let count = match (asked.num_partitions, asked.assignments.len()) {
        (-1, 0) => broker.config.partitions,
        (-1, assigned) => i32::try_from(assigned).unwrap_or(i32::MAX),
        (count, _) => count,
    };
    if count < 1 {
        return Err((ResponseError::InvalidPartitions, "a topic has at least one partition"));
    }
    let is_elsewhere = asked.assignments.iter().any(|assigned| assigned.broker_ids != [NODE]);
    if !matches!(asked.replication_factor, -1 | 1) || is_elsewhere {
        return Err((ResponseError::InvalidReplicationFactor, "there is one broker, with id 1"));
    }
    if !asked.configs.is_empty() {
        return Err((ResponseError::InvalidConfig, "topics have no settings of their own"));
    }
    let topics = &broker.topics;
    let made = if only_validates {
        topics.check(&asked.name, count)
    } else {
        topics.create(&asked.name, count)
    };
    made.map(|()| count).map_err(|error| (error, reason(error)))
}

const fn reason(error: ResponseError) -> &'static str {
    match error {
        ResponseError::TopicAlreadyExists => "the topic exists",
        ResponseError::InvalidTopicException => {
            "a name has 1 to 249 letters, digits, dots, underscores and hyphens"
        }
        _ => "the broker has as many topics or partitions as it may have",
    }
}

/// Deletes topics, and all that was committed for them.
pub(super) fn delete(
    broker: &Broker,
    header: Header,
    asked: &DeleteTopicsRequest,
) -> Result<BytesMut, Malformed> {
    let responses = asked.topic_names.iter().map(|name| {
        let answer = DeletableTopicResult::default().with_name(Some(own(name)));
        if broker.delete_topic(name) {
            return answer;
        }
        let error = ResponseError::UnknownTopicOrPartition;
        let text = StrBytes::from_static_str("there is no such topic");
        let tells = header.version >= TELLS_DELETE_ERROR;
        answer.with_error_code(error.code()).with_error_message(tells.then_some(text))
    });
    let response = DeleteTopicsResponse::default().with_responses(responses.collect());
    frame::encode(ApiKey::DeleteTopics, header, &response)
}

/// Tells the settings of the broker and of topics.
pub(super) fn describe_configs(
    broker: &Broker,
    header: Header,
    asked: &DescribeConfigsRequest,
) -> Result<BytesMut, Malformed> {
    let results = asked.resources.iter().map(|resource| {
        let answer = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(StrBytes::from_string(resource.resource_name.to_string()));
        match settings(broker, resource) {
            Ok(settings) => answer.with_configs(describe(resource, &settings)),
            Err(error) => answer.with_error_code(error.code()),
        }
    });
    let response = DescribeConfigsResponse::default().with_results(results.collect());
    frame::encode(ApiKey::DescribeConfigs, header, &response)
}

type Settings = Vec<(&'static str, String)>;

fn settings(broker: &Broker, of: &DescribeConfigsResource) -> Result<Settings, ResponseError> {
    let config = &broker.config;
    match of.resource_type {
        TOPIC if broker.topics.find(&of.resource_name).is_none() => {
            Err(ResponseError::UnknownTopicOrPartition)
        }
        TOPIC => Ok(vec![
            ("cleanup.policy", "delete".into()),
            ("compression.type", "producer".into()),
            ("max.message.bytes", config.max_message_bytes.to_string()),
            ("message.timestamp.type", "CreateTime".into()),
            ("min.insync.replicas", "1".into()),
            ("retention.bytes", config.retained_bytes.to_string()),
            ("retention.ms", "-1".into()),
        ]),
        BROKER => Ok(vec![
            ("auto.create.topics.enable", config.creates_topics.to_string()),
            ("default.replication.factor", "1".into()),
            ("log.retention.bytes", config.retained_bytes.to_string()),
            ("max.connections", config.max_connections.to_string()),
            ("message.max.bytes", config.max_message_bytes.to_string()),
            ("num.partitions", config.partitions.to_string()),
        ]),
        _ => Err(ResponseError::InvalidRequest),
    }
}

/// Describes those settings that were asked for, or all.
fn describe(
    of: &DescribeConfigsResource,
    settings: &Settings,
) -> Vec<DescribeConfigsResourceResult> {
    let is_wanted = |name: &str| match &of.configuration_keys {
        Some(keys) if !keys.is_empty() => keys.iter().any(|key| &**key == name),
        _ => true,
    };
    let wanted = settings.iter().filter(|(name, _)| is_wanted(name));
    let described = wanted.map(|(name, value)| {
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(Some(StrBytes::from_string(value.clone())))
            .with_read_only(true)
            .with_config_source(STATIC_BROKER_CONFIG)
    });
    described.collect()
}

/// Tells about the cluster, which is this broker.
pub(super) fn describe_cluster(
    broker: &Broker,
    header: Header,
    host: SocketAddr,
) -> Result<BytesMut, Malformed> {
    let node = DescribeClusterBroker::default()
        .with_broker_id(NODE)
        .with_host(StrBytes::from_string(host.ip().to_string()))
        .with_port(host.port().into());
    let response = DescribeClusterResponse::default()
        .with_cluster_id(StrBytes::from_string(broker.cluster_id.clone()))
        .with_controller_id(NODE)
        .with_brokers(vec![node]);
    frame::encode(ApiKey::DescribeCluster, header, &response)
}
