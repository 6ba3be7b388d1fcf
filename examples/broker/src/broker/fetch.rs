//! Fetch: waits until there is enough to read, for at most the time that the client sets.

use std::{sync::Arc, time::Duration};

use delaywheel::{Completion, DelayedOperation};
use tokio::sync::oneshot;

use super::{
    Broker, Handled, Reply, frame,
    log::Partition,
    metadata::own,
    request::{Header, Malformed},
    waiting::Waiting,
};
use crate::prelude::*;

/// Delay that the broker asks of a client whose fetch was displaced.
const THROTTLE_MS: i32 = 100;

pub(super) struct Fetch {
    wanted: Wanted,
    ended: oneshot::Sender<(Wanted, Completion)>,
}

impl DelayedOperation<Arc<Partition>> for Fetch {
    fn try_complete(&mut self) -> bool {
        self.wanted.is_there()
    }

    /// Hands the request to its connection, which reads the logs and sends the records. So neither
    /// an append nor the reaper does that work.
    fn complete(self, completion: Completion) {
        // If the receiver is gone, no answer is needed.
        let _ = self.ended.send((self.wanted, completion));
    }
}

pub(super) fn handle(broker: &Broker, header: Header, asked: &FetchRequest) -> Handled {
    broker.counts.update(|counts| counts.fetches += 1);
    // There are no fetch sessions: a request for one gets none, and a request within one gets an
    // error.
    if asked.session_id != 0 && asked.session_epoch > 0 {
        let error = ResponseError::FetchSessionIdNotFound;
        let refused = FetchResponse::default().with_error_code(error.code());
        return frame::encode(header, &refused).map(Reply::Now);
    }
    let wanted = Wanted::new(broker, asked);
    let max_wait = Duration::from_millis(u64::try_from(asked.max_wait_ms).unwrap_or(0));
    if max_wait.is_zero() {
        // Read just before it is written: a client may ask much faster than it reads.
        return Ok(Reply::Later(Box::pin(async move { wanted.encode(header, 0).ok() })));
    }
    let partitions = wanted.partitions();
    let (sender, ended) = oneshot::channel();
    let fetch = Fetch { wanted, ended: sender };
    let fetches = &broker.waiters.fetches;
    let watched = fetches.watch(fetch, partitions, max_wait);
    let waiting = Waiting::new(fetches, watched, ended);
    Ok(Reply::Later(Box::pin(async move {
        let (wanted, completion) = waiting.ended().await?;
        let is_displaced = matches!(completion, Completion::Displaced);
        wanted.encode(header, if is_displaced { THROTTLE_MS } else { 0 }).ok()
    })))
}

/// The reads of a fetch.
struct Wanted {
    topics: Vec<(TopicName, Vec<WantedPartition>)>,
    min_bytes: u64,
    max_bytes: usize,
}

struct WantedPartition {
    index: i32,
    /// `None` if there is no such partition.
    partition: Option<Arc<Partition>>,
    offset: i64,
    max_bytes: usize,
}

impl Wanted {
    fn new(broker: &Broker, asked: &FetchRequest) -> Self {
        let max_bytes = usize::try_from(asked.max_bytes).unwrap_or(0);
        let max_bytes = max_bytes.min(broker.config.max_fetch_bytes);
        // A fetch that asks for more bytes than it accepts would always wait for its timeout.
        let min_bytes = u64::try_from(asked.min_bytes).unwrap_or(0).min(max_bytes as u64);
        let topics = asked.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|wanted| WantedPartition {
                index: wanted.partition,
                partition: broker.topics.partition(&topic.topic, wanted.partition),
                offset: wanted.fetch_offset,
                max_bytes: usize::try_from(wanted.partition_max_bytes).unwrap_or(0),
            });
            (own(&topic.topic), partitions.collect())
        });
        Self { topics: topics.collect(), min_bytes, max_bytes }
    }

    /// The partitions that the fetch waits on.
    fn partitions(&self) -> Vec<Arc<Partition>> {
        let wanted = self.topics.iter().flat_map(|(_, partitions)| partitions);
        wanted.filter_map(|wanted| wanted.partition.clone()).collect()
    }

    /// Whether there is enough to read, or an error to report.
    fn is_there(&self) -> bool {
        let mut bytes = 0_u64;
        for wanted in self.topics.iter().flat_map(|(_, partitions)| partitions) {
            let Ok(readable) = wanted.readable_bytes() else { return true };
            bytes += readable;
        }
        bytes >= self.min_bytes
    }

    /// Reads the records, and makes the answer.
    fn encode(self, header: Header, throttle_ms: i32) -> Result<BytesMut, Malformed> {
        let mut left = self.max_bytes;
        let mut must_progress = true;
        let responses = self.topics.into_iter().map(|(topic, wanted)| {
            let read = wanted.into_iter().map(|wanted| {
                let data = wanted.read(left, must_progress);
                let length = data.records.as_ref().map_or(0, Bytes::len);
                left = left.saturating_sub(length);
                must_progress &= length == 0;
                data
            });
            FetchableTopicResponse::default().with_topic(topic).with_partitions(read.collect())
        });
        let responses = responses.collect();
        let response =
            FetchResponse::default().with_throttle_time_ms(throttle_ms).with_responses(responses);
        frame::encode(header, &response)
    }
}

impl WantedPartition {
    fn readable_bytes(&self) -> Result<u64> {
        let partition = self.partition.as_ref().ok_or(ResponseError::UnknownTopicOrPartition)?;
        Ok(partition.lock().readable_bytes(self.offset)?.min(self.max_bytes as u64))
    }

    fn read(&self, left: usize, must_progress: bool) -> PartitionData {
        let data = PartitionData::default()
            .with_partition_index(self.index)
            .with_records(Some(Bytes::new()));
        let Some(partition) = &self.partition else {
            let error = ResponseError::UnknownTopicOrPartition;
            return data.with_error_code(error.code()).with_high_watermark(-1);
        };
        let log = partition.lock();
        match log.read(self.offset, self.max_bytes.min(left), must_progress) {
            Ok(records) => data
                .with_high_watermark(log.high_watermark)
                .with_last_stable_offset(log.high_watermark)
                .with_log_start_offset(log.start)
                .with_records(Some(records)),
            Err(error) => data.with_error_code(error.code()).with_high_watermark(-1),
        }
    }
}
