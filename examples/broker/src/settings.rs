//! The command line.

use std::{str::FromStr, time::Duration};

use delaywheel_broker::broker::Config;
use lexopt::{
    Arg::{Long, Short},
    Error, Parser, ValueExt,
};

/// How to call the program.
pub(crate) const USAGE: &str = "\
A small Kafka broker whose requests wait in purgatories. Without --listen it serves clients of its own
for a while, checks that every record arrives once and in order, and reports.

The broker:
  --listen ADDRESS      serve any Kafka client at that address, such as localhost:9092, and do nothing else
  --topic NAME:COUNT    create a topic with so many partitions at the start; can be given several times
  --no-auto-create      refuse to create a topic because a client asks for it
  --partitions N        partitions of a topic that a client creates by asking; 8
  --retain-mib N        MiB of records that all topics keep together; the oldest are dropped; 1024
  --max-message-kib N   KiB of the longest batch of records; 1024
  --group-delay-ms N    how long the first members of a group wait for others; 3000, or 100 under the load
  --follower-ms N       how long the simulated follower takes to acknowledge; 2
  --no-follower         regard records as replicated at once
  --stop-follower       stop the follower, so that acks=all times out

The load:
  --seconds N           how long the load lasts; 5
  --producers N         clients that produce and wait for the follower, one batch at a time; 16
  --pollers N           clients that poll a quiet topic; 100
  --members N           members of a consumer group, one of which dies; 8

  --help                print this

Ctrl-C and SIGTERM end either. The broker then answers the waiting requests.";

/// How long the first members of a group wait for others under the load.
const LOAD_GROUP_DELAY: Duration = Duration::from_millis(100);

/// The task of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Run the load and report.
    Load,
    /// Serve others at an address.
    Listen(String),
    /// Print how to call the program.
    Help,
}

/// The settings of a run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) duration: Duration,
    pub(crate) producers: u32,
    pub(crate) pollers: u32,
    pub(crate) members: u32,
    pub(crate) stops_follower: bool,
    pub(crate) config: Config,
}

impl Settings {
    /// Reads the command line.
    pub(crate) fn parse(mut parser: Parser) -> Result<Self, Error> {
        let mut config = Config {
            partitions: 8,
            follower: Some(Duration::from_millis(2)),
            print: |line| eprintln!("{line}"),
            ..Config::default()
        };
        let mut group_delay = None;
        let (mut mode, mut duration) = (Mode::Load, Duration::from_secs(5));
        let (mut producers, mut pollers, mut members) = (16, 100, 8);
        let mut stops_follower = false;
        while let Some(argument) = parser.next()? {
            let option = match argument {
                Long(option) => option.to_owned(),
                Short('h') => "help".to_owned(),
                other => return Err(other.unexpected()),
            };
            let mut value = Value { parser: &mut parser, option: &option };
            match &*option {
                "listen" => mode = Mode::Listen(value.address()?),
                "topic" => config.topics.push(value.topic()?),
                "no-auto-create" => config.creates_topics = false,
                "partitions" => config.partitions = value.number()?,
                "retain-mib" => {
                    config.max_stored_bytes = value.number::<u64>()? << 20;
                    config.retained_bytes = config.retained_bytes.min(config.max_stored_bytes);
                }
                "max-message-kib" => config.max_message_bytes = value.number::<usize>()? << 10,
                "group-delay-ms" => group_delay = Some(Duration::from_millis(value.number()?)),
                "follower-ms" => config.follower = Some(Duration::from_millis(value.number()?)),
                "no-follower" => config.follower = None,
                "stop-follower" => stops_follower = true,
                "seconds" => duration = Duration::from_secs(value.number()?),
                "producers" => producers = value.number()?,
                "pollers" => pollers = value.number()?,
                "members" => members = value.number()?,
                "help" => mode = Mode::Help,
                _ => return Err(Error::UnexpectedOption(format!("--{option}"))),
            }
        }
        let default = config.groups.initial_delay;
        let default = if mode == Mode::Load { LOAD_GROUP_DELAY } else { default };
        config.groups.initial_delay = group_delay.unwrap_or(default);
        Ok(Self { mode, duration, producers, pollers, members, stops_follower, config })
    }
}

/// Reads and checks the value of one option.
struct Value<'a> {
    parser: &'a mut Parser,
    option: &'a str,
}

impl Value<'_> {
    fn number<T: TryFrom<u16>>(&mut self) -> Result<T, Error> {
        self.read("a number from 1 to 10000", |text| {
            let number = u16::from_str(text).ok().filter(|number| (1..=10_000).contains(number));
            T::try_from(number?).ok()
        })
    }

    /// Reads a host and a port. The broker looks the host up when it listens.
    fn address(&mut self) -> Result<String, Error> {
        self.read("an address such as localhost:9092", |text| {
            let (host, port) = text.rsplit_once(':')?;
            (!host.is_empty() && u16::from_str(port).is_ok()).then(|| text.to_owned())
        })
    }

    fn topic(&mut self) -> Result<(String, i32), Error> {
        self.read("a name and a number of partitions, such as words:4", |text| {
            let (name, count) = text.rsplit_once(':')?;
            let count = i32::from_str(count).ok().filter(|&count| count > 0)?;
            (!name.is_empty()).then(|| (name.to_owned(), count))
        })
    }

    fn read<T>(
        &mut self,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let value = self.parser.value()?.string()?;
        let option = self.option;
        read(&value).ok_or_else(|| format!("--{option} {value}: expected {expected}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Settings, Error> {
        Settings::parse(Parser::from_args(arguments))
    }

    #[test]
    fn options_are_read_and_the_others_have_their_defaults() {
        let settings = parse(&["--seconds", "2", "--pollers=7"]).unwrap();
        assert_eq!((settings.duration, settings.pollers), (Duration::from_secs(2), 7));
        assert_eq!((settings.mode, settings.producers), (Mode::Load, 16));
        let settings = parse(&["--listen", "localhost:9092", "--no-follower"]).unwrap();
        assert_eq!(settings.mode, Mode::Listen("localhost:9092".into()));
        assert_eq!(settings.config.follower, None);
        assert_eq!(settings.config.groups.initial_delay, Duration::from_secs(3));
        let config = parse(&["--topic", "a:3", "--topic=b:1", "--no-auto-create"]).unwrap().config;
        assert_eq!(config.topics, [("a".into(), 3), ("b".into(), 1)]);
        assert!(!config.creates_topics);
        let config = parse(&["--retain-mib", "10", "--group-delay-ms", "5"]).unwrap().config;
        assert_eq!((config.max_stored_bytes, config.retained_bytes), (10 << 20, 10 << 20));
        assert_eq!(config.groups.initial_delay, Duration::from_millis(5));
    }

    #[test]
    fn an_error_names_the_option_and_its_value() {
        for arguments in [
            "--seconds 0",
            "--seconds x",
            "--pollers 10001",
            "--listen nowhere",
            "--listen :9092",
            "--listen localhost:99999",
            "--topic words",
            "--topic words:0",
        ] {
            let error = parse(&arguments.split(' ').collect::<Vec<_>>()).unwrap_err().to_string();
            assert!(error.starts_with(arguments), "{arguments}: {error}");
        }
        for unknown in ["--second", "extra"] {
            assert!(parse(&[unknown, "1"]).unwrap_err().to_string().contains(unknown));
        }
    }
}
