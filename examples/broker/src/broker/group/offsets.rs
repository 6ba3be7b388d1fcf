//! `OffsetCommit` and `OffsetFetch`.

use super::{
    coordinator::Coordinator,
    message::{Commit, Commits},
    requests::identity,
};
use crate::broker::{
    frame::Room,
    metadata::{Topics, own},
};
use crate::prelude::*;

/// The first version that asks for several groups.
const MANY_GROUPS: i16 = 8;
/// The first version that tells the epoch of the leader.
const TELLS_EPOCH: i16 = 5;

/// Stands for an offset or an epoch that was never committed.
const NONE: i32 = -1;

/// Commits offsets of those partitions that exist.
pub(crate) fn commit(
    groups: &Coordinator,
    topics: &Topics,
    asked: &OffsetCommitRequest,
) -> OffsetCommitResponse {
    let (instance, generation) =
        (asked.group_instance_id.as_ref(), asked.generation_id_or_member_epoch);
    let who = identity(&asked.member_id, instance, generation);
    let answer = |topic: &OffsetCommitRequestTopic| {
        let partitions = topic.partitions.iter().map(|asked| {
            let index = asked.partition_index;
            let is_known = topics.partition(&topic.name, index).is_some();
            let error = ResponseError::UnknownTopicOrPartition.code();
            OffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(if is_known { 0 } else { error })
        });
        OffsetCommitResponseTopic::default()
            .with_name(own(&topic.name))
            .with_partitions(partitions.collect())
    };
    let mut answered: Vec<_> = asked.topics.iter().map(answer).collect();
    let outcome = groups.commit(&asked.group_id, &who, |commits| {
        for (topic, answered) in asked.topics.iter().zip(&answered) {
            let partitions = topic.partitions.iter().zip(&answered.partitions);
            for (partition, _) in partitions.filter(|(_, answered)| answered.error_code == 0) {
                let commits = commits.entry(topic.name.to_string()).or_default();
                commits.insert(partition.partition_index, Commit::from(partition));
            }
        }
    });
    if let Err(error) = outcome {
        for partition in answered.iter_mut().flat_map(|topic| &mut topic.partitions) {
            partition.error_code = error.code();
        }
    }
    OffsetCommitResponse::default().with_topics(answered)
}

impl From<&OffsetCommitRequestPartition> for Commit {
    fn from(asked: &OffsetCommitRequestPartition) -> Self {
        Self {
            offset: asked.committed_offset,
            leader_epoch: asked.committed_leader_epoch,
            metadata: asked.committed_metadata.as_ref().map(ToString::to_string),
        }
    }
}

/// Returns committed offsets.
pub(crate) fn fetch(
    groups: &Coordinator,
    version: i16,
    asked: &OffsetFetchRequest,
) -> OffsetFetchResponse {
    if version < MANY_GROUPS {
        let topics = asked.topics.iter().flatten();
        let wanted = topics.map(|topic| (&topic.name, &topic.partition_indexes[..])).collect();
        let found = find(groups, &asked.group_id, asked.topics.is_some().then_some(wanted));
        let topics = found.into_iter().map(|topic| old(version, topic));
        return OffsetFetchResponse::default().with_topics(topics.collect());
    }
    let mut room = Room::new();
    let found = asked.groups.iter().map(|group| {
        let topics = group.topics.iter().flatten();
        let wanted = topics.map(|topic| (&topic.name, &topic.partition_indexes[..])).collect();
        let found = find(groups, &group.group_id, group.topics.is_some().then_some(wanted));
        let empty = || OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone());
        let answer = empty().with_topics(found);
        let refused = || empty().with_error_code(ResponseError::PolicyViolation.code());
        if room.take(&answer, version) { answer } else { refused() }
    });
    OffsetFetchResponse::default().with_groups(found.collect())
}

/// Topics, each with the partitions whose offsets a client wants.
type Wanted<'a> = Vec<(&'a TopicName, &'a [i32])>;

/// Finds committed offsets of some topics, or of all.
fn find(
    groups: &Coordinator,
    group: &GroupId,
    wanted: Option<Wanted<'_>>,
) -> Vec<OffsetFetchResponseTopics> {
    let (groups, none) = (groups.groups(), Commits::new());
    let commits = groups.get(&**group).map_or(&none, |entry| &entry.commits);
    let topic = |name: TopicName, partitions| {
        OffsetFetchResponseTopics::default().with_name(name).with_partitions(partitions)
    };
    let Some(wanted) = wanted else {
        let all = commits.iter().map(|(name, partitions)| {
            let name = TopicName(StrBytes::from_string(name.clone()));
            topic(
                name,
                partitions.iter().map(|(&index, commit)| describe(index, Some(commit))).collect(),
            )
        });
        return all.collect();
    };
    let found = wanted.into_iter().map(|(name, indexes)| {
        let commits = commits.get(&***name);
        let find = |&index| describe(index, commits.and_then(|commits| commits.get(&index)));
        topic(own(name), indexes.iter().map(find).collect())
    });
    found.collect()
}

fn describe(index: i32, commit: Option<&Commit>) -> OffsetFetchResponsePartitions {
    let note = commit.and_then(|commit| commit.metadata.clone()).unwrap_or_default();
    OffsetFetchResponsePartitions::default()
        .with_partition_index(index)
        .with_committed_offset(commit.map_or(NONE.into(), |commit| commit.offset))
        .with_committed_leader_epoch(commit.map_or(NONE, |commit| commit.leader_epoch))
        .with_metadata(Some(StrBytes::from_string(note)))
}

/// Returns the answer about a topic in the shape that it had before [`MANY_GROUPS`].
fn old(version: i16, found: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let partitions = found.partitions.into_iter().map(|found| {
        let epoch = if version >= TELLS_EPOCH { found.committed_leader_epoch } else { NONE };
        OffsetFetchResponsePartition::default()
            .with_partition_index(found.partition_index)
            .with_committed_offset(found.committed_offset)
            .with_committed_leader_epoch(epoch)
            .with_metadata(found.metadata)
    });
    OffsetFetchResponseTopic::default().with_name(found.name).with_partitions(partitions.collect())
}
