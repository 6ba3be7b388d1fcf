//! Requests about versions, topics, settings and the cluster.

use std::net::SocketAddr;

use super::{
    Broker,
    grammar::OFFERED,
    metadata::{NODE, own},
};
use crate::prelude::*;

/// The kinds of things that have settings.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// The source of a setting: the broker got it when it was started.
const STATIC_BROKER_CONFIG: i8 = 4;

/// The oldest version of Produce in the list. librdkafka compresses only for brokers that name it.
/// Like Kafka, the broker does not read the versions before those on offer.
const OLDEST_PRODUCE: i16 = 0;

pub(super) fn versions() -> ApiVersionsResponse {
    let keys = OFFERED.iter().map(|(key, versions, _)| {
        let oldest = if *key == ApiKey::Produce { OLDEST_PRODUCE } else { *versions.start() };
        ApiVersion::default()
            .with_api_key(*key as i16)
            .with_min_version(oldest)
            .with_max_version(*versions.end())
    });
    ApiVersionsResponse::default().with_api_keys(keys.collect())
}

pub(super) fn create(broker: &Broker, asked: &CreateTopicsRequest) -> CreateTopicsResponse {
    let topics = asked.topics.iter().map(|topic| {
        let answer = CreatableTopicResult::default().with_name(own(&topic.name));
        match create_topic(broker, topic, asked.validate_only) {
            Ok(count) => answer.with_num_partitions(count).with_replication_factor(1),
            Err(error) => {
                answer.with_error_code(error.code()).with_error_message(Some(reason(error).into()))
            }
        }
    });
    CreateTopicsResponse::default().with_topics(topics.collect())
}

/// Creates a topic, or only checks that it could. Returns its number of partitions.
fn create_topic(broker: &Broker, asked: &CreatableTopic, only_validates: bool) -> Result<i32> {
    let count = match (asked.num_partitions, asked.assignments.len()) {
        (-1, 0) => broker.config.partitions,
        (-1, assigned) => i32::try_from(assigned).unwrap_or(i32::MAX),
        (count, _) => count,
    };
    let is_elsewhere = asked.assignments.iter().any(|assigned| assigned.broker_ids != [NODE]);
    if count < 1 {
        Err(ResponseError::InvalidPartitions)
    } else if !matches!(asked.replication_factor, -1 | 1) || is_elsewhere {
        Err(ResponseError::InvalidReplicationFactor)
    } else if !asked.configs.is_empty() {
        Err(ResponseError::InvalidConfig)
    } else {
        broker.topics.create(&asked.name, count, only_validates).map(|_| count)
    }
}

const fn reason(error: ResponseError) -> &'static str {
    match error {
        ResponseError::InvalidPartitions => "a topic has at least one partition",
        ResponseError::InvalidReplicationFactor => "the cluster has one broker, with id 1",
        ResponseError::InvalidConfig => "topics have no settings of their own",
        ResponseError::TopicAlreadyExists => "the topic exists",
        ResponseError::InvalidTopicException => {
            "a name has 1 to 249 letters, digits, dots, underscores and hyphens"
        }
        _ => "the limit of topics or partitions is reached",
    }
}

/// Deletes topics, and all commits of their offsets.
pub(super) fn delete(broker: &Broker, asked: &DeleteTopicsRequest) -> DeleteTopicsResponse {
    let responses = asked.topic_names.iter().map(|name| {
        let answer = DeletableTopicResult::default().with_name(Some(own(name)));
        if broker.delete_topic(name) {
            return answer;
        }
        answer
            .with_error_code(ResponseError::UnknownTopicOrPartition.code())
            .with_error_message(Some("the topic does not exist".into()))
    });
    DeleteTopicsResponse::default().with_responses(responses.collect())
}

/// Describes the settings of the broker and of topics.
pub(super) fn describe_configs(
    broker: &Broker,
    asked: &DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let results = asked.resources.iter().map(|resource| {
        let answer = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.to_string().into());
        match settings(broker, resource) {
            Ok(settings) => answer.with_configs(describe(resource, settings)),
            Err(error) => answer.with_error_code(error.code()),
        }
    });
    DescribeConfigsResponse::default().with_results(results.collect())
}

type Settings = Vec<(&'static str, String)>;

fn settings(broker: &Broker, of: &DescribeConfigsResource) -> Result<Settings> {
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
            ("retention.bytes", "-1".into()),
            ("retention.ms", "-1".into()),
        ]),
        BROKER => Ok(vec![
            ("auto.create.topics.enable", (!config.no_auto_create).to_string()),
            ("default.replication.factor", "1".into()),
            ("log.retention.bytes", "-1".into()),
            ("max.connections", config.max_connections.to_string()),
            ("message.max.bytes", config.max_message_bytes.to_string()),
            ("num.partitions", config.partitions.to_string()),
        ]),
        _ => Err(ResponseError::InvalidRequest),
    }
}

/// Describes the settings in a request, or all.
fn describe(
    of: &DescribeConfigsResource,
    settings: Settings,
) -> Vec<DescribeConfigsResourceResult> {
    let keys = of.configuration_keys.as_deref().unwrap_or_default();
    let is_wanted = |name: &str| keys.is_empty() || keys.iter().any(|key| &**key == name);
    let wanted = settings.into_iter().filter(|(name, _)| is_wanted(name));
    let described = wanted.map(|(name, value)| {
        DescribeConfigsResourceResult::default()
            .with_name(name.into())
            .with_value(Some(value.into()))
            .with_read_only(true)
            .with_config_source(STATIC_BROKER_CONFIG)
    });
    described.collect()
}

/// Describes the cluster, which is this broker.
pub(super) fn describe_cluster(broker: &Broker, host: SocketAddr) -> DescribeClusterResponse {
    let node = DescribeClusterBroker::default()
        .with_broker_id(NODE)
        .with_host(host.ip().to_string().into())
        .with_port(host.port().into());
    DescribeClusterResponse::default()
        .with_cluster_id(broker.cluster_id.clone().into())
        .with_controller_id(NODE)
        .with_brokers(vec![node])
}
