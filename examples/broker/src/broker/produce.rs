//! Produce: appends, and, if the client asks for it, waits until the follower has the records.

use std::{sync::Arc, time::Duration};

use delaywheel::{Completion, Condition, DelayedOperation, Watch};
use tokio::sync::oneshot;

use super::{
    Broker, Handled, Reply,
    batch::Batch,
    frame,
    log::{Partition, Placed},
    metadata::own,
    request::{Header, Malformed},
    waiting::Waiting,
};
use crate::prelude::*;

/// A produce request that waits for the follower.
pub(super) struct Produce {
    written: Written,
    ended: oneshot::Sender<(Written, Completion)>,
}

impl DelayedOperation<Arc<Partition>> for Produce {
    fn has_reached(&mut self, partition: &Arc<Partition>, end: u64) -> bool {
        partition.high_watermark().unsigned_abs() >= end
    }

    fn complete(self, completion: Completion) {
        // If the receiver is gone, no answer is needed.
        let _ = self.ended.send((self.written, completion));
    }
}

pub(super) fn handle(broker: &Broker, header: Header, asked: ProduceRequest) -> Handled {
    broker.counts.update(|counts| counts.produces += 1);
    let (acks, timeout_ms) = (asked.acks, asked.timeout_ms);
    let written = Written::append(broker, asked);
    broker.appended(written.partitions());
    match acks {
        // The client wants no answer, so the broker reports an error by closing the connection.
        0 if written.has_failed() => Err(Malformed),
        0 => Ok(Reply::Nothing),
        -1 if !written.appended.is_empty() => Ok(wait(broker, header, written, timeout_ms)),
        _ => written.encode(header, None).map(Reply::Now),
    }
}

/// Waits until every partition is replicated as far as this request has written it.
fn wait(broker: &Broker, header: Header, written: Written, timeout_ms: i32) -> Reply {
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    let thresholds = written.thresholds();
    let (sender, ended) = oneshot::channel();
    let produce = Produce { written, ended: sender };
    let produces = &broker.waiters.produces;
    let watched = produces.watch(produce, Watch::all(thresholds), timeout);
    let waiting = Waiting::new(produces, watched, ended);
    Reply::Later(Box::pin(async move {
        let (written, completion) = waiting.ended().await?;
        written.encode(header, error(completion)).ok()
    }))
}

/// The error of partitions that were not replicated when the wait ended.
///
/// The records are in the log nevertheless. Clients must expect that of both errors.
const fn error(completion: Completion) -> Option<ResponseError> {
    match completion {
        Completion::Satisfied => None,
        Completion::ShutDown => Some(ResponseError::NotLeaderOrFollower),
        Completion::Cancelled => Some(ResponseError::UnknownTopicOrPartition),
        _ => Some(ResponseError::RequestTimedOut),
    }
}

/// A request whose appends are done.
struct Written {
    /// The answer, as if all records were replicated.
    response: ProduceResponse,
    appended: Vec<Appended>,
}

/// An append that has succeeded.
struct Appended {
    partition: Arc<Partition>,
    /// The offset after the last record.
    end: i64,
    /// The index of its topic in the answer, and its index in the answer about the topic.
    at: (usize, usize),
}

impl Written {
    /// Appends the records of a request. Each partition fails on its own.
    fn append(broker: &Broker, asked: ProduceRequest) -> Self {
        let refusal = refusal(&asked);
        let mut appended = Vec::new();
        let topics = asked.topic_data.into_iter().enumerate().map(|(topic_at, topic)| {
            let answers = topic.partition_data.into_iter().enumerate().map(|(at, data)| {
                let partition = broker.topics.partition(&topic.name, data.index);
                let partition = partition.ok_or(ResponseError::UnknownTopicOrPartition);
                let answer = refusal.map_or(partition, Err).and_then(|partition| {
                    let (base, end) = append(broker, &partition, &data)?;
                    let start = partition.lock().start;
                    appended.push(Appended { partition, end, at: (topic_at, at) });
                    Ok(PartitionProduceResponse::default()
                        .with_index(data.index)
                        .with_base_offset(base)
                        .with_log_start_offset(start))
                });
                answer.unwrap_or_else(|error| failed(data.index, error))
            });
            TopicProduceResponse::default()
                .with_partition_responses(answers.collect())
                .with_name(own(&topic.name))
        });
        let response = ProduceResponse::default().with_responses(topics.collect());
        Self { response, appended }
    }

    fn partitions(&self) -> Vec<Arc<Partition>> {
        self.appended.iter().map(|appended| Arc::clone(&appended.partition)).collect()
    }

    /// Returns the offsets that the partitions have to replicate.
    fn thresholds(&self) -> Vec<Condition<Arc<Partition>>> {
        let threshold = |appended: &Appended| {
            Condition::Threshold(Arc::clone(&appended.partition), appended.end.unsigned_abs())
        };
        self.appended.iter().map(threshold).collect()
    }

    fn has_failed(&self) -> bool {
        let mut topics = self.response.responses.iter();
        topics.any(|topic| topic.partition_responses.iter().any(|answer| answer.error_code != 0))
    }

    /// Makes the answer, with this error for records that are not replicated.
    fn encode(
        mut self,
        header: Header,
        error: Option<ResponseError>,
    ) -> Result<BytesMut, Malformed> {
        for Appended { partition, end, at: (topic, index) } in self.appended {
            let answer = &mut self.response.responses[topic].partition_responses[index];
            if let Some(error) = error.filter(|_| partition.high_watermark() < end) {
                *answer = failed(answer.index, error);
            }
        }
        frame::encode(header, &self.response)
    }
}

fn failed(index: i32, error: ResponseError) -> PartitionProduceResponse {
    PartitionProduceResponse::default()
        .with_index(index)
        .with_error_code(error.code())
        .with_base_offset(-1)
}

/// The error of a request as a whole.
fn refusal(asked: &ProduceRequest) -> Option<ResponseError> {
    if !(-1..=1).contains(&asked.acks) {
        Some(ResponseError::InvalidRequiredAcks)
    } else if asked.transactional_id.is_some() {
        Some(ResponseError::TransactionalIdAuthorizationFailed)
    } else {
        None
    }
}

/// Appends records to a partition. Returns the offset of the first, and the offset after the last.
fn append(
    broker: &Broker,
    partition: &Partition,
    data: &PartitionProduceData,
) -> Result<(i64, i64)> {
    let records = data.records.as_ref().ok_or(ResponseError::CorruptMessage)?;
    if records.len() > broker.config.max_message_bytes {
        return Err(ResponseError::MessageTooLarge);
    }
    let batch = Batch::check(records)?;
    let count = batch.count;
    let Placed { base, is_new } = partition.lock().append(batch, &broker.storage)?;
    if is_new {
        broker.counts.update(|counts| counts.records += count.unsigned_abs());
        broker.storage.make_room(|| broker.topics.partitions());
    }
    Ok((base, base + count))
}
