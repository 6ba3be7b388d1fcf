//! Committed offsets: how far a group has read each partition.

use std::collections::{BTreeMap, HashMap};

/// An offset that a group has committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    /// A note of the client.
    pub(crate) metadata: Option<String>,
}

/// The committed offsets of a group.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    topics: HashMap<String, BTreeMap<i32, Commit>>,
}

impl Commits {
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    pub(crate) fn find(&self, topic: &str, partition: i32) -> Option<&Commit> {
        self.topics.get(topic)?.get(&partition)
    }

    pub(crate) fn set(&mut self, topic: &str, partition: i32, commit: Commit) {
        if !self.topics.contains_key(topic) {
            self.topics.insert(topic.to_owned(), BTreeMap::new());
        }
        if let Some(partitions) = self.topics.get_mut(topic) {
            partitions.insert(partition, commit);
        }
    }

    /// Forgets a topic that was deleted.
    pub(crate) fn remove(&mut self, topic: &str) {
        self.topics.remove(topic);
    }

    /// Returns all topics, each with its partitions.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&String, &BTreeMap<i32, Commit>)> {
        self.topics.iter()
    }
}
