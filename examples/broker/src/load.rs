//! The load: producers, consumers and idle pollers, each a real client, and members of a group.
//!
//! A record has the number of its producer, and its number among that producer's records in the
//! partition. Consumers check both, so they notice each record that is lost, repeated or out of
//! order. Delays of the load are timeouts of a [`Timer`] as well.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use delaywheel::Timer;
use delaywheel_broker::broker::Stats;
use rskafka::{
    chrono::DateTime,
    client::{
        ClientBuilder,
        partition::{Compression, PartitionClient, UnknownTopicHandling},
    },
    record::{Record, RecordAndOffset},
};
use tokio::{sync::watch, task::JoinSet};

use crate::{Fault, end_signal, members, report::waiting, settings::Settings};

/// The topic of producers and consumers.
const BUSY: &str = "busy";

/// The topic of idle pollers.
const QUIET: &str = "quiet";

/// How long a fetch of a consumer waits at most.
const CONSUMER_WAIT_MS: i32 = 500;

/// How long a fetch of an idle poller waits.
const POLLER_WAIT: Duration = Duration::from_millis(200);
const POLLER_WAIT_MS: i32 = 200;

/// Bytes that every other consumer waits for: some batches.
const MANY_BYTES: i32 = 2_000;

const MAX_BYTES: i32 = 1 << 20;
const RECORD_BYTES: usize = 100;
const MAX_BATCH: i64 = 8;

/// How long consumers may take for the rest when production has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of records in each partition at the end; `None` while producers run.
type Goal = Option<Vec<i64>>;

/// Clients of a kind, each with its result.
type Set<T> = JoinSet<Result<T, Fault>>;

/// The results of a load.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) serving: Duration,
    pub(crate) produced: i64,
    pub(crate) consumed: i64,
    /// How long the empty fetches of the idle pollers took, as their clients saw it.
    pub(crate) polls: Vec<Duration>,
}

/// Runs the load until its time is over, or until Ctrl-C.
pub(crate) async fn run(settings: &Settings, address: SocketAddr) -> Result<Done, Fault> {
    let timer = Timer::new();
    let client = ClientBuilder::new(vec![address.to_string()]).build().await?;
    let partition =
        |topic, index| client.partition_client(topic, index, UnknownTopicHandling::Retry);
    let (stop, stopped) = watch::channel(false);
    let (goals, goal) = watch::channel(Goal::None);
    let (mut producers, mut consumers) = (Set::new(), Set::new());
    let (mut pollers, mut members) = (Set::new(), Set::new());
    for number in 0..settings.producers {
        let mut partitions = Vec::new();
        for index in 0..settings.config.partitions {
            partitions.push(partition(BUSY, index).await?);
        }
        producers.spawn(produce(number.into(), partitions, stopped.clone()));
    }
    for index in 0..settings.config.partitions {
        consumers.spawn(consume(partition(BUSY, index).await?, goal.clone()));
    }
    for _ in 0..settings.pollers {
        pollers.spawn(poll(partition(QUIET, 0).await?, stopped.clone()));
    }
    for number in 0..settings.members {
        let dies = number == 0;
        members.spawn(members::run(address, dies, timer.clone(), stopped.clone()));
    }
    let began = Instant::now();
    // An error means that the time is over.
    let _ = timer.timeout(Duration::from_secs(settings.seconds.into()), end_signal()?).await;
    let serving = began.elapsed();
    stop.send_replace(true);
    let mut ends = vec![0; usize::try_from(settings.config.partitions)?];
    for made in all(producers).await? {
        ends.iter_mut().zip(made).for_each(|(end, made)| *end += made);
    }
    let produced = ends.iter().sum();
    goals.send_replace(Some(ends));
    let consumed = timer.timeout(PATIENCE, all(consumers)).await;
    let consumed = consumed.map_err(|_| "records did not arrive")??.into_iter().sum();
    all(members).await?;
    let polls = all(pollers).await?.concat();
    Ok(Done { serving, produced, consumed, polls })
}

