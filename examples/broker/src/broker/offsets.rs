//! `ListOffsets`: where a partition begins, where it ends, and where a time is.

use super::{
    log::Partition,
    metadata::{Topics, own},
};
use crate::prelude::*;

/// Asks for the offset of the next record.
const LATEST: i64 = -1;
/// Asks for the offset of the oldest record.
const EARLIEST: i64 = -2;
/// Neither an offset nor a time.
const NONE: i64 = -1;

/// Returns the offsets for which a client asks.
pub(super) fn list(topics: &Topics, asked: &ListOffsetsRequest) -> ListOffsetsResponse {
    let answered = asked.topics.iter().map(|topic| {
        let answered = topic.partitions.iter().map(|asked| {
            let partition = topics.partition(&topic.name, asked.partition_index);
            answer(asked, partition.as_deref())
        });
        ListOffsetsTopicResponse::default()
            .with_name(own(&topic.name))
            .with_partitions(answered.collect())
    });
    ListOffsetsResponse::default().with_topics(answered.collect())
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
        EARLIEST => (partition.lock().start, NONE),
        time => partition.lock().find(time).unwrap_or((NONE, NONE)),
    };
    answer.with_offset(offset).with_timestamp(timestamp)
}
