//! The load: producers, consumers and idle pollers, each a real client, and what came of it.
//!
//! A record says who made it and which of its maker's records in that partition it is. Consumers
//! check that against what they have seen, so that a record which is lost, doubled or out of place
//! is noticed where it happens. Whoever waits for time to pass here does so on a timer of
//! `delaywheel` as well.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use delaywheel::Timer;
use delaywheel_broker::broker::Broker;
use rskafka::{
    chrono::DateTime,
    client::{
        Client, ClientBuilder,
        partition::{Compression, PartitionClient, UnknownTopicHandling},
    },
    record::{Record, RecordAndOffset},
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
};

use crate::{Fault, members, report, settings::Settings, signal};

/// The topic that is produced to.
const BUSY: &str = "busy";

/// The topic where nothing happens.
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
const MAX_BATCH: u64 = 8;

/// How long consumers may take for what is left when production has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// A load that is to be run.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    settings: &'a Settings,
    address: SocketAddr,
    broker: &'a Broker,
    timer: Timer,
    tally: Arc<Tally>,
}

/// Counts of what the clients do, as they do it.
#[derive(Debug, Default)]
struct Tally {
    produced: AtomicU64,
    consumed: AtomicU64,
}

/// What came of a load.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) serving: Duration,
    pub(crate) produced: u64,
    pub(crate) consumed: u64,
    pub(crate) polls: Polls,
}

/// Fetches of idle pollers that came back empty, as their clients saw them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Polls {
    pub(crate) count: u64,
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

impl<'a> Load<'a> {
    pub(crate) fn new(settings: &'a Settings, address: SocketAddr, broker: &'a Broker) -> Self {
        let (timer, tally) = (Timer::new(), Arc::default());
        Self { settings, address, broker, timer, tally }
    }

    /// Runs it, until its time is over or the user has had enough.
    pub(crate) async fn run(&self) -> Result<Done, Fault> {
        let (stop, stopped) = watch::channel(false);
        let (goals, goal) = watch::channel(None);
        let mut producers = self.producers(&stopped).await?;
        let mut consumers = self.consumers(&goal).await?;
        let mut pollers = self.pollers(&stopped).await?;
        let mut members = self.members(&stopped);
        let began = Instant::now();
        self.progress(began).await?;
        let serving = began.elapsed();
        stop.send_replace(true);
        goals.send_replace(Some(sums(&mut producers, self.settings.config.partitions).await?));
        tokio::select! {
            outcome = all(&mut consumers) => { outcome?; }
            () = pause(&self.timer, PATIENCE) => return Err("records did not arrive".into()),
        }
        all(&mut members).await?;
        let mut polls = Polls::NONE;
        for more in all(&mut pollers).await? {
            polls.add(more);
        }
        let Tally { produced, consumed } = &*self.tally;
        let (produced, consumed) =
            (produced.load(Ordering::Relaxed), consumed.load(Ordering::Relaxed));
        Ok(Done { serving, produced, consumed, polls })
    }

    async fn producers(&self, stopped: &watch::Receiver<bool>) -> Result<Set<Vec<i64>>, Fault> {
        let mut producers = JoinSet::new();
        for number in 0..self.settings.producers {
            let client = self.client().await?;
            let partitions =
                self.partitions(&client, BUSY, self.settings.config.partitions).await?;
            let tally = Arc::clone(&self.tally);
            let producer = Producer::new(number, partitions, tally);
            producers.spawn(producer.run(stopped.clone()));
        }
        Ok(producers)
    }

    async fn consumers(&self, goal: &watch::Receiver<Goal>) -> Result<Set<()>, Fault> {
        let client = self.client().await?;
        let mut consumers = JoinSet::new();
        for partition in self.partitions(&client, BUSY, self.settings.config.partitions).await? {
            let consumer = Consumer::new(partition, Arc::clone(&self.tally));
            consumers.spawn(consumer.run(goal.clone()));
        }
        Ok(consumers)
    }

    async fn pollers(&self, stopped: &watch::Receiver<bool>) -> Result<Set<Polls>, Fault> {
        let client = self.client().await?;
        let mut pollers = JoinSet::new();
        for _ in 0..self.settings.pollers {
            let partition = client.partition_client(QUIET, 0, UnknownTopicHandling::Retry).await?;
            pollers.spawn(poll(partition, stopped.clone()));
        }
        Ok(pollers)
    }

