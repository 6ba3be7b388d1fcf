//! The settings of a broker. Most are options of the program.

use std::time::Duration;

use clap::{
    Parser,
    builder::{RangedI64ValueParser, TypedValueParser},
    value_parser,
};
use delaywheel::ManualClock;

/// Settings of a broker.
#[derive(Debug, Clone, Parser)]
pub struct Config {
    /// Create a topic with so many partitions at the start; can be given several times
    #[arg(long = "topic", value_name = "NAME:COUNT", value_parser = topic)]
    pub topics: Vec<(String, i32)>,
    /// Refuse to create a topic because a client asks for it
    #[arg(long)]
    pub no_auto_create: bool,
    /// Partitions of a topic that a client creates by asking
    #[arg(long, value_name = "N", default_value = "8", value_parser = number(1, 4_000).map(i32::from))]
    pub partitions: i32,
    /// Limit of topics
    #[arg(long, value_name = "N", default_value = "1000", value_parser = number(1, 10_000).map(usize::from))]
    pub max_topics: usize,
    /// Limit of connections; others wait until the broker accepts them
    #[arg(long, value_name = "N", default_value = "10000", value_parser = number(1, 60_000).map(usize::from))]
    pub max_connections: usize,
    /// MiB of records that all topics keep together; the oldest are dropped
    #[arg(long = "retain-mib", value_name = "N", default_value = "1024", value_parser = mib())]
    pub max_stored_bytes: u64,
    /// KiB of the longest batch of records
    #[arg(long = "max-message-kib", value_name = "N", default_value = "1024", value_parser = kib())]
    pub max_message_bytes: usize,
    /// How long the first members of a group wait for others
    #[arg(long = "group-delay-ms", value_name = "N", default_value = "3000", value_parser = ms())]
    pub group_delay: Duration,
    /// Simulate a follower, which takes so long to acknowledge
    #[arg(long = "follower-ms", value_name = "N", value_parser = ms())]
    pub follower_delay: Option<Duration>,

    /// Bytes of all requests that are coming in. At this limit, one continues and others wait.
    #[arg(skip = 100_usize << 20)]
    pub max_incoming_bytes: usize,
    /// How long a request may take to come in. Clients wait so long for an answer.
    #[arg(skip = Duration::from_secs(30))]
    pub max_incoming_time: Duration,
    /// The most bytes of records in an answer to a fetch.
    #[arg(skip = 8_usize << 20)]
    pub max_fetch_bytes: usize,
    /// Limit of waiting requests of a kind. One more displaces the one that has waited longest.
    #[arg(skip = 100_000_u64)]
    pub max_waiting: u64,
    /// The longest wait.
    #[arg(skip = Duration::from_secs(600))]
    pub max_wait: Duration,
    /// Prints a line, such as the reason why a connection was closed.
    #[arg(skip = (|line| eprintln!("{line}")) as fn(&str))]
    pub print: fn(&str),
    /// Virtual time, for tests. `None`: the time of the system.
    #[arg(skip)]
    pub clock: Option<ManualClock>,
}

impl Default for Config {
    /// Returns the defaults of the options.
    fn default() -> Self {
        Self::parse_from([""])
    }
}

fn number(least: i64, most: i64) -> RangedI64ValueParser<u16> {
    value_parser!(u16).range(least..=most)
}

fn ms() -> impl TypedValueParser<Value = Duration> {
    number(0, 60_000).map(|number| Duration::from_millis(number.into()))
}

fn kib() -> impl TypedValueParser<Value = usize> {
    number(1, 10_000).map(|number| usize::from(number) << 10)
}

fn mib() -> impl TypedValueParser<Value = u64> {
    number(1, 10_000).map(|number| u64::from(number) << 20)
}

fn topic(text: &str) -> Result<(String, i32), &'static str> {
    let parts = text.rsplit_once(':').and_then(|(name, count)| Some((name, count.parse().ok()?)));
    let topic = parts.filter(|&(name, count)| !name.is_empty() && count > 0);
    let topic = topic.map(|(name, count)| (name.to_owned(), count));
    topic.ok_or("expected a name and a number of partitions, such as words:4")
}
