//! The broker: topics in memory, and requests that wait for what happens to them.
//!
//! A request changes the state first and announces the change afterwards: records are in the log,
//! or the high watermark has moved, before [`Waiters::announce`] is called. So whoever waits is
//! checked against a state that holds what woke it.
//!
//! # Locks
//!
//! A partition has a lock, and the table of topics has one. Neither is held while a purgatory is
//! called, and no two are held at once.

mod admin;
mod batch;
mod connection;
#[cfg(test)]
mod corpus;
mod counts;
mod fetch;
mod follower;
mod frame;
mod grammar;
mod group;
mod log;
mod metadata;
mod offsets;
mod produce;
mod producer;
mod refusal;
mod request;
mod server;
mod storage;
mod versions;
mod waiting;

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::BytesMut;
use delaywheel::{
    ManualClock, Purgatory, PurgatoryBuilder, Timer, TimerBuilder, TimerStats,
    purgatory::{Overload, PurgatoryStats},
};
use futures::future::BoxFuture;
use kafka_protocol::{
    ResponseError,
    messages::{ApiKey, RequestKind},
};

pub use self::{
    counts::{Counted, Counts},
    group::{GroupConfig, GroupStats},
    server::Server,
};
use self::{
    fetch::Fetch,
    follower::Follower,
    group::Coordinator,
    log::Partition,
    metadata::Topics,
    produce::Produce,
    producer::Producers,
    refusal::{Refusal, Refusals},
    request::{Header, Malformed, Request},
    storage::Storage,
};

/// Settings of a broker.
#[derive(Debug, Clone)]
pub struct Config {
    /// Partitions of a topic that is made because a client asks for it.
    pub partitions: i32,
    /// Topics that are there from the beginning, each with its number of partitions.
    pub topics: Vec<(String, i32)>,
    /// Whether a topic is made because a client asks for it.
    pub creates_topics: bool,
    /// How many topics there may be.
    pub max_topics: usize,
    /// How many partitions all topics may have together.
    pub max_partitions: usize,
    /// How long the simulated follower takes to acknowledge an append. `None`: there is no
    /// follower, and what has been appended counts as replicated.
    pub follower: Option<Duration>,
    /// Bytes of records that a partition keeps; the oldest are dropped.
    pub retained_bytes: u64,
    /// Bytes of records that all partitions keep together; the oldest are dropped.
    pub max_stored_bytes: u64,
    /// The longest batch of records, in bytes.
    pub max_message_bytes: usize,
    /// The longest request, in bytes.
    pub max_frame_bytes: usize,
    /// A request that is longer waits until there is room: all of them together take no more memory
    /// than the longest one may.
    pub common_frame_bytes: usize,
    /// The most records that one answer holds, in bytes, whatever a request says.
    pub max_fetch_bytes: usize,
    /// How many clients may be connected; others wait to be accepted.
    pub max_connections: usize,
    /// How many fetches may wait at once, and as many produce requests. One more displaces the one
    /// that has waited longest.
    pub max_waiting: u64,
    /// The longest wait, whatever a request says.
    pub max_wait: Duration,
    /// Prints a line, such as why a connection was closed.
    pub print: fn(&str),
    /// Limits of consumer groups.
    pub groups: GroupConfig,
    /// Virtual time, for tests. `None`: the time of the system.
    pub clock: Option<ManualClock>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            partitions: 4,
            topics: Vec::new(),
            creates_topics: true,
            max_topics: 1_000,
            max_partitions: 4_000,
            follower: None,
            retained_bytes: 64 << 20,
            max_stored_bytes: 1 << 30,
            max_message_bytes: 1 << 20,
            max_frame_bytes: 100 << 20,
            common_frame_bytes: 4 << 20,
            max_fetch_bytes: 8 << 20,
            max_connections: 10_000,
            max_waiting: 100_000,
            max_wait: Duration::from_secs(600),
            print: |_| (),
            groups: GroupConfig::default(),
            clock: None,
        }
    }
}

/// Characters of a cluster's id, as in Kafka.
const CLUSTER_ID_CHARS: usize = 22;