    /// Members of a group, the first of which dies.
    fn members(&self, stopped: &watch::Receiver<bool>) -> Set<()> {
        let mut set = JoinSet::new();
        for number in 0..self.settings.members {
            let timer = self.timer.clone();
            set.spawn(members::run(self.address, number == 0, timer, stopped.clone()));
        }
        set
    }

    async fn client(&self) -> Result<Client, Fault> {
        Ok(ClientBuilder::new(vec![self.address.to_string()]).build().await?)
    }

    /// Clients of all partitions of a topic, each with a connection of its own.
    async fn partitions(
        &self,
        client: &Client,
        topic: &str,
        count: i32,
    ) -> Result<Vec<PartitionClient>, Fault> {
        let mut partitions = Vec::new();
        for index in 0..count {
            let partition = client.partition_client(topic, index, UnknownTopicHandling::Retry);
            partitions.push(partition.await?);
        }
        Ok(partitions)
    }

    /// Prints how it goes, once a second, until the time is over.
    async fn progress(&self, began: Instant) -> Result<(), Fault> {
        let mut interrupted = std::pin::pin!(signal::ended()?);
        let end = began + self.settings.duration;
        report::print_heading();
        for second in 1.. {
            let next = (began + Duration::from_secs(second)).min(end);
            tokio::select! {
                () = pause(&self.timer, next.saturating_duration_since(Instant::now())) => {}
                () = &mut interrupted => return Ok(()),
            }
            let consumed = self.tally.consumed.load(Ordering::Relaxed);
            report::print_progress(began.elapsed(), self.broker, consumed);
            if next == end {
                break;
            }
        }
        Ok(())
    }
}

impl Done {
    /// Fails if a record went missing, an answer came early, or something is left waiting.
    pub(crate) fn check(&self, after: &report::Snapshot) -> Result<(), Fault> {
        if self.produced != self.consumed {
            let Self { produced, consumed, .. } = self;
            return Err(format!("{produced} records were produced, {consumed} consumed").into());
        }
        if self.polls.count > 0 && self.polls.shortest < POLLER_WAIT {
            return Err(format!("an empty poll took {:?}, not {POLLER_WAIT:?}", {
                self.polls.shortest
            })
            .into());
        }
        if after.waiting() > 0 {
            return Err(format!("{} requests are left waiting", after.waiting()).into());
        }
        Ok(())
    }
}

impl Polls {
    const NONE: Self = Self { count: 0, shortest: Duration::MAX, longest: Duration::ZERO };

    fn record(&mut self, took: Duration) {
        self.add(Self { count: 1, shortest: took, longest: took });
    }

    fn add(&mut self, more: Self) {
        self.count += more.count;
        self.shortest = self.shortest.min(more.shortest);
        self.longest = self.longest.max(more.longest);
    }
}

/// Clients of a kind, each with its result.
type Set<T> = JoinSet<Result<T, Fault>>;

/// How many records each partition holds in the end; `None` while they are still produced.
type Goal = Option<Vec<i64>>;

/// Waits until all have ended.
async fn all<T: 'static>(set: &mut Set<T>) -> Result<Vec<T>, Fault> {
    let mut results = Vec::new();
    while let Some(ended) = set.join_next().await {
        results.push(ended??);
    }
    Ok(results)
}

