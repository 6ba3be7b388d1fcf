//! Requests about versions, topics, offsets, settings and the cluster.

use std::{collections::HashSet, net::SocketAddr};

use super::{
    Broker, Config,
    grammar::OFFERED,
    log::Partition,
    metadata::{NODE, Topics, own},
};
use crate::prelude::*;

/// The kinds of things that have settings.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// The sources of a setting: an option of the program, or the program itself.
const STATIC_BROKER_CONFIG: i8 = 4;
const DEFAULT_CONFIG: i8 = 5;

/// The oldest version of Produce in the list. librdkafka compresses only for brokers that name it.
/// Like Kafka, the broker does not read the versions before those on offer.
const OLDEST_PRODUCE: i16 = 0;

/// Asks for the offset of the next record.
const LATEST: i64 = -1;
/// Asks for the offset of the oldest record.
const EARLIEST: i64 = -2;
/// Asks for the record with the latest time.
const LATEST_TIME: i64 = -3;
/// Neither an offset nor a time.
const NO_OFFSET: i64 = -1;

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
        let created = create_topic(broker, topic, asked.validate_only);
        let (count, factor) = created.as_ref().map_or((-1, -1), |count| (*count, 1));
        let (error, why) = told(created);
        CreatableTopicResult::default()
            .with_name(own(&topic.name))
            .with_num_partitions(count)
            .with_replication_factor(factor)
            .with_error_code(error)
            .with_error_message(why)
    });
    CreateTopicsResponse::default().with_topics(topics.collect())
}

/// An error, and its reason.
type Refused = (ResponseError, String);

/// Creates a topic, or only checks that it could. Returns its number of partitions.
fn create_topic(
    broker: &Broker,
    asked: &CreatableTopic,
    only_validates: bool,
) -> Result<i32, Refused> {
    let count = match (asked.num_partitions, asked.assignments.len()) {
        (-1, 0) => broker.config.partitions,
        (-1, assigned) => i32::try_from(assigned).unwrap_or(i32::MAX),
        (count, _) => count,
    };
    let is_elsewhere = asked.assignments.iter().any(|assigned| assigned.broker_ids != [NODE]);
    if count < 1 {
        return Err(reason(ResponseError::InvalidPartitions));
    }
    if !matches!(asked.replication_factor, -1 | 1) || is_elsewhere {
        return Err(reason(ResponseError::InvalidReplicationFactor));
    }
    check_settings(&broker.config, &asked.configs)
        .map_err(|why| (ResponseError::InvalidConfig, why))?;
    broker.topics.create(&asked.name, count, only_validates).map(|_| count).map_err(reason)
}

/// Refuses the first setting that is not what all topics have.
fn check_settings(config: &Config, asked: &[CreatableTopicConfig]) -> Result<(), String> {
    let settings = all_settings(config);
    for CreatableTopicConfig { name, value, .. } in asked {
        let setting = settings.iter().find(|(of, known, ..)| *of == TOPIC && *known == &**name);
        let (.., is, _) = setting.ok_or_else(|| format!("topics have no setting {name}"))?;
        if value.as_ref().is_some_and(|value| **value != **is) {
            return Err(format!("{name} of all topics is {is}"));
        }
    }
    Ok(())
}

fn reason(error: ResponseError) -> Refused {
    let reason = match error {
        ResponseError::InvalidPartitions => "a topic has a partition, and never loses one",
        ResponseError::InvalidReplicationFactor | ResponseError::InvalidReplicaAssignment => {
            "the cluster has one broker, with id 1"
        }
        ResponseError::TopicAlreadyExists => "the topic exists",
        ResponseError::UnknownTopicOrPartition => "the topic does not exist",
        ResponseError::InvalidTopicException => "a name has 1 to 249 of a-z, A-Z, 0-9, ._-",
        _ => "the limit of topics or partitions is reached",
    };
    (error, reason.to_owned())
}

/// The code of an error, and its reason; 0 and none without an error.
fn told<T>(result: Result<T, Refused>) -> (i16, Option<StrBytes>) {
    result.map_or_else(|(error, why)| (error.code(), Some(why.into())), |_| (0, None))
}

/// Adds partitions to topics.
pub(super) fn create_partitions(
    broker: &Broker,
    asked: &CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let results = asked.topics.iter().map(|topic| {
        let mut assigned = topic.assignments.iter().flatten();
        let grown = if assigned.any(|assigned| assigned.broker_ids != [NODE]) {
            Err(ResponseError::InvalidReplicaAssignment)
        } else {
            broker.topics.grow(&topic.name, topic.count, asked.validate_only)
        };
        let (error, why) = told(grown.map_err(reason));
        CreatePartitionsTopicResult::default()
            .with_name(own(&topic.name))
            .with_error_code(error)
            .with_error_message(why)
    });
    CreatePartitionsResponse::default().with_results(results.collect())
}

/// Deletes the records before some offsets.
pub(super) fn delete_records(
    broker: &Broker,
    asked: &DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let topics = asked.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| {
            let answer =
                DeleteRecordsPartitionResult::default().with_partition_index(asked.partition_index);
            match broker.delete_records(&topic.name, asked.partition_index, asked.offset) {
                Ok(start) => answer.with_low_watermark(start),
                Err(error) => answer.with_low_watermark(-1).with_error_code(error.code()),
            }
        });
        DeleteRecordsTopicResult::default()
            .with_name(own(&topic.name))
            .with_partitions(partitions.collect())
    });
    DeleteRecordsResponse::default().with_topics(topics.collect())
}

