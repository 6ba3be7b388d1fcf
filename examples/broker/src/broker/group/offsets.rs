//! `OffsetCommit` and `OffsetFetch`.

use bytes::BytesMut;
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
        TopicName,
        offset_commit_request::OffsetCommitRequestPartition,
        offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic},
        offset_fetch_response::{
            OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
            OffsetFetchResponseTopic, OffsetFetchResponseTopics,
        },
    },
    protocol::StrBytes,
};

use super::{
    commits::{Commit, Commits},
    coordinator::Coordinator,
    message::Identity,
    requests::name,
};
use crate::broker::{
    frame::{self, Room},
    metadata::{Topics, own},
    request::{Header, Malformed},
};

/// The first version that asks for several groups.
const MANY_GROUPS: i16 = 8;
/// The first version that tells the epoch of the leader.
const TELLS_EPOCH: i16 = 5;

/// Stands for an offset that was never committed.
const NONE: i64 = -1;

/// Commits offsets.
pub(crate) fn commit(
    groups: &Coordinator,
    topics: &Topics,
    header: Header,
    asked: &OffsetCommitRequest,
) -> Result<BytesMut, Malformed> {
    let identity = Identity {
        member: name(&asked.member_id),
        instance: asked.group_instance_id.as_ref().map(name),
        generation: asked.generation_id_or_member_epoch,
    };
    let mut partitions = Vec::new();
    for topic in &asked.topics {
        let count = topics.find(&topic.name).map_or(0, |partitions| partitions.len());
        let is_there = |index: i32| usize::try_from(index).is_ok_and(|index| index < count);
        partitions
            .push(topic.partitions.iter().map(|asked| is_there(asked.partition_index)).collect());
    }
    let outcome = groups.commit(&asked.group_id, &identity, |commits| {
        commit_all(commits, asked, &partitions);
    });
    let answered = asked.topics.iter().zip(&partitions).map(|(topic, known)| {
        let answer = |(asked, &is_known): (&OffsetCommitRequestPartition, &bool)| {
            let unknown = ResponseError::UnknownTopicOrPartition;
            let error = outcome.err().or((!is_known).then_some(unknown));
            OffsetCommitResponsePartition::default()
                .with_partition_index(asked.partition_index)
                .with_error_code(error.map_or(0, |error| error.code()))
        };
        OffsetCommitResponseTopic::default()
            .with_name(own(&topic.name))
            .with_partitions(topic.partitions.iter().zip(known).map(answer).collect())
    });
    let response = OffsetCommitResponse::default().with_topics(answered.collect());
    frame::encode(ApiKey::OffsetCommit, header, &response)
}

/// Commits what is asked for of those partitions that are known.
fn commit_all(commits: &mut Commits, asked: &OffsetCommitRequest, known: &[Vec<bool>]) {
    for (topic, known) in asked.topics.iter().zip(known) {
        let known = topic.partitions.iter().zip(known).filter(|(_, is_known)| **is_known);
        for (partition, _) in known {
            let commit = Commit {
                offset: partition.committed_offset,
                leader_epoch: partition.committed_leader_epoch,
                metadata: partition.committed_metadata.as_ref().map(ToString::to_string),
            };
            commits.set(&topic.name, partition.partition_index, commit);
        }
    }
}

/// Tells committed offsets.
pub(crate) fn fetch(
    groups: &Coordinator,
    header: Header,
    asked: &OffsetFetchRequest,
) -> Result<BytesMut, Malformed> {
    let response = if header.version < MANY_GROUPS {
        let topics =
            asked.topics.as_ref().map(|topics| topics.iter().map(Wanted::of_old).collect());
        let found = find(groups, &asked.group_id, topics);
        let topics = found.into_iter().map(|found| found.old_response(header.version));
        OffsetFetchResponse::default().with_topics(topics.collect())
    } else {
        let mut room = Room::new();
        let found = asked.groups.iter().map(|group| {
            let topics =
                group.topics.as_ref().map(|topics| topics.iter().map(Wanted::of_new).collect());
            let found = find(groups, &group.group_id, topics);
            let empty =
                || OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone());
            let answer = empty().with_topics(found.into_iter().map(Found::response).collect());
            let refused = || empty().with_error_code(ResponseError::PolicyViolation.code());
            if room.take(&answer, header) { answer } else { refused() }
        });
        OffsetFetchResponse::default().with_groups(found.collect())
    };
    frame::encode(ApiKey::OffsetFetch, header, &response)
}