/// What is to be sent in answer to a request.
enum Reply {
    /// Nothing: the client asked for none.
    Nothing,
    /// A frame.
    Now(BytesMut),
    /// A frame, once the request has waited. Dropping this calls the wait off.
    Later(BoxFuture<'static, Option<BytesMut>>),
}

impl Reply {
    /// Bytes that are ready to be sent.
    fn ready_bytes(&self) -> usize {
        match self {
            Self::Now(frame) => frame.len(),
            Self::Nothing | Self::Later(_) => 0,
        }
    }
}

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
    follower: Option<Follower>,
    /// Delays that are no request's: the follower's, and the patience of a shutdown.
    timer: Timer,
    counts: Counts,
    refusals: Refusals,
    frame_limits: frame::Limits,
}

impl Broker {
    fn new(config: Config) -> io::Result<Self> {
        let timer = timer_builder(&config, "follower").build().expect("the settings are valid");
        let waiters = Waiters::new(&config);
        let follower =
            config.follower.map(|delay| Follower::new(timer.clone(), waiters.clone(), delay));
        let topics = Topics::new(config.max_topics, config.max_partitions, config.partitions);
        for (name, count) in &config.topics {
            let made = topics.create(name, *count);
            made.map_err(|error| {
                let text = format!("topic {name}:{count}: {error}");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
        }
        let storage = Storage::new(config.retained_bytes, config.max_stored_bytes);
        let cluster_id = (0..CLUSTER_ID_CHARS).map(|_| fastrand::alphanumeric()).collect();
        let groups = Coordinator::new(&config);
        let producers = Producers::default();
        let frame_limits = frame::Limits::new(config.common_frame_bytes, config.max_frame_bytes);
        let (counts, refusals) = (Counts::default(), Refusals::new(config.print));
        Ok(Self {
            config,
            topics,
            storage,
            cluster_id,
            waiters,
            producers,
            groups,
            follower,
            timer,
            counts,
            refusals,
            frame_limits,
        })
    }

    /// Returns what has been counted so far.
    #[must_use]
    pub fn counts(&self) -> Counted {
        self.counts.read()
    }

    /// Returns what the purgatory of the fetches holds and has done.
    #[must_use]
    pub fn fetches(&self) -> (PurgatoryStats, TimerStats) {
        (self.waiters.fetches.stats(), self.waiters.fetches.timer_stats())
    }

    /// Returns what the purgatory of the produce requests holds and has done.
    #[must_use]
    pub fn produces(&self) -> (PurgatoryStats, TimerStats) {
        (self.waiters.produces.stats(), self.waiters.produces.timer_stats())
    }

    /// Returns what the consumer groups hold and have done.
    #[must_use]
    pub fn groups(&self) -> GroupStats {
        self.groups.stats()
    }

    /// Returns what the timer of the follower has done.
    #[must_use]
    pub fn follower_timer(&self) -> TimerStats {
        self.timer.stats()
    }

    /// Has the follower acknowledge nothing until [`resume_follower`](Self::resume_follower). Does
    /// nothing without a follower.
    pub fn stop_follower(&self) {
        if let Some(follower) = &self.follower {
            follower.stop();
        }
    }

    /// Has the follower catch up and go on. Does nothing without a follower.
    pub fn resume_follower(&self) {
        if let Some(follower) = &self.follower {
            follower.resume(&self.topics.partitions());
        }
    }

    /// Deals with a request.
    fn handle(&self, frame: bytes::Bytes, ends: Ends) -> Result<Reply, Refusal> {
        let (key, header) = request::decode_header(&frame)?;
        let request = match request::decode(frame, key, header) {
            Err(Refusal::TooMany(ApiKey::Fetch)) if fetch::has_error_code(header) => {
                return fetch::refuse(header, ResponseError::InvalidRequest)
                    .map(Reply::Now)
                    .map_err(|_| Refusal::TooMany(key));
            }
            request => request?,
        };
        self.counts.requests.add(1);
        let unanswerable = |_| Refusal::Unanswerable(key);
        self.reply(header, request, ends).map_err(unanswerable)
    }

    fn reply(&self, header: Header, request: Request, ends: Ends) -> Result<Reply, Malformed> {
        let Request::Known(client, body) = request else {
            return versions::refuse(header).map(Reply::Now);
        };
        let (groups, host) = (&*self.groups, ends.host);
        match *body {
            // Those that may wait.
            RequestKind::Produce(asked) => return produce::handle(self, header, asked),
            RequestKind::Fetch(asked) => return fetch::handle(self, header, &asked),
            RequestKind::JoinGroup(asked) => {
                return group::requests::join(groups, header, &client, &asked, ends.peer);
            }
            RequestKind::SyncGroup(asked) => return group::requests::sync(groups, header, &asked),

            RequestKind::ApiVersions(_) => versions::reply(header),
            RequestKind::Metadata(asked) => metadata::reply(self, header, &asked, host),
            RequestKind::ListOffsets(asked) => offsets::reply(&self.topics, header, &asked),
            RequestKind::InitProducerId(asked) => self.producers.reply(header, &asked),
            RequestKind::CreateTopics(asked) => admin::create(self, header, &asked),
            RequestKind::DeleteTopics(asked) => admin::delete(self, header, &asked),
            RequestKind::DescribeConfigs(asked) => admin::describe_configs(self, header, &asked),
            RequestKind::DescribeCluster(_) => admin::describe_cluster(self, header, host),

            RequestKind::Heartbeat(asked) => group::requests::heartbeat(groups, header, &asked),
            RequestKind::LeaveGroup(asked) => group::requests::leave(groups, header, &asked),
            RequestKind::OffsetCommit(asked) => {
                group::offsets::commit(groups, &self.topics, header, &asked)
            }
            RequestKind::OffsetFetch(asked) => group::offsets::fetch(groups, header, &asked),
            RequestKind::FindCoordinator(asked) => {
                group::admin::find_coordinator(header, &asked, host)
            }
            RequestKind::DescribeGroups(asked) => group::admin::describe(groups, header, &asked),
            RequestKind::ListGroups(asked) => group::admin::list(groups, header, &asked),
            RequestKind::DeleteGroups(asked) => group::admin::delete(groups, header, &asked),
            _ => Err(Malformed),
        }
        .map(Reply::Now)
    }

    /// Makes known that records have been appended to some partitions.
    fn appended(&self, partitions: &[Arc<Partition>]) {
        match &self.follower {
            Some(follower) => follower.replicate(partitions),
            None => self.waiters.announce(partitions),
        }
    }

    /// Deletes a topic. Returns whether it was there.
    fn delete_topic(&self, name: &str) -> bool {
        let Some(partitions) = self.topics.remove(name) else { return false };
        for partition in &*partitions {
            self.storage.release(partition.delete());
            self.waiters.produces.cancel_for_key(&**partition);
        }
        self.waiters.fetches.check_and_complete_all(partitions.iter().map(|each| &**each));
        self.groups.forget_topic(name);
        true
    }

    /// Answers all requests that wait, and has none wait from now on. Returns how many those were.
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

/// The requests that wait, each for something to happen to its partitions.
#[derive(Clone)]
struct Waiters {
    fetches: Purgatory<Arc<Partition>, Fetch>,
    produces: Purgatory<Arc<Partition>, Produce>,
}

impl Waiters {
    fn new(config: &Config) -> Self {
        let builder = |name| purgatory_builder(config, name);
        Self {
            fetches: builder("fetches").build().expect("the settings are valid"),
            produces: builder("produces").build().expect("the settings are valid"),
        }
    }

    /// Ends the requests that wait for what has happened to some partitions: records have become
    /// readable there. The caller holds no lock of a partition.
    fn announce(&self, partitions: &[Arc<Partition>]) {
        self.fetches.check_and_complete_all(partitions.iter().map(|partition| &**partition));
        for partition in partitions {
            self.produces.advance(&**partition, partition.high_watermark().unsigned_abs());
        }
    }
}

/// A waiting request is ended on the reaper itself: to end one is to send on a channel.
fn purgatory_builder(config: &Config, name: &str) -> PurgatoryBuilder {
    PurgatoryBuilder::new()
        .timer(timer_builder(config, name).inline())
        .max_delay(config.max_wait)
        .max_delayed(config.max_waiting, Overload::DisplaceOldest)
}

fn timer_builder(config: &Config, name: &str) -> TimerBuilder {
    let builder = Timer::builder().name(name);
    match &config.clock {
        Some(clock) => builder.clock(clock.clone()),
        None => builder,
    }
}
