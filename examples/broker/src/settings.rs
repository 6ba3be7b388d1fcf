//! The command line.

use std::time::Duration;

use clap::{Parser, builder::RangedI64ValueParser, value_parser};
use delaywheel_broker::broker::{Config, GroupConfig};

/// A small Kafka broker whose requests wait in purgatories.
///
/// Without --listen it serves clients of its own for a while, checks that every record arrives once
/// and in order, and reports. Ctrl-C and SIGTERM end either. The broker then answers the waiting
/// requests.
#[derive(Debug, Parser)]
pub(crate) struct Settings {
    /// Serve any Kafka client at an address such as localhost:9092, and do nothing else
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) listen: Option<String>,
    /// Create a topic with so many partitions at the start; can be given several times
    #[arg(long = "topic", value_name = "NAME:COUNT", value_parser = topic)]
    topics: Vec<(String, i32)>,
    /// Refuse to create a topic because a client asks for it
    #[arg(long)]
    no_auto_create: bool,
    /// Partitions of a topic that a client creates by asking
    #[arg(long, value_name = "N", default_value = "8", value_parser = number())]
    pub(crate) partitions: u16,
    /// MiB of records that all topics keep together; the oldest are dropped
    #[arg(long, value_name = "N", default_value = "1024", value_parser = number())]
    retain_mib: u16,
    /// KiB of the longest batch of records
    #[arg(long, value_name = "N", default_value = "1024", value_parser = number())]
    max_message_kib: u16,
    /// How long the first members of a group wait for others; 3000, or 100 under the load
    #[arg(long, value_name = "N", value_parser = number())]
    group_delay_ms: Option<u16>,
    /// How long the simulated follower takes to acknowledge
    #[arg(long, value_name = "N", default_value = "2", value_parser = number())]
    follower_ms: u16,
    /// Regard records as replicated at once
    #[arg(long, conflicts_with_all = ["follower_ms", "stop_follower"])]
    no_follower: bool,
    /// Stop the follower, so that acks=all times out
    #[arg(long)]
    pub(crate) stop_follower: bool,

    /// How long the load lasts
    #[arg(long, value_name = "N", default_value = "5", value_parser = number())]
    pub(crate) seconds: u16,
    /// Clients of the load that produce and wait for the follower, one batch at a time
    #[arg(long, value_name = "N", default_value = "16", value_parser = number())]
    pub(crate) producers: u16,
    /// Clients of the load that poll a quiet topic
    #[arg(long, value_name = "N", default_value = "100", value_parser = number())]
    pub(crate) pollers: u16,
    /// Members of the load's consumer group, one of which dies
    #[arg(long, value_name = "N", default_value = "8", value_parser = number())]
    pub(crate) members: u16,
}

impl Settings {
    /// Returns the settings of the broker.
    pub(crate) fn config(&self) -> Config {
        let max_stored_bytes = u64::from(self.retain_mib) << 20;
        let default_delay = if self.listen.is_some() { 3_000 } else { 100 };
        let group_delay = self.group_delay_ms.unwrap_or(default_delay).into();
        let follower = Duration::from_millis(self.follower_ms.into());
        let default = Config::default();
        Config {
            partitions: self.partitions.into(),
            topics: self.topics.clone(),
            creates_topics: !self.no_auto_create,
            follower: (!self.no_follower).then_some(follower),
            retained_bytes: default.retained_bytes.min(max_stored_bytes),
            max_stored_bytes,
            max_message_bytes: usize::from(self.max_message_kib) << 10,
            groups: GroupConfig {
                initial_delay: Duration::from_millis(group_delay),
                ..default.groups
            },
            print: |line| eprintln!("{line}"),
            ..default
        }
    }
}

fn number() -> RangedI64ValueParser<u16> {
    value_parser!(u16).range(1..=10_000)
}

/// Checks a host and a port. The broker looks the host up when it listens.
fn address(text: &str) -> Result<String, &'static str> {
    let parts = text.rsplit_once(':');
    let is_address =
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    is_address.then(|| text.to_owned()).ok_or("expected an address such as localhost:9092")
}

fn topic(text: &str) -> Result<(String, i32), &'static str> {
    let parts = text.rsplit_once(':').and_then(|(name, count)| Some((name, count.parse().ok()?)));
    let topic = parts.filter(|&(name, count)| !name.is_empty() && count > 0);
    let topic = topic.map(|(name, count)| (name.to_owned(), count));
    topic.ok_or("expected a name and a number of partitions, such as words:4")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &str) -> Result<Settings, String> {
        let arguments = ["broker"].into_iter().chain(arguments.split_whitespace());
        Settings::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_and_the_others_have_their_defaults() {
        let settings = parse("--seconds 2 --pollers=7").unwrap();
        assert_eq!((settings.seconds, settings.pollers, settings.producers), (2, 7, 16));
        let config = settings.config();
        assert_eq!(config.groups.initial_delay, Duration::from_millis(100));
        assert_eq!(config.follower, Some(Duration::from_millis(2)));
        let settings = parse("--listen localhost:9092 --no-follower").unwrap();
        assert_eq!(settings.listen.as_deref(), Some("localhost:9092"));
        assert_eq!(settings.config().follower, None);
        assert_eq!(settings.config().groups.initial_delay, Duration::from_secs(3));
        let config = parse("--topic a:3 --topic=b:1 --no-auto-create").unwrap().config();
        assert_eq!(config.topics, [("a".into(), 3), ("b".into(), 1)]);
        assert!(!config.creates_topics);
        let config = parse("--retain-mib 10 --group-delay-ms 5").unwrap().config();
        assert_eq!((config.max_stored_bytes, config.retained_bytes), (10 << 20, 10 << 20));
        assert_eq!(config.groups.initial_delay, Duration::from_millis(5));
    }

    #[test]
    fn an_error_names_the_option_and_its_value() {
        for (option, value) in [
            ("--seconds", "0"),
            ("--seconds", "x"),
            ("--pollers", "10001"),
            ("--listen", "nowhere"),
            ("--listen", ":9092"),
            ("--listen", "localhost:99999"),
            ("--topic", "words"),
            ("--topic", "words:0"),
        ] {
            let error = parse(&format!("{option} {value}")).unwrap_err();
            assert!(error.contains(option) && error.contains(&format!("'{value}'")), "{error}");
        }
        for unknown in ["--second", "extra"] {
            assert!(parse(&format!("{unknown} 1")).unwrap_err().contains(unknown));
        }
    }
}
