//! Topics, and what clients are told about them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::BytesMut;
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, BrokerId, MetadataRequest, MetadataResponse, TopicName,
        metadata_response::{
            MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
        },
    },
    protocol::StrBytes,
};

use super::{
    frame,
    log::Partition,
    request::{Header, Malformed},
};

/// The one node.
const NODE: BrokerId = BrokerId(1);

/// The longest name of a topic.
const MAX_NAME_BYTES: usize = 249;

/// The first version that says whether topics may be made; before that they are.
const SAYS_WHETHER_TO_CREATE: i16 = 4;

type Partitions = Arc<[Arc<Partition>]>;

/// The topics, by name.
pub(super) struct Topics {
    by_name: RwLock<BTreeMap<String, Partitions>>,
    max_count: usize,
    /// Of each topic.
    partitions: u32,
}

impl Topics {
    /// Makes an empty table of at most so many topics, which will have so many partitions each.
    pub(super) fn new(max_count: usize, partitions: i32) -> Self {
        let partitions = u32::try_from(partitions).unwrap_or(1).max(1);
        Self { by_name: RwLock::default(), max_count, partitions }
    }

    /// Returns the partitions of a topic.
    pub(super) fn find(&self, name: &str) -> Option<Partitions> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Returns all partitions of all topics.
    pub(super) fn partitions(&self) -> Vec<Arc<Partition>> {
        let topics = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        topics.values().flat_map(|partitions| partitions.iter().cloned()).collect()
    }

    fn names(&self) -> Vec<String> {
        let topics = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        topics.keys().cloned().collect()
    }

    /// Returns the partitions of a topic, which is made if it is not there.
    fn find_or_create(&self, name: &str) -> Result<Partitions, ResponseError> {
        let mut topics = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(partitions) = topics.get(name) {
            return Ok(Arc::clone(partitions));
        }
        if topics.len() >= self.max_count {
            return Err(ResponseError::PolicyViolation);
        }
        let first = topics.len() as u64 * u64::from(self.partitions);
        let numbers = first..first + u64::from(self.partitions);
        let partitions: Partitions =
            numbers.map(|number| Arc::new(Partition::new(number))).collect();
        topics.insert(name.to_owned(), Arc::clone(&partitions));
        Ok(partitions)
    }
}

/// Tells about the topics that a client asks for, or about all.
pub(super) fn reply(
    topics: &Topics,
    header: Header,
    asked: &MetadataRequest,
    host: SocketAddr,
) -> Result<BytesMut, Malformed> {
    let creates = header.version < SAYS_WHETHER_TO_CREATE || asked.allow_auto_topic_creation;
    let described = match &asked.topics {
        Some(some) if header.version > 0 || !some.is_empty() => {
            let names = some.iter().map(|topic| topic.name.as_deref().map_or("", |name| name));
            names.map(|name| describe(topics, name, creates)).collect()
        }
        _ => topics.names().iter().map(|name| describe(topics, name, false)).collect(),
    };
    // Where the client has reached us it will reach us again.
    let broker = MetadataResponseBroker::default()
        .with_node_id(NODE)
        .with_host(StrBytes::from_string(host.ip().to_string()))
        .with_port(host.port().into());
    let response = MetadataResponse::default()
        .with_brokers(vec![broker])
        .with_controller_id(NODE)
        .with_topics(described);
    frame::encode(ApiKey::Metadata, header, &response)
}

fn describe(topics: &Topics, name: &str, creates: bool) -> MetadataResponseTopic {
    let found = match topics.find(name) {
        Some(partitions) => Ok(partitions),
        None if !is_valid(name) => Err(ResponseError::InvalidTopicException),
        None if creates => topics.find_or_create(name),
        None => Err(ResponseError::UnknownTopicOrPartition),
    };
    let described = MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(name.to_owned()))));
    match found {
        Ok(partitions) => {
            let partitions =
                (0..).zip(partitions.iter()).map(|(index, _)| describe_partition(index));
            described.with_partitions(partitions.collect())
        }
        Err(error) => described.with_error_code(error.code()),
    }
}

fn describe_partition(index: i32) -> MetadataResponsePartition {
    MetadataResponsePartition::default()
        .with_partition_index(index)
        .with_leader_id(NODE)
        .with_replica_nodes(vec![NODE])
        .with_isr_nodes(vec![NODE])
}

fn is_valid(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !matches!(name, "." | "..")
}

/// A copy of a name that does not keep the request that it came in.
pub(super) fn own(name: &TopicName) -> TopicName {
    TopicName(StrBytes::from_string(name.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_made_once_and_only_so_many() {
        let topics = Topics::new(2, 3);
        let first = topics.find_or_create("a").unwrap();
        assert_eq!(first.len(), 3);
        assert_eq!(topics.find_or_create("a").unwrap()[2], first[2]);
        let second = topics.find_or_create("b").unwrap();
        assert!(first.iter().all(|partition| !second.contains(partition)));
        assert_eq!(topics.find_or_create("c").unwrap_err(), ResponseError::PolicyViolation);
        assert_eq!(topics.partitions().len(), 6);
    }

    #[test]
    fn names_are_those_that_kafka_allows() {
        for name in ["a", "A.b_c-9", "...", &"x".repeat(249)] {
            assert!(is_valid(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "ä", "a b", &"x".repeat(250)] {
            assert!(!is_valid(name), "{name}");
        }
    }
}