/// Partitions of a topic whose offsets are asked for.
struct Wanted<'a> {
    topic: &'a TopicName,
    partitions: &'a [i32],
}

impl<'a> Wanted<'a> {
    fn of_old(
        asked: &'a kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic,
    ) -> Self {
        Self { topic: &asked.name, partitions: &asked.partition_indexes }
    }

    fn of_new(
        asked: &'a kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopics,
    ) -> Self {
        Self { topic: &asked.name, partitions: &asked.partition_indexes }
    }
}

/// Offsets of a topic that were found; `None` where nothing was committed.
struct Found {
    topic: TopicName,
    partitions: Vec<(i32, Option<Commit>)>,
}

/// Finds committed offsets of some topics, or of all.
fn find(groups: &Coordinator, group: &str, wanted: Option<Vec<Wanted<'_>>>) -> Vec<Found> {
    let slot = groups.find(group);
    let contents = slot.as_ref().map(|slot| slot.lock());
    let commits = contents.as_ref().map(|contents| &contents.commits);
    let Some(wanted) = wanted else {
        let all = commits.into_iter().flat_map(Commits::all);
        return all.map(|(topic, partitions)| Found::all(topic, partitions)).collect();
    };
    let found = wanted.into_iter().map(|wanted| {
        let find = |&index| {
            let commit = commits.and_then(|commits| commits.find(wanted.topic, index));
            (index, commit.cloned())
        };
        Found { topic: own(wanted.topic), partitions: wanted.partitions.iter().map(find).collect() }
    });
    found.collect()
}

impl Found {
    fn all(topic: &str, partitions: &std::collections::BTreeMap<i32, Commit>) -> Self {
        let partitions = partitions.iter().map(|(&index, commit)| (index, Some(commit.clone())));
        let topic = TopicName(StrBytes::from_string(topic.to_owned()));
        Self { topic, partitions: partitions.collect() }
    }

    fn old_response(self, version: i16) -> OffsetFetchResponseTopic {
        let partitions = self.partitions.into_iter().map(|(index, commit)| {
            let (offset, epoch, metadata) = told(commit);
            let answer = OffsetFetchResponsePartition::default()
                .with_partition_index(index)
                .with_committed_offset(offset)
                .with_metadata(Some(metadata));
            if version >= TELLS_EPOCH { answer.with_committed_leader_epoch(epoch) } else { answer }
        });
        OffsetFetchResponseTopic::default()
            .with_name(self.topic)
            .with_partitions(partitions.collect())
    }

    fn response(self) -> OffsetFetchResponseTopics {
        let partitions = self.partitions.into_iter().map(|(index, commit)| {
            let (offset, epoch, metadata) = told(commit);
            OffsetFetchResponsePartitions::default()
                .with_partition_index(index)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(epoch)
                .with_metadata(Some(metadata))
        });
        OffsetFetchResponseTopics::default()
            .with_name(self.topic)
            .with_partitions(partitions.collect())
    }
}

/// What a client is told of a commit.
fn told(commit: Option<Commit>) -> (i64, i32, StrBytes) {
    match commit {
        Some(commit) => {
            let metadata = StrBytes::from_string(commit.metadata.unwrap_or_default());
            (commit.offset, commit.leader_epoch, metadata)
        }
        None => (NONE, -1, StrBytes::default()),
    }
}