/// How many records all producers have made, by partition.
async fn sums(producers: &mut Set<Vec<i64>>, partitions: i32) -> Result<Vec<i64>, Fault> {
    let mut sums = vec![0; usize::try_from(partitions)?];
    for counts in all(producers).await? {
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    Ok(sums)
}

/// Makes records in random partitions, a batch at a time, each when the last is acknowledged.
struct Producer {
    number: u32,
    partitions: Vec<PartitionClient>,
    /// Records made so far, by partition.
    made: Vec<i64>,
    random: fastrand::Rng,
    tally: Arc<Tally>,
}

impl Producer {
    fn new(number: u32, partitions: Vec<PartitionClient>, tally: Arc<Tally>) -> Self {
        let made = vec![0; partitions.len()];
        let random = fastrand::Rng::with_seed(number.into());
        Self { number, partitions, made, random, tally }
    }

    async fn run(mut self, stopped: watch::Receiver<bool>) -> Result<Vec<i64>, Fault> {
        while !*stopped.borrow() {
            let index = self.random.usize(..self.partitions.len());
            let count = self.random.u64(1..=MAX_BATCH);
            let first = self.made[index];
            let records: Vec<_> =
                (first..).take(usize::try_from(count)?).map(|n| record(self.number, n)).collect();
            let offsets =
                self.partitions[index].produce(records, Compression::NoCompression).await?;
            if offsets.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                return Err(format!("a batch was torn: {offsets:?}").into());
            }
            self.made[index] += i64::try_from(count)?;
            self.tally.produced.fetch_add(count, Ordering::Relaxed);
        }
        Ok(self.made)
    }
}

/// The record number `number` of a producer in a partition.
fn record(producer: u32, number: i64) -> Record {
    let mut value = producer.to_be_bytes().to_vec();
    value.extend(number.to_be_bytes());
    value.resize(RECORD_BYTES, b'.');
    let (key, headers) = (None, BTreeMap::new());
    Record { key, value: Some(value), headers, timestamp: DateTime::default() }
}

/// Who made a record, and its number.
fn maker(record: &Record) -> Option<(u32, i64)> {
    let (producer, rest) = record.value.as_ref()?.split_first_chunk()?;
    Some((u32::from_be_bytes(*producer), i64::from_be_bytes(*rest.first_chunk()?)))
}

/// Reads a partition from its beginning, with long polls, and checks every record.
struct Consumer {
    partition: PartitionClient,
    /// Offset of the record to come.
    next: i64,
    /// Number of the record to come, by producer.
    numbers: BTreeMap<u32, i64>,
    tally: Arc<Tally>,
}

impl Consumer {
    fn new(partition: PartitionClient, tally: Arc<Tally>) -> Self {
        Self { partition, next: 0, numbers: BTreeMap::new(), tally }
    }

    async fn run(mut self, goal: watch::Receiver<Goal>) -> Result<(), Fault> {
        let index = usize::try_from(self.partition.partition())?;
        let min_bytes = if index % 2 == 0 { 1 } else { MANY_BYTES };
        loop {
            let end = goal.borrow().as_ref().map(|ends| ends[index]);
            if end.is_some_and(|end| self.next >= end) {
                break;
            }
            let bytes = min_bytes..MAX_BYTES;
            let fetched = self.partition.fetch_records(self.next, bytes, CONSUMER_WAIT_MS);
            for record in fetched.await?.0 {
                self.take(&record)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, taken: &RecordAndOffset) -> Result<(), Fault> {
        let (producer, number) = maker(&taken.record).ok_or("a record was not of this load")?;
        let expected = self.numbers.entry(producer).or_default();
        if (taken.offset, number) != (self.next, *expected) {
            let partition = self.partition.partition();
            return Err(format!(
                "partition {partition}: record {number} of producer {producer} came at offset {}, \
                 where record {expected} at offset {} was due",
                taken.offset, self.next
            )
            .into());
        }
        *expected += 1;
        self.next += 1;
        self.tally.consumed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Polls a partition where nothing happens.
async fn poll(partition: PartitionClient, stopped: watch::Receiver<bool>) -> Result<Polls, Fault> {
    let mut polls = Polls::NONE;
    while !*stopped.borrow() {
        let began = Instant::now();
        let (records, _) = partition.fetch_records(0, 1..MAX_BYTES, POLLER_WAIT_MS).await?;
        if !records.is_empty() {
            return Err("a record came from nowhere".into());
        }
        polls.record(began.elapsed());
    }
    Ok(polls)
}

/// Waits for some time to pass.
pub(crate) async fn pause(timer: &Timer, delay: Duration) {
    let (over, is_over) = oneshot::channel::<()>();
    let timeout = timer.schedule(delay, || drop(over));
    // The end is that the channel closes; a refused callback is dropped, which closes it as well.
    let _timeout = timeout.map(delaywheel::Timeout::cancel_on_drop);
    let _ = is_over.await;
}
