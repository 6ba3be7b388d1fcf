//! Topics, and their descriptions for clients.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{Broker, frame::Room, log::Partition};
use crate::prelude::*;

pub(super) const NODE: BrokerId = BrokerId(1);

/// The longest name of a topic.
const MAX_NAME_BYTES: usize = 249;

/// The first version that says whether topics may be made; before that they are.
const SAYS_WHETHER_TO_CREATE: i16 = 4;

type Partitions = Arc<[Arc<Partition>]>;

pub(super) struct Topics {
    table: Mutex<Table>,
    max_count: usize,
    max_partitions: usize,
    /// Partitions of a topic that is created because a client asks for it.
    partitions: i32,
}

#[derive(Default)]
struct Table {
    by_name: BTreeMap<String, Partitions>,
    /// Partitions of all topics.
    partitions: usize,
}

impl Topics {
    pub(super) fn new(max_count: usize, max_partitions: usize, partitions: i32) -> Self {
        Self { table: Mutex::default(), max_count, max_partitions, partitions }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics under this lock")
    }

    pub(super) fn find(&self, name: &str) -> Option<Partitions> {
        self.lock().by_name.get(name).cloned()
    }

    pub(super) fn partition(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        let index = usize::try_from(index).ok()?;
        self.lock().by_name.get(topic)?.get(index).cloned()
    }

    pub(super) fn partitions(&self) -> Vec<Arc<Partition>> {
        let table = self.lock();
        table.by_name.values().flat_map(|partitions| partitions.iter().cloned()).collect()
    }

    /// Returns the partitions of a topic, which is created if it does not exist.
    fn find_or_create(&self, name: &str) -> Result<Partitions> {
        match self.create(name, self.partitions, false) {
            Err(ResponseError::TopicAlreadyExists) => {
                self.find(name).ok_or(ResponseError::UnknownTopicOrPartition)
            }
            created => created,
        }
    }

    /// Creates a topic with this many partitions, or only checks that it could.
    ///
    /// # Errors
    ///
    /// `InvalidTopicException`, `TopicAlreadyExists`, or `PolicyViolation` beyond the limits.
    pub(super) fn create(
        &self,
        name: &str,
        count: i32,
        only_validates: bool,
    ) -> Result<Partitions> {
        let mut table = self.lock();
        let count = usize::try_from(count).unwrap_or(1).max(1);
        if !is_valid(name) {
            return Err(ResponseError::InvalidTopicException);
        }
        if table.by_name.contains_key(name) {
            return Err(ResponseError::TopicAlreadyExists);
        }
        let is_full = table.by_name.len() >= self.max_count;
        if is_full || table.partitions.saturating_add(count) > self.max_partitions {
            return Err(ResponseError::PolicyViolation);
        }
        let partitions: Partitions = (0..count).map(|_| Arc::default()).collect();
        if !only_validates {
            table.partitions += count;
            table.by_name.insert(name.to_owned(), Arc::clone(&partitions));
        }
        Ok(partitions)
    }

    /// Adds partitions to a topic, up to this many, or only checks that it could.
    ///
    /// # Errors
    ///
    /// `UnknownTopicOrPartition`, `InvalidPartitions`, or `PolicyViolation` beyond the limit.
    pub(super) fn grow(&self, name: &str, count: i32, only_validates: bool) -> Result<()> {
        let table = &mut *self.lock();
        let topic = table.by_name.get_mut(name).ok_or(ResponseError::UnknownTopicOrPartition)?;
        let count = usize::try_from(count).unwrap_or(0);
        let more = count.checked_sub(topic.len()).filter(|&more| more > 0);
        let more = more.ok_or(ResponseError::InvalidPartitions)?;
        if table.partitions.saturating_add(more) > self.max_partitions {
            return Err(ResponseError::PolicyViolation);
        }
        if !only_validates {
            let new = (0..more).map(|_| Arc::default());
            *topic = topic.iter().cloned().chain(new).collect();
            table.partitions += more;
        }
        Ok(())
    }

    /// Removes a topic, and returns its partitions.
    pub(super) fn remove(&self, name: &str) -> Option<Partitions> {
        let mut table = self.lock();
        let partitions = table.by_name.remove(name)?;
        table.partitions -= partitions.len();
        Some(partitions)
    }
}

