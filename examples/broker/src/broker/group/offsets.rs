//! `OffsetCommit` and `OffsetFetch`.

use super::{
    coordinator::Coordinator,
    message::{Commits, own},
    requests::identity,
};
use crate::broker::{
    frame::Room,
    metadata::{self, Topics},
};
use crate::prelude::*;

/// Stands for an offset that was never committed.
const NONE: i64 = -1;

/// Commits offsets of those partitions that exist.
pub(crate) fn commit(
    groups: &Coordinator,
    topics: &Topics,
    asked: &OffsetCommitRequest,
) -> OffsetCommitResponse {
    let instance = asked.group_instance_id.as_ref();
    let who = identity(&asked.member_id, instance, asked.generation_id_or_member_epoch);
    let answer = |topic: &OffsetCommitRequestTopic| {
        let partitions = topic.partitions.iter().map(|asked| {
            OffsetCommitResponsePartition::default().with_partition_index(asked.partition_index)
        });
        OffsetCommitResponseTopic::default()
            .with_name(metadata::own(&topic.name))
            .with_partitions(partitions.collect())
    };
    let mut answers: Vec<_> = asked.topics.iter().map(answer).collect();
    let outcome = groups.commit(&asked.group_id, &who, |commits| {
        for (topic, answer) in asked.topics.iter().zip(&mut answers) {
            for (partition, told) in topic.partitions.iter().zip(&mut answer.partitions) {
                let index = partition.partition_index;
                // Under the lock of the groups, like a deletion.
                if topics.partition(&topic.name, index).is_some() {
                    let commits = commits.entry(answer.name.clone()).or_default();
                    commits.insert(index, committed(partition));
                } else {
                    told.error_code = ResponseError::UnknownTopicOrPartition.code();
                }
            }
        }
    });
    if let Err(error) = outcome {
        for partition in answers.iter_mut().flat_map(|topic| &mut topic.partitions) {
            partition.error_code = error.code();
        }
    }
    OffsetCommitResponse::default().with_topics(answers)
}

fn committed(asked: &OffsetCommitRequestPartition) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions::default()
        .with_partition_index(asked.partition_index)
        .with_committed_offset(asked.committed_offset)
        .with_committed_leader_epoch(asked.committed_leader_epoch)
        .with_metadata(Some(asked.committed_metadata.as_deref().map(own).unwrap_or_default()))
}

/// Returns the committed offsets of some topics, or of all; since version 8 of several groups.
pub(crate) fn fetch(
    groups: &Coordinator,
    version: i16,
    asked: &OffsetFetchRequest,
) -> OffsetFetchResponse {
    let (groups, none) = (groups.groups(), Commits::new());
    let commits = |group: &GroupId| groups.get(&**group).map_or(&none, |entry| &entry.commits);
    let topics = asked.topics.as_ref().map(|topics| {
        topics.iter().map(|topic| (&topic.name, &topic.partition_indexes[..])).collect()
    });
    let topics = find(commits(&asked.group_id), topics).into_iter().map(|found| {
        let partitions = found.partitions.into_iter().map(of_one_group).collect();
        OffsetFetchResponseTopic::default().with_name(found.name).with_partitions(partitions)
    });
    let (mut room, code) = (Room::new(), ResponseError::PolicyViolation.code());
    let groups = asked.groups.iter().map(|group| {
        let empty =
            || OffsetFetchResponseGroup::default().with_group_id(GroupId(own(&group.group_id)));
        let topics = group.topics.as_ref().map(|topics| {
            topics.iter().map(|topic| (&topic.name, &topic.partition_indexes[..])).collect()
        });
        let found = || empty().with_topics(find(commits(&group.group_id), topics));
        room.fit(version, found, || empty().with_error_code(code))
    });
    OffsetFetchResponse::default().with_groups(groups.collect()).with_topics(topics.collect())
}

/// Finds commits for the partitions of some topics, or for all.
fn find(
    commits: &Commits,
    topics: Option<Vec<(&TopicName, &[i32])>>,
) -> Vec<OffsetFetchResponseTopics> {
    let topic = OffsetFetchResponseTopics::default();
    let topic = |name, partitions| topic.clone().with_name(name).with_partitions(partitions);
    let Some(topics) = topics else {
        let all = commits.iter();
        return all
            .map(|(name, all)| topic(name.clone(), all.values().cloned().collect()))
            .collect();
    };
    let found = topics.into_iter().map(|(name, indexes)| {
        let found = commits.get(name);
        let find = |index| found.and_then(|commits| commits.get(index)).cloned();
        let find = |index| find(index).unwrap_or_else(|| uncommitted(*index));
        topic(metadata::own(name), indexes.iter().map(find).collect())
    });
    found.collect()
}

/// The same answer in the form of earlier versions.
fn of_one_group(found: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition {
    OffsetFetchResponsePartition::default()
        .with_partition_index(found.partition_index)
        .with_committed_offset(found.committed_offset)
        .with_committed_leader_epoch(found.committed_leader_epoch)
        .with_metadata(found.metadata)
}

fn uncommitted(partition: i32) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions::default()
        .with_partition_index(partition)
        .with_committed_offset(NONE)
}
