//! Consumer groups: rebalances, deaths, commits, limits, and every version of their requests.

use std::time::Duration;

use crate::prelude::*;

fn commit(member: &StrBytes, generation: i32, offset: i64) -> OffsetCommitRequest {
    let partition = |index| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_committed_metadata(Some(text(&"x".repeat(1_000))))
    };
    let partitions = (0..4).map(partition).collect();
    let topic =
        OffsetCommitRequestTopic::default().with_name(name(TOPIC)).with_partitions(partitions);
    OffsetCommitRequest::default()
        .with_group_id(group())
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(member.clone())
        .with_topics(vec![topic])
}

/// The committed offsets of some partitions.
async fn committed(client: &mut Client, version: i16, partitions: Vec<i32>) -> Vec<i64> {
    if version >= 8 {
        let topic = OffsetFetchRequestTopics::default().with_name(name(TOPIC));
        let group = OffsetFetchRequestGroup::default().with_group_id(group());
        let group = group.with_topics(Some(vec![topic.with_partition_indexes(partitions)]));
        let request = OffsetFetchRequest::default().with_groups(vec![group]);
        let found = &client.call_in(version, &request).await.groups[0].topics[0].partitions;
        return found.iter().map(|partition| partition.committed_offset).collect();
    }
    let topic = OffsetFetchRequestTopic::default().with_name(name(TOPIC));
    let topics = Some(vec![topic.with_partition_indexes(partitions)]);
    let request = OffsetFetchRequest::default().with_group_id(group()).with_topics(topics);
    let found = client.call_in(version, &request).await.topics;
    found[0].partitions.iter().map(|partition| partition.committed_offset).collect()
}

/// A request to join without an id, with this many bytes of a protocol, 1,000 of them its name.
fn join_with(bytes: usize) -> JoinGroupRequest {
    let mut request = join(&StrBytes::default());
    request.protocols[0].name = text(&"x".repeat(1_000));
    request.protocols[0].metadata = vec![0; bytes - 1_000].into();
    request
}

#[tokio::test]
async fn a_member_joins_syncs_and_leaves_in_every_version() {
    let server = start(Config { group_delay: Duration::ZERO, ..config() }).await;
    let client = &mut Client::connect(server.address()).await;
    for version in 0..=8 {
        let joined = client.call_in(version, &join(&StrBytes::default())).await;
        assert_eq!((joined.error_code, joined.members.len()), (0, 1), "version {version}");
        let (member, generation) = (joined.member_id, joined.generation_id);
        assert_eq!(client.call_in(version.min(5), &sync(&member, generation)).await.error_code, 0);
        let heartbeat = HeartbeatRequest::default().with_group_id(group());
        let heartbeat = heartbeat.with_member_id(member.clone()).with_generation_id(generation);
        assert_eq!(client.call_in(version.min(4), &heartbeat).await.error_code, 0);
        let delete = DeleteGroupsRequest::default().with_groups_names(vec![group()]);
        let deleted = client.call_in(0, &delete).await.results[0].error_code;
        assert_eq!(deleted, ResponseError::NonEmptyGroup.code());
        for code in [0, ResponseError::UnknownMemberId.code()] {
            let leave = LeaveGroupRequest::default().with_group_id(group());
            let who = MemberIdentity::default().with_member_id(member.clone());
            let leave = match version {
                ..=2 => leave.with_member_id(member.clone()),
                _ => leave.with_members(vec![who]),
            };
            let left = client.call_in(version.min(5), &leave).await;
            let left = left.members.first().map_or(left.error_code, |member| member.error_code);
            assert_eq!(left, code, "version {version}");
        }
    }
    let unknown = Some(ResponseError::UnknownMemberId);
    in_every_version(client, |_| join(&text("nobody")), unknown).await;
    let short = Some(ResponseError::InvalidSessionTimeout);
    in_every_version(client, |_| join(&text("")).with_session_timeout_ms(0), short).await;
}

