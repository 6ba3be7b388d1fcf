//! The broker: topics in memory, and requests that wait for changes of them.
//!
//! A request changes the state first and announces the change afterwards: records are in the log,
//! or the high watermark has moved, before the broker calls [`Waiters::announce`]. So each check of
//! a waiting request sees the change that caused it.
//!
//! # Locks
//!
//! A partition has a lock, and the table of topics has one. Neither is held while a purgatory is
//! called, and no two are held at once.

mod admin;
mod batch;
mod config;
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
mod waiting;

use std::{fmt, io, net::SocketAddr, sync::Arc};

use delaywheel::{
    Purgatory, PurgatoryBuilder, Timer, TimerBuilder, TimerStats,
    purgatory::{Overload, PurgatoryStats},
};
use futures::future::BoxFuture;

pub use self::{config::Config, counts::Counts, group::GroupStats, server::Server};
use self::{
    fetch::Fetch,
    follower::Follower,
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
    /// The fetches that wait, and their timer.
    pub fetches: (PurgatoryStats, TimerStats),
    /// The produce requests that wait, and their timer.
    pub produces: (PurgatoryStats, TimerStats),
    /// The timer of the follower.
    pub follower: TimerStats,
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
    follower: Option<Follower>,
    /// Delays of the follower and of a shutdown.
    timer: Timer,
    counts: Arc<counts::Shared>,
    refusals: Refusals,
    frame_limits: frame::Limits,
}

impl Broker {
    fn new(config: Config) -> io::Result<Self> {
        let timer = timer_builder(&config, "follower").build().expect("the settings are valid");
        let waiters = Waiters::new(&config);
        let counts = Arc::<counts::Shared>::default();
        let follow = || {
            let is_running = !config.stop_follower;
            Follower::new(timer.clone(), waiters.clone(), config.follower_delay, is_running)
        };
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
            follower: (!config.no_follower).then(follow),
            counts,
            refusals: Refusals::new(config.print),
            frame_limits: frame::Limits::new(config.common_frame_bytes, MAX_FRAME_BYTES),
            waiters,
            timer,
            config,
        })
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Waiters { fetches, produces } = &self.waiters;
        Stats {
            counts: self.counts.read(),
            fetches: (fetches.stats(), fetches.timer_stats()),
            produces: (produces.stats(), produces.timer_stats()),
            follower: self.timer.stats(),
            groups: self.groups.stats(),
        }
    }

    /// Resumes a follower that was stopped from the start. It catches up.
    pub fn resume_follower(&self) {
        if let Some(follower) = &self.follower {
            follower.resume(&self.topics.partitions());
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
            Err(Refusal::TooMany(ApiKey::Fetch)) if header.version >= fetch::TELLS_ERROR => {
                fetch::refuse(header, ResponseError::InvalidRequest)
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
            Kind::ListOffsets(asked) => encode(header, &offsets::list(topics, &asked)),
            Kind::InitProducerId(asked) => encode(header, &self.producers.init(&asked)),
            Kind::CreateTopics(asked) => encode(header, &admin::create(self, &asked)),
            Kind::DeleteTopics(asked) => encode(header, &admin::delete(self, &asked)),
            Kind::DescribeConfigs(asked) => encode(header, &admin::describe_configs(self, &asked)),
            Kind::DescribeCluster(_) => encode(header, &admin::describe_cluster(self, host)),

            Kind::Heartbeat(asked) => encode(header, &members::heartbeat(groups, &asked)),
            Kind::LeaveGroup(asked) => encode(header, &members::leave(groups, version, &asked)),
            Kind::OffsetCommit(asked) => encode(header, &commits::commit(groups, topics, &asked)),
            Kind::OffsetFetch(asked) => encode(header, &commits::fetch(groups, &asked)),
            Kind::FindCoordinator(asked) => {
                encode(header, &group_admin::find_coordinator(&asked, host))
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

    /// Announces that records have been appended to some partitions.
    fn appended(&self, partitions: &[Arc<Partition>]) {
        match &self.follower {
            Some(follower) => follower.replicate(partitions),
            None => self.waiters.announce(partitions),
        }
    }

    /// Deletes a topic. Returns whether it was there.
    fn delete_topic(&self, name: &TopicName) -> bool {
        let Some(partitions) = self.topics.remove(name) else { return false };
        for partition in &*partitions {
            self.storage.release(partition.lock().delete());
            self.waiters.produces.cancel_for_key(&**partition);
        }
        self.waiters.fetches.check_and_complete_all(partitions.iter().map(|each| &**each));
        self.groups.forget_topic(name);
        true
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
        let builder = |name| purgatory_builder(config, name);
        Self {
            fetches: builder("fetches").build().expect("the settings are valid"),
            produces: builder("produces").build().expect("the settings are valid"),
        }
    }

    /// Ends the requests that wait for records that have become readable in some partitions. The
    /// caller holds no lock of a partition.
    fn announce(&self, partitions: &[Arc<Partition>]) {
        self.fetches.check_and_complete_all(partitions.iter().map(|partition| &**partition));
        for partition in partitions {
            self.produces.advance(&**partition, partition.high_watermark().unsigned_abs());
        }
    }
}

/// The reaper itself completes expired requests, because each only sends on a channel. A request
/// may name all partitions.
fn purgatory_builder(config: &Config, name: &str) -> PurgatoryBuilder {
    PurgatoryBuilder::new()
        .timer(timer_builder(config, name).inline())
        .max_delay(config.max_wait)
        .max_keys(MAX_PARTITIONS)
        .max_delayed(config.max_waiting, Overload::DisplaceOldest)
}

fn timer_builder(config: &Config, name: &str) -> TimerBuilder {
    let builder = Timer::builder().name(name);
    match &config.clock {
        Some(clock) => builder.clock(clock.clone()),
        None => builder,
    }
}
