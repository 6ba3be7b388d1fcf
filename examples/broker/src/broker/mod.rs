//! The broker: topics in memory, and requests that wait for changes of them.
//!
//! A request changes the state first and announces the change afterwards: records are in the log,
//! or the high watermark has moved, before the broker calls [`Waiters::announce`]. So each check of
//! a waiting request sees the change that caused it.
//!
//! # Locks
//!
//! A partition has a lock, and the table of topics has one. Neither is held while a purgatory is
//! called, and no two are held at once. A commit and a deletion take that of the table under the
//! lock of the groups.

mod admin;
mod batch;
mod config;
mod connection;
mod corpus;
mod counts;
mod fetch;
mod frame;
mod grammar;
mod group;
mod log;
mod metadata;
mod produce;
mod producer;
mod refusal;
mod request;
mod server;
mod storage;
mod waiting;

use std::{fmt, io, net::SocketAddr, sync::Arc};

use delaywheel::{
    Completion, DelayedOperation, Overload, Purgatory, PurgatoryStats, Timer, TimerBuilder,
    TimerStats,
};
use futures::future::BoxFuture;

#[doc(hidden)]
pub use self::corpus::take_in;
pub use self::{config::Config, counts::Counts, group::GroupStats, server::Server};
use self::{
    fetch::Fetch,
    group::{Coordinator, admin as group_admin, offsets as commits, requests as members},
    log::Partition,
    metadata::Topics,
    produce::Produce,
    producer::Producers,
    refusal::{Refusal, Refusals},
    request::{Header, Malformed},
    storage::Storage,
};
use crate::prelude::*;

/// Statistics of a broker.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Counts of events.
    pub counts: Counts,
    /// The fetches that wait.
    pub fetches: PurgatoryStats,
    /// The produce requests that wait.
    pub produces: PurgatoryStats,
    /// The timer of the follower.
    pub follower: TimerStats,
    /// Bytes of requests that are coming in.
    pub incoming_bytes: u64,
    /// The time limits of requests that did not come in at once.
    pub incoming: TimerStats,
    /// The consumer groups.
    pub groups: GroupStats,
}

/// Limit of partitions of all topics.
const MAX_PARTITIONS: usize = 4_000;

/// The longest request, in bytes.
const MAX_FRAME_BYTES: usize = 100 << 20;

/// Characters of a cluster's id, as in Kafka.
const CLUSTER_ID_CHARS: usize = 22;