#[tokio::test]
async fn requests_about_groups_are_answered_in_every_version() {
    let server = system_broker().await;
    let client = &mut Client::connect(server.address()).await;
    let find = |version| match version {
        ..4 => FindCoordinatorRequest::default().with_key(text("group")),
        _ => FindCoordinatorRequest::default().with_coordinator_keys(vec![text("group")]),
    };
    in_every_version(client, find, None).await;
    let found = client.call_in(3, &find(3)).await;
    assert_eq!((i32::from(server.address().port()), None), (found.port, found.error_message));
    let several = client.call_in(4, &find(4)).await.coordinators;
    assert_eq!((several[0].port, &*several[0].key), (found.port, "group"));
    let offset = |version: i16| commit(&StrBytes::default(), -1, version.into());
    in_every_version(client, offset, None).await;
    for version in 1..=8 {
        assert_eq!(committed(client, version, vec![1, 4]).await, [9, -1], "version {version}");
    }
    let all = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![all; 7_900]);
    let found = client.call_in(8, &request).await.groups;
    let answered = found.iter().filter(|group| !group.topics.is_empty()).count();
    assert!(answered * 4_000 < 16 << 20, "an answer repeats {answered} groups");
    assert_eq!(found[answered].error_code, ResponseError::PolicyViolation.code());
    let groups = vec![group(), GroupId(text("other"))];
    let describe = DescribeGroupsRequest::default().with_groups(groups);
    in_every_version(client, |_| describe.clone(), None).await;
    let described = client.call_in(5, &describe).await.groups;
    let states: Vec<_> = described.iter().map(|group| &*group.group_state).collect();
    assert_eq!(states, ["Empty", "Dead"]);
    in_every_version(client, |_| ListGroupsRequest::default(), None).await;
    assert_eq!(client.call_in(4, &ListGroupsRequest::default()).await.groups[0].group_id, group());
    let delete = DeleteGroupsRequest::default().with_groups_names(vec![group()]);
    assert_eq!(client.call_in(0, &delete).await.results[0].error_code, 0);
    in_every_version(client, |_| delete.clone(), Some(ResponseError::GroupIdNotFound)).await;
    assert_eq!(committed(client, 5, vec![1]).await, [-1]);
    let commit = |group: usize, member: &str| {
        commit(&text(member), -1, 7).with_group_id(GroupId(text(&format!("group{group}"))))
    };
    client.call(&offset(7)).await;
    for group in 1..1_000 {
        client.call(&commit(group, "")).await;
    }
    for (member, left) in [("nobody", 7), ("", -1)] {
        client.call(&commit(1_000, member)).await;
        assert_eq!(committed(client, 5, vec![1]).await, [left], "of the group unused for longest");
    }
    let delete = DeleteTopicsRequest::default().with_topic_names(vec![name(TOPIC)]);
    client.call(&delete).await;
    assert_eq!(server.broker().stats().groups.groups, 0, "none has members or commits");
}

#[tokio::test]
async fn the_metadata_of_all_members_is_bounded_and_so_are_answers_that_repeat_it() {
    const BYTES: usize = 256 << 10;
    let (server, clock) = virtual_broker(10 * MS).await;
    let mut members = Vec::new();
    for _ in 0..16 {
        members.push(waiting_client(&server, &join_with(BYTES)).await);
    }
    let client = &mut Client::connect(server.address()).await;
    let refused = client.call(&join_with(1_000)).await;
    assert_eq!(refused.error_code, ResponseError::GroupMaxSizeReached.code());
    let refused = client.call(&join_with(BYTES + 1)).await;
    assert_eq!(refused.error_code, ResponseError::InvalidRequest.code());
    let refused = client.call(&join(&StrBytes::default())).await;
    assert_eq!(refused.error_code, ResponseError::InconsistentGroupProtocol.code());
    // Names without bytes take memory as well.
    let mut many = join(&StrBytes::default());
    many.protocols = vec![JoinGroupRequestProtocol::default(); 51];
    assert_eq!(client.call(&many).await.error_code, ResponseError::InvalidRequest.code());
    clock.advance(6_000 * MS);
    let request = DescribeGroupsRequest::default().with_groups(vec![group(); 4_000]);
    let described = client.call_in(5, &request).await.groups;
    let bytes = |group: &DescribedGroup| -> usize {
        group.members.iter().map(|member| member.member_metadata.len()).sum()
    };
    let is_refused = |group: &&DescribedGroup| {
        bytes(group) == 0 && group.error_code == ResponseError::PolicyViolation.code()
    };
    assert_eq!(bytes(&described[0]), 16 * (BYTES - 1_000), "one group fits");
    assert_eq!(described.iter().filter(is_refused).count(), 4_000 - 4);
}