/// Describes the topics for which a client asks, or all.
pub(super) fn describe(
    broker: &Broker,
    version: i16,
    asked: &MetadataRequest,
    host: SocketAddr,
) -> MetadataResponse {
    let topics = &broker.topics;
    let may_create = version < SAYS_WHETHER_TO_CREATE || asked.allow_auto_topic_creation;
    let creates = may_create && !broker.config.no_auto_create;
    let mut room = Room::new();
    let described = match &asked.topics {
        Some(some) if version > 0 || !some.is_empty() => {
            let names = some.iter().map(|topic| topic.name.as_deref().map_or("", |name| name));
            let described = names.map(|name| {
                let refused = || failed(name, ResponseError::PolicyViolation);
                room.fit(version, || describe_topic(topics, name, creates), refused)
            });
            described.collect()
        }
        _ => {
            let names: Vec<_> = topics.lock().by_name.keys().cloned().collect();
            names.iter().map(|name| describe_topic(topics, name, false)).collect()
        }
    };
    // The client can reach the broker again at the address of this connection.
    let node = MetadataResponseBroker::default()
        .with_node_id(NODE)
        .with_host(host.ip().to_string().into())
        .with_port(host.port().into());
    MetadataResponse::default()
        .with_brokers(vec![node])
        .with_cluster_id(Some(broker.cluster_id.clone().into()))
        .with_controller_id(NODE)
        .with_topics(described)
}

fn describe_topic(topics: &Topics, name: &str, creates: bool) -> MetadataResponseTopic {
    let found = match topics.find(name) {
        Some(partitions) => Ok(partitions),
        None if creates => topics.find_or_create(name),
        None if !is_valid(name) => Err(ResponseError::InvalidTopicException),
        None => Err(ResponseError::UnknownTopicOrPartition),
    };
    match found {
        Ok(partitions) => {
            let partition = MetadataResponsePartition::default()
                .with_leader_id(NODE)
                .with_replica_nodes(vec![NODE])
                .with_isr_nodes(vec![NODE]);
            let partitions = (0..).zip(partitions.iter());
            let partitions = partitions.map(|(at, _)| partition.clone().with_partition_index(at));
            described(name).with_partitions(partitions.collect())
        }
        Err(error) => failed(name, error),
    }
}

fn described(name: &str) -> MetadataResponseTopic {
    MetadataResponseTopic::default().with_name(Some(TopicName(name.to_owned().into())))
}

fn failed(name: &str, error: ResponseError) -> MetadataResponseTopic {
    described(name).with_error_code(error.code())
}

fn is_valid(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !matches!(name, "." | "..")
}

/// A copy of a name that does not keep the request that it came in.
pub(super) fn own(name: &TopicName) -> TopicName {
    TopicName(name.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_limited_and_a_removed_topic_makes_room() {
        let topics = Topics::new(2, 5, 2);
        let first = topics.find_or_create("a").unwrap();
        assert_eq!(topics.find_or_create("a").unwrap()[1], first[1], "it exists");
        assert_eq!(topics.create("a", 1, false), Err(ResponseError::TopicAlreadyExists));
        assert_eq!(topics.create("b", 4, true), Err(ResponseError::PolicyViolation));
        assert_eq!(topics.create("b", i32::MAX, false), Err(ResponseError::PolicyViolation));
        topics.create("b", 1, false).unwrap();
        assert_eq!(topics.grow("b", 1, false), Err(ResponseError::InvalidPartitions));
        assert_eq!(topics.grow("b", 4, true), Err(ResponseError::PolicyViolation));
        topics.grow("b", 3, true).unwrap();
        topics.grow("b", 3, false).unwrap();
        assert_eq!(topics.partitions().len(), 5);
        topics.remove("b").unwrap();
        assert!(topics.remove("b").is_none());
        let others = topics.find_or_create("c").unwrap();
        assert!(first.iter().all(|partition| !others.contains(partition)));
        assert_eq!(topics.find_or_create("d").unwrap_err(), ResponseError::PolicyViolation);
        assert!(["A.b_c-9", "...", &"x".repeat(249)].into_iter().all(is_valid));
        assert!(!["", ".", "..", "a/b", "ä", "a b", &"x".repeat(250)].into_iter().any(is_valid));
    }
}
