//! Produce: appends, and, if the client asks for it, waits until the follower has the records.

use std::{sync::Arc, time::Duration};

use delaywheel::{Completion, DelayedOperation, Watch};
use tokio::sync::oneshot;

use super::{
    Broker, Reply,
    batch::Batch,
    frame,
    log::{Partition, Placed},
    metadata::own,
    request::{Header, Malformed},
    waiting::Waiting,
};
use crate::prelude::*;

/// The records that a request has appended, and how its wait ended.
type Ended = (Written, Completion);

/// A produce request that waits for the follower.
pub(super) struct Produce {
    written: Written,
    ended: oneshot::Sender<Ended>,
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

/// Handles a produce request.
pub(super) fn handle(
    broker: &Broker,
    header: Header,
    asked: ProduceRequest,
) -> Result<Reply, Malformed> {
    broker.counts.update(|counts| counts.produces += 1);
    let (acks, timeout_ms) = (asked.acks, asked.timeout_ms);
    let written = Written::append(broker, asked);
    broker.appended(&written.partitions());
    match acks {
        // The client wants no answer, so the broker reports an error by closing the connection.
        0 if written.has_failed() => Err(Malformed),
        0 => Ok(Reply::Nothing),
        -1 if written.appended().next().is_some() => Ok(wait(broker, header, written, timeout_ms)),
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
    let watched = produces.watch_all(produce, thresholds, timeout);
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
        Completion::Cancelled(()) => Some(ResponseError::UnknownTopicOrPartition),
        _ => Some(ResponseError::RequestTimedOut),
    }
}

/// The records that a request has appended.
struct Written {
    topics: Vec<(TopicName, Vec<WrittenPartition>)>,
}

struct WrittenPartition {
    index: i32,
    outcome: Result<Appended, ResponseError>,
}

struct Appended {
    partition: Arc<Partition>,
    base: i64,
    /// One past the last record.
    end: i64,
}

impl Written {
    /// Appends the records of a request. Each partition fails on its own.
    fn append(broker: &Broker, asked: ProduceRequest) -> Self {
        let refused = refusal(&asked);
        let topics = asked.topic_data.into_iter().map(|topic| {
            let written = topic.partition_data.into_iter().map(|data| {
                let partition = broker.topics.partition(&topic.name, data.index);
                let partition = partition.ok_or(ResponseError::UnknownTopicOrPartition);
                let partition = refused.map_or(partition, Err);
                let outcome = partition.and_then(|partition| append(broker, partition, &data));
                WrittenPartition { index: data.index, outcome }
            });
            (own(&topic.name), written.collect())
        });
        Self { topics: topics.collect() }
    }

    fn all(&self) -> impl Iterator<Item = &WrittenPartition> {
        self.topics.iter().flat_map(|(_, partitions)| partitions)
    }

    fn appended(&self) -> impl Iterator<Item = &Appended> {
        self.all().filter_map(|written| written.outcome.as_ref().ok())
    }

    fn partitions(&self) -> Vec<Arc<Partition>> {
        self.appended().map(|appended| Arc::clone(&appended.partition)).collect()
    }

    /// The condition of the wait: each partition is replicated up to the end of the appended
    /// records.
    fn thresholds(&self) -> Vec<Watch<Arc<Partition>>> {
        let threshold = |appended: &Appended| {
            Watch::Threshold(Arc::clone(&appended.partition), appended.end.unsigned_abs())
        };
        self.appended().map(threshold).collect()
    }

    fn has_failed(&self) -> bool {
        self.all().any(|written| written.outcome.is_err())
    }

    /// Makes the answer. `error` is the error of appended records that are not replicated, if they
    /// have to be.
    fn encode(self, header: Header, error: Option<ResponseError>) -> Result<BytesMut, Malformed> {
        let responses = self.topics.into_iter().map(|(topic, written)| {
            let partitions = written.into_iter().map(|written| written.respond(error));
            TopicProduceResponse::default()
                .with_name(topic)
                .with_partition_responses(partitions.collect())
        });
        let response = ProduceResponse::default().with_responses(responses.collect());
        frame::encode(header, &response)
    }
}

impl WrittenPartition {
    fn respond(self, error: Option<ResponseError>) -> PartitionProduceResponse {
        let response = PartitionProduceResponse::default().with_index(self.index);
        let outcome = match self.outcome {
            Ok(appended) if appended.is_replicated() => Ok(appended),
            Ok(appended) => error.map_or(Ok(appended), Err),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(appended) => response
                .with_base_offset(appended.base)
                .with_log_start_offset(appended.partition.lock().start),
            Err(error) => response.with_error_code(error.code()).with_base_offset(-1),
        }
    }
}

impl Appended {
    fn is_replicated(&self) -> bool {
        self.partition.high_watermark() >= self.end
    }
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

fn append(
    broker: &Broker,
    partition: Arc<Partition>,
    data: &PartitionProduceData,
) -> Result<Appended, ResponseError> {
    let records = data.records.as_ref().ok_or(ResponseError::CorruptMessage)?;
    if records.len() > broker.config.max_message_bytes {
        return Err(ResponseError::MessageTooLarge);
    }
    let batch = Batch::check(records)?;
    let count = batch.count;
    let Placed { base, is_new } = partition.lock().append(batch, &broker.storage)?;
    if is_new {
        if broker.follower.is_none() {
            partition.lock().replicated(base + count);
        }
        broker.counts.update(|counts| counts.records += count.unsigned_abs());
        broker.storage.make_room(|| broker.topics.partitions());
    } else {
        broker.counts.update(|counts| counts.duplicates += 1);
    }
    Ok(Appended { partition, base, end: base + count })
}
