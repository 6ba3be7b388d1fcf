//! `ListOffsets`: where a partition begins, where it ends, and where a time is.

use bytes::BytesMut;
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, ListOffsetsRequest, ListOffsetsResponse,
        list_offsets_request::ListOffsetsPartition,
        list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse},
    },
};

use super::{
    frame,
    log::Partition,
    metadata::{Topics, own},
    request::{Header, Malformed},
};

/// Asks for the offset of the next record.
const LATEST: i64 = -1;
/// Asks for the offset of the oldest record.
const EARLIEST: i64 = -2;
/// Neither an offset nor a time.
const NONE: i64 = -1;

/// Tells the offsets that a client asks for.
pub(super) fn reply(
    topics: &Topics,
    header: Header,
    asked: &ListOffsetsRequest,
) -> Result<BytesMut, Malformed> {
    let answered = asked.topics.iter().map(|topic| {
        let partitions = topics.find(&topic.name);
        let answered = topic.partitions.iter().map(|asked| {
            let index = usize::try_from(asked.partition_index).ok();
            answer(asked, index.and_then(|index| Some(&**partitions.as_ref()?.get(index)?)))
        });
        ListOffsetsTopicResponse::default()
            .with_name(own(&topic.name))
            .with_partitions(answered.collect())
    });
    let response = ListOffsetsResponse::default().with_topics(answered.collect());
    frame::encode(ApiKey::ListOffsets, header, &response)
}

fn answer(
    asked: &ListOffsetsPartition,
    partition: Option<&Partition>,
) -> ListOffsetsPartitionResponse {
    let answer =
        ListOffsetsPartitionResponse::default().with_partition_index(asked.partition_index);
    let Some(partition) = partition else {
        return answer.with_error_code(ResponseError::UnknownTopicOrPartition.code());
    };
    let (offset, timestamp) = match asked.timestamp {
        LATEST => (partition.high_watermark(), NONE),
        EARLIEST => (partition.start(), NONE),
        time => partition.find(time).unwrap_or((NONE, NONE)),
    };
    answer.with_offset(offset).with_timestamp(timestamp)
}