/// The answer to a request.
enum Reply {
    /// The client asked for none.
    Nothing,
    /// A frame.
    Now(BytesMut),
    /// A frame, once the request has waited. Dropping this cancels the wait.
    Later(BoxFuture<'static, Option<BytesMut>>),
}

/// The result of handling a request: its reply, unless it cannot be answered.
type Handled = Result<Reply, Malformed>;

/// The two ends of a connection.
#[derive(Debug, Clone, Copy)]
struct Ends {
    /// Where the client has reached this broker.
    host: SocketAddr,
    /// Where the client is.
    peer: SocketAddr,
}

/// A broker, without its connections.
pub struct Broker {
    config: Config,
    topics: Topics,
    storage: Storage,
    /// Different for each run.
    cluster_id: String,
    waiters: Waiters,
    producers: Producers,
    groups: Arc<Coordinator>,
    /// Delays of the simulated follower and of a shutdown.
    timer: Timer,
    counts: Arc<counts::Shared>,
    refusals: Refusals,
    incoming: frame::Memory,
    /// Time limits of requests that are coming in.
    incoming_timer: Timer,
}

impl Broker {
    fn new(config: Config) -> io::Result<Self> {
        let timer = timer_builder(&config, "follower").build().expect("the settings are valid");
        let waiters = Waiters::new(&config);
        let counts = Arc::<counts::Shared>::default();
        let topics = Topics::new(config.max_topics, MAX_PARTITIONS, config.partitions);
        for (name, count) in &config.topics {
            topics.create(name, *count, false).map_err(|error| {
                let text = format!("--topic {name}:{count}: {error}");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
        }
        Ok(Self {
            topics,
            storage: Storage::new(config.max_stored_bytes),
            cluster_id: (0..CLUSTER_ID_CHARS).map(|_| fastrand::alphanumeric()).collect(),
            producers: Producers::default(),
            groups: Coordinator::new(&config, Arc::clone(&counts)),
            counts,
            refusals: Refusals::new(config.print),
            incoming: frame::Memory::new(config.max_incoming_bytes, MAX_FRAME_BYTES),
            incoming_timer: timer_builder(&config, "incoming")
                .inline()
                .build()
                .expect("the settings are valid"),
            waiters,
            timer,
            config,
        })
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            counts: self.counts.read(),
            fetches: self.waiters.fetches.stats(),
            produces: self.waiters.produces.stats(),
            follower: self.timer.stats(),
            incoming_bytes: self.incoming.used(),
            incoming: self.incoming_timer.stats(),
            groups: self.groups.stats(),
        }
    }

    fn handle(&self, frame: Bytes, ends: Ends) -> Result<Reply, Refusal> {
        let header = request::decode_header(&frame)?;
        let reply = match request::decode(frame, header) {
            Ok((client, request)) => {
                self.counts.update(|counts| counts.requests += 1);
                self.reply(header, &client, request, ends)
            }
            // A client cannot know the versions of this request. Each client understands the first.
            Err(Refusal::Version(ApiKey::ApiVersions, _)) => {
                let error = ResponseError::UnsupportedVersion.code();
                let versions = admin::versions().with_error_code(error);
                frame::encode(Header { version: 0, ..header }, &versions).map(Reply::Now)
            }
            Err(refusal) => return Err(refusal),
        };
        reply.map_err(|Malformed| Refusal::Unanswerable(header.key))
    }

    fn reply(&self, header: Header, client: &str, request: RequestKind, ends: Ends) -> Handled {
        use RequestKind as Kind;
        use frame::encode;
        let (topics, groups) = (&self.topics, &*self.groups);
        let (version, host) = (header.version, ends.host);
        match request {
            // These may wait.
            Kind::Produce(asked) => return produce::handle(self, header, asked),
            Kind::Fetch(asked) => return fetch::handle(self, header, &asked),
            Kind::JoinGroup(asked) => {
                return members::join(groups, header, client, &asked, ends.peer);
            }
            Kind::SyncGroup(asked) => return members::sync(groups, header, &asked),

            Kind::ApiVersions(_) => encode(header, &admin::versions()),
            Kind::Metadata(asked) => {
                encode(header, &metadata::describe(self, version, &asked, host))
            }
            Kind::ListOffsets(asked) => encode(header, &admin::list_offsets(topics, &asked)),
            Kind::InitProducerId(asked) => encode(header, &self.producers.init(&asked)),
            Kind::CreateTopics(asked) => encode(header, &admin::create(self, &asked)),
            Kind::DeleteTopics(asked) => encode(header, &admin::delete(self, &asked)),
            Kind::CreatePartitions(asked) => {
                encode(header, &admin::create_partitions(self, &asked))
            }
            Kind::DeleteRecords(asked) => encode(header, &admin::delete_records(self, &asked)),
            Kind::DescribeConfigs(asked) => encode(header, &admin::describe_configs(self, &asked)),
            Kind::DescribeCluster(_) => encode(header, &admin::describe_cluster(self, host)),

            Kind::Heartbeat(asked) => encode(header, &members::heartbeat(groups, &asked)),
            Kind::LeaveGroup(asked) => encode(header, &members::leave(groups, version, &asked)),
            Kind::OffsetCommit(asked) => encode(header, &commits::commit(groups, topics, &asked)),
            Kind::OffsetFetch(asked) => encode(header, &commits::fetch(groups, version, &asked)),
            Kind::FindCoordinator(asked) => {
                encode(header, &group_admin::find_coordinator(version, &asked, host))
            }
            Kind::DescribeGroups(asked) => {
                encode(header, &group_admin::describe(groups, version, &asked))
            }
            Kind::ListGroups(asked) => encode(header, &group_admin::list(groups, &asked)),
            Kind::DeleteGroups(asked) => encode(header, &group_admin::delete(groups, &asked)),
            _ => Err(Malformed),
        }
        .map(Reply::Now)
    }

    /// Makes records readable that have been appended to some partitions: at once, or when the
    /// simulated follower has them.
    fn appended(&self, partitions: Vec<Arc<Partition>>) {
        let ends: Vec<_> = partitions.iter().map(|partition| partition.lock().end).collect();
        let waiters = self.waiters.clone();
        let acknowledge = move || {
            for (partition, &end) in partitions.iter().zip(&ends) {
                partition.lock().replicated(end);
            }
            waiters.announce(&partitions);
        };
        match self.config.follower_delay {
            None => acknowledge(),
            // A timer that is shut down refuses this. Then no request waits any more.
            Some(delay) => drop(self.timer.schedule(delay, acknowledge)),
        }
    }

    fn delete_topic(&self, name: &TopicName) -> Result<()> {
        // A later commit is for a new topic of this name.
        let partitions = self.groups.forget_topic(name, || self.topics.remove(name));
        for partition in &*partitions.ok_or(ResponseError::UnknownTopicOrPartition)? {
            self.storage.release(partition.lock().delete());
            for produce in self.waiters.produces.cancel_for_key(&**partition) {
                produce.complete(Completion::Cancelled);
            }
            self.waiters.fetches.check_and_complete(&**partition);
        }
        Ok(())
    }

    /// Deletes the records of a partition before an offset. Returns where the partition begins.
    fn delete_records(&self, topic: &TopicName, index: i32, offset: i64) -> Result<i64> {
        let partition = self.topics.partition(topic, index);
        let partition = partition.ok_or(ResponseError::UnknownTopicOrPartition)?;
        let deleted = partition.lock().delete_before(offset)?;
        self.storage.release(deleted);
        // Fetches of deleted records have to report an error.
        self.waiters.announce(&[Arc::clone(&partition)]);
        Ok(partition.lock().start)
    }

    /// Answers all waiting requests, and lets none wait from now on. Returns their number.
    fn answer_all(&self) -> u64 {
        self.groups.close()
            + waiting::answer_all(&self.waiters.fetches)
            + waiting::answer_all(&self.waiters.produces)
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The requests that wait for a change of their partitions.
#[derive(Clone)]
struct Waiters {
    fetches: Purgatory<Arc<Partition>, Fetch>,
    produces: Purgatory<Arc<Partition>, Produce>,
}

impl Waiters {
    fn new(config: &Config) -> Self {
        Self { fetches: purgatory(config, "fetches"), produces: purgatory(config, "produces") }
    }

    /// Ends the requests that wait for records that have become readable in some partitions. The
    /// caller holds no lock of a partition.
    fn announce(&self, partitions: &[Arc<Partition>]) {
        for partition in partitions {
            self.fetches.check_and_complete(&**partition);
            self.produces.advance(&**partition, partition.high_watermark().unsigned_abs());
        }
    }
}

/// The reaper itself completes expired requests, because each only sends on a channel. A request
/// may name as many partitions as the grammar allows.
fn purgatory<K, O>(config: &Config, name: &str) -> Purgatory<K, O>
where
    K: Send + 'static,
    O: DelayedOperation<K>,
{
    Purgatory::builder()
        .timer(timer_builder(config, name).inline())
        .max_delay(config.max_wait)
        .max_keys(grammar::MAX_ELEMENTS)
        .max_delayed(config.max_waiting, Overload::DisplaceOldest)
        .build()
        .expect("the settings are valid")
}

fn timer_builder(config: &Config, name: &str) -> TimerBuilder {
    let builder = Timer::builder().name(name);
    if let Some(clock) = &config.clock { builder.clock(clock.clone()) } else { builder }
}