impl Done {
    /// Fails if a record is missing, an answer came early, or a request still waits.
    pub(crate) fn check(&self, after: &Stats) -> Result<(), Fault> {
        let Self { produced, consumed, .. } = self;
        if produced != consumed {
            return Err(format!("{produced} records were produced, {consumed} consumed").into());
        }
        if let Some(early) = self.polls.iter().find(|took| **took < POLLER_WAIT) {
            return Err(format!("an empty poll took {early:?}, not {POLLER_WAIT:?}").into());
        }
        if waiting(after) > 0 {
            return Err(format!("{} requests still wait", waiting(after)).into());
        }
        Ok(())
    }
}

/// Waits until all clients of a kind have ended.
async fn all<T: 'static>(clients: Set<T>) -> Result<Vec<T>, Fault> {
    clients.join_all().await.into_iter().collect()
}

/// Produces to random partitions, one batch at a time. Returns the number of records in each.
async fn produce(
    producer: u32,
    partitions: Vec<PartitionClient>,
    stopped: watch::Receiver<bool>,
) -> Result<Vec<i64>, Fault> {
    let mut made = vec![0; partitions.len()];
    let mut random = fastrand::Rng::with_seed(producer.into());
    while !*stopped.borrow() {
        let index = random.usize(..partitions.len());
        let (first, count) = (made[index], random.i64(1..=MAX_BATCH));
        let records = (first..first + count).map(|number| record(producer, number)).collect();
        let offsets = partitions[index].produce(records, Compression::NoCompression).await?;
        if offsets.windows(2).any(|pair| pair[1] != pair[0] + 1) {
            return Err(format!("a batch has gaps: {offsets:?}").into());
        }
        made[index] += count;
    }
    Ok(made)
}

/// The record number `number` of a producer in a partition.
fn record(producer: u32, number: i64) -> Record {
    let mut value = producer.to_be_bytes().to_vec();
    value.extend(number.to_be_bytes());
    value.resize(RECORD_BYTES, b'.');
    let (key, headers) = (None, BTreeMap::new());
    Record { key, value: Some(value), headers, timestamp: DateTime::default() }
}

/// The producer of a record, and its number.
fn maker(record: &Record) -> Option<(u32, i64)> {
    let (producer, rest) = record.value.as_ref()?.split_first_chunk()?;
    Some((u32::from_be_bytes(*producer), i64::from_be_bytes(*rest.first_chunk()?)))
}

/// Reads a partition from its beginning, with long polls. Returns the number of records.
async fn consume(partition: PartitionClient, goal: watch::Receiver<Goal>) -> Result<i64, Fault> {
    let index = usize::try_from(partition.partition())?;
    let min_bytes = if index % 2 == 0 { 1 } else { MANY_BYTES };
    let mut next = 0;
    let mut numbers = BTreeMap::new();
    loop {
        let end = goal.borrow().as_ref().map(|ends| ends[index]);
        if end.is_some_and(|end| next >= end) {
            return Ok(next);
        }
        let fetched = partition.fetch_records(next, min_bytes..MAX_BYTES, CONSUMER_WAIT_MS);
        for RecordAndOffset { record, offset } in fetched.await?.0 {
            let (producer, number) = maker(&record).ok_or("a record is not from this load")?;
            let expected = numbers.entry(producer).or_insert(0);
            if (offset, number) != (next, *expected) {
                let place = format!("record {number} of producer {producer} at offset {offset}");
                let due = format!("not record {expected} at offset {next}");
                return Err(format!("partition {index} has {place}, {due}").into());
            }
            *expected += 1;
            next += 1;
        }
    }
}

/// Polls a partition without records. Returns how long each poll took.
async fn poll(
    partition: PartitionClient,
    stopped: watch::Receiver<bool>,
) -> Result<Vec<Duration>, Fault> {
    let mut polls = Vec::new();
    while !*stopped.borrow() {
        let began = Instant::now();
        let (records, _) = partition.fetch_records(0, 1..MAX_BYTES, POLLER_WAIT_MS).await?;
        if !records.is_empty() {
            return Err("the quiet topic has a record".into());
        }
        polls.push(began.elapsed());
    }
    Ok(polls)
}