/// Deletes topics, and all commits of their offsets.
pub(super) fn delete(broker: &Broker, asked: &DeleteTopicsRequest) -> DeleteTopicsResponse {
    let responses = asked.topic_names.iter().map(|name| {
        let (error, why) = told(broker.delete_topic(name).map_err(reason));
        DeletableTopicResult::default()
            .with_name(Some(own(name)))
            .with_error_code(error)
            .with_error_message(why)
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
            .with_resource_name(resource.resource_name.to_string().into())
            .with_error_message(None);
        let keys = resource.configuration_keys.as_deref().unwrap_or_default();
        let is_wanted = |name: &str| keys.is_empty() || keys.iter().any(|key| &**key == name);
        let describe = |setting| describe_setting(setting, asked.include_synonyms);
        match settings(broker, resource) {
            Ok(settings) => {
                let wanted = settings.into_iter().filter(|(_, name, ..)| is_wanted(name));
                answer.with_configs(wanted.map(describe).collect())
            }
            Err(error) => answer.with_error_code(error.code()),
        }
    });
    DescribeConfigsResponse::default().with_results(results.collect())
}

/// Whose setting it is, its name, that of the broker's setting for it, the value, and its source.
type Setting = (i8, &'static str, &'static str, String, i8);

fn all_settings(config: &Config) -> Vec<Setting> {
    let set = |of, name, for_all, value: &str| (of, name, for_all, value.into(), DEFAULT_CONFIG);
    let option = |of, name, for_all, value: &dyn ToString| {
        (of, name, for_all, value.to_string(), STATIC_BROKER_CONFIG)
    };
    let max_bytes = config.max_message_bytes;
    vec![
        set(TOPIC, "cleanup.policy", "log.cleanup.policy", "delete"),
        set(TOPIC, "compression.type", "compression.type", "producer"),
        option(TOPIC, "max.message.bytes", "message.max.bytes", &max_bytes),
        set(TOPIC, "message.timestamp.type", "log.message.timestamp.type", "CreateTime"),
        set(TOPIC, "min.insync.replicas", "min.insync.replicas", "1"),
        set(TOPIC, "retention.bytes", "log.retention.bytes", "-1"),
        set(TOPIC, "retention.ms", "log.retention.ms", "-1"),
        option(BROKER, "auto.create.topics.enable", "", &!config.no_auto_create),
        set(BROKER, "default.replication.factor", "", "1"),
        set(BROKER, "log.retention.bytes", "", "-1"),
        option(BROKER, "max.connections", "", &config.max_connections),
        option(BROKER, "message.max.bytes", "", &max_bytes),
        option(BROKER, "num.partitions", "", &config.partitions),
    ]
}

fn settings(broker: &Broker, of: &DescribeConfigsResource) -> Result<Vec<Setting>> {
    let mut settings = all_settings(&broker.config);
    settings.retain(|(resource, ..)| *resource == of.resource_type);
    match of.resource_type {
        TOPIC if broker.topics.find(&of.resource_name).is_none() => {
            Err(ResponseError::UnknownTopicOrPartition)
        }
        _ if settings.is_empty() => Err(ResponseError::InvalidRequest),
        _ => Ok(settings),
    }
}

fn describe_setting(setting: Setting, with_synonyms: bool) -> DescribeConfigsResourceResult {
    let (_, name, for_all, value, source) = setting;
    let value = Some(StrBytes::from(value));
    let synonym = DescribeConfigsSynonym::default()
        .with_name(if for_all.is_empty() { name } else { for_all }.into())
        .with_value(value.clone())
        .with_source(source);
    DescribeConfigsResourceResult::default()
        .with_name(name.into())
        .with_value(value)
        .with_read_only(true)
        .with_config_source(source)
        .with_synonyms(if with_synonyms { vec![synonym] } else { Vec::new() })
        .with_documentation(None)
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
        .with_error_message(None)
        .with_brokers(vec![node])
}

/// Returns the offsets for which a client asks. Refuses a partition that is named again, for which
/// Kafka gives no offset at all: a search for a time reads a log from its start.
pub(super) fn list_offsets(topics: &Topics, asked: &ListOffsetsRequest) -> ListOffsetsResponse {
    let mut named = HashSet::new();
    let answered = asked.topics.iter().map(|topic| {
        let answered = topic.partitions.iter().map(|asked| {
            let index = asked.partition_index;
            let answer = ListOffsetsPartitionResponse::default().with_partition_index(index);
            if !named.insert((&topic.name, index)) {
                return answer.with_error_code(ResponseError::InvalidRequest.code());
            }
            let Some(partition) = topics.partition(&topic.name, index) else {
                return answer.with_error_code(ResponseError::UnknownTopicOrPartition.code());
            };
            let (offset, timestamp) = find_offset(&partition, asked.timestamp);
            answer.with_offset(offset).with_timestamp(timestamp)
        });
        ListOffsetsTopicResponse::default()
            .with_name(own(&topic.name))
            .with_partitions(answered.collect())
    });
    ListOffsetsResponse::default().with_topics(answered.collect())
}

/// Returns the offset for a time, or for a constant such as [`LATEST`], and the time of its record.
fn find_offset(partition: &Partition, timestamp: i64) -> (i64, i64) {
    match timestamp {
        LATEST => (partition.high_watermark(), NO_OFFSET),
        EARLIEST => (partition.lock().start, NO_OFFSET),
        LATEST_TIME => partition.lock().latest().unwrap_or((NO_OFFSET, NO_OFFSET)),
        time => partition.lock().find(time).unwrap_or((NO_OFFSET, NO_OFFSET)),
    }
}
