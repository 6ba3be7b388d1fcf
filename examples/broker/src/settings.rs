//! The command line.

use std::{ffi::OsString, fmt, str::FromStr, time::Duration};

use delaywheel_broker::broker::{Config, GroupConfig};
use lexopt::prelude::{Long, Short};

/// How to call the program.
pub(crate) const USAGE: &str = "\
A small Kafka broker whose requests wait in purgatories. Without --listen it serves clients of its own
for a while, checks that every record arrives once and in order, and reports.

The broker:
  --listen ADDRESS      serve any Kafka client at that address, such as localhost:9092, and do nothing else
  --topic NAME:COUNT    make a topic of so many partitions at the start; can be given several times
  --no-auto-create      refuse to make a topic because a client asks for it
  --partitions N        partitions of a topic that a client makes; 8
  --retain-mib N        MiB of records that are kept, of all topics together; the oldest are dropped; 1024
  --max-message-kib N   KiB of the longest batch of records; 1024
  --group-delay-ms N    how long the first members of a group wait for others; 3000
  --follower-ms N       how long the simulated follower takes to acknowledge; 2
  --no-follower         take records for replicated at once
  --stop-follower       have the follower acknowledge nothing, so that acks=all times out

The load:
  --seconds N           how long the load lasts; 5
  --producers N         clients that produce and wait for the follower, one batch at a time; 16
  --pollers N           clients that poll a topic where nothing happens; 100
  --members N           members of a consumer group, one of which dies; 8

  --help                print this

Ctrl-C and SIGTERM end either: requests that wait are answered.";

/// How long the first members of a group wait for others at most, under the load.
const LOAD_GROUP_DELAY: Duration = Duration::from_millis(100);

/// What is to be done.
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

/// An option with a value that makes no sense.
#[derive(Debug)]
struct Invalid {
    option: &'static str,
    value: OsString,
    wanted: &'static str,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { option, value, wanted } = self;
        write!(f, "--{option} {}: {wanted} is wanted", value.to_string_lossy())
    }
}

impl std::error::Error for Invalid {}

impl Settings {
    /// Reads the command line.
    pub(crate) fn from_args() -> Result<Self, lexopt::Error> {
        Self::parse(lexopt::Parser::from_env())
    }

    fn parse(mut parser: lexopt::Parser) -> Result<Self, lexopt::Error> {
        let mut settings = Self {
            mode: Mode::Load,
            duration: Duration::from_secs(5),
            producers: 16,
            pollers: 100,
            members: 8,
            stops_follower: false,
            config: Config {
                partitions: 8,
                follower: Some(Duration::from_millis(2)),
                print: |line| eprintln!("{line}"),
                ..Config::default()
            },
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Long("seconds") => settings.duration = seconds(&mut parser)?,
                Long("producers") => settings.producers = number(&mut parser, "producers")?,
                Long("pollers") => settings.pollers = number(&mut parser, "pollers")?,
                Long("members") => settings.members = number(&mut parser, "members")?,
                Long("listen") => settings.mode = Mode::Listen(address(&mut parser)?),
                Long("stop-follower") => settings.stops_follower = true,
                Long("help") | Short('h') => settings.mode = Mode::Help,
                Long(option) => {
                    let option = option.to_owned();
                    settings.set_broker(&option, &mut parser)?;
                }
                other => return Err(other.unexpected()),
            }
        }
        if settings.mode == Mode::Load {
            let delay = &mut settings.config.groups.initial_delay;
            *delay = LOAD_GROUP_DELAY.min(*delay);
        }
        Ok(settings)
    }

    /// Reads an option of the broker.
    fn set_broker(
        &mut self,
        option: &str,
        parser: &mut lexopt::Parser,
    ) -> Result<(), lexopt::Error> {
        let config = &mut self.config;
        match option {
            "topic" => config.topics.push(topic(parser)?),
            "no-auto-create" => config.creates_topics = false,
            "partitions" => config.partitions = number(parser, "partitions")?,
            "retain-mib" => {
                config.max_stored_bytes = number::<u64>(parser, "retain-mib")? << 20;
                config.retained_bytes = config.retained_bytes.min(config.max_stored_bytes);
            }
            "max-message-kib" => {
                config.max_message_bytes = number::<usize>(parser, "max-message-kib")? << 10;
            }
            "group-delay-ms" => {
                let initial_delay = millis(parser, "group-delay-ms")?;
                config.groups = GroupConfig { initial_delay, ..config.groups.clone() };
            }
            "follower-ms" => config.follower = Some(millis(parser, "follower-ms")?),
            "no-follower" => config.follower = None,
            other => return Err(lexopt::Error::UnexpectedOption(format!("--{other}"))),
        }
        Ok(())
    }
}

fn seconds(parser: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    number(parser, "seconds").map(Duration::from_secs)
}

fn millis(parser: &mut lexopt::Parser, option: &'static str) -> Result<Duration, lexopt::Error> {
    number(parser, option).map(Duration::from_millis)
}

/// The number that comes next, 1 to 10000.
fn number<T: TryFrom<u16>>(
    parser: &mut lexopt::Parser,
    option: &'static str,
) -> Result<T, lexopt::Error> {
    read(parser, option, "a number from 1 to 10000", |text| {
        let number = u16::from_str(text).ok().filter(|number| (1..=10_000).contains(number));
        T::try_from(number?).ok()
    })
}

/// A host and a port. Whether there is such a host is seen when the broker listens there.
fn address(parser: &mut lexopt::Parser) -> Result<String, lexopt::Error> {
    read(parser, "listen", "an address such as localhost:9092", |text| {
        let (host, port) = text.rsplit_once(':')?;
        (!host.is_empty() && u16::from_str(port).is_ok()).then(|| text.to_owned())
    })
}

/// The name of a topic and its number of partitions.
fn topic(parser: &mut lexopt::Parser) -> Result<(String, i32), lexopt::Error> {
    read(parser, "topic", "a name and a number of partitions, such as words:4,", |text| {
        let (name, count) = text.rsplit_once(':')?;
        let count = i32::from_str(count).ok().filter(|&count| count > 0)?;
        (!name.is_empty()).then(|| (name.to_owned(), count))
    })
}

/// The value of an option.
fn read<T>(
    parser: &mut lexopt::Parser,
    option: &'static str,
    wanted: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, lexopt::Error> {
    let value = parser.value()?;
    let read = value.to_str().and_then(read);
    read.ok_or_else(|| lexopt::Error::Custom(Box::new(Invalid { option, value, wanted })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Settings, lexopt::Error> {
        Settings::parse(lexopt::Parser::from_args(arguments))
    }

    #[test]
    fn options_are_read_and_the_rest_is_as_by_default() {
        let settings = parse(&["--seconds", "2", "--pollers=7"]).unwrap();
        assert_eq!((settings.duration, settings.pollers), (Duration::from_secs(2), 7));
        assert_eq!((settings.mode, settings.producers), (Mode::Load, 16));
        let settings = parse(&["--listen", "localhost:9092", "--no-follower"]).unwrap();
        assert_eq!(settings.mode, Mode::Listen("localhost:9092".into()));
        assert_eq!(settings.config.follower, None);
        let settings = parse(&["--topic", "a:3", "--topic=b:1", "--no-auto-create"]).unwrap();
        assert_eq!(settings.config.topics, [("a".into(), 3), ("b".into(), 1)]);
        assert!(!settings.config.creates_topics);
        let config = parse(&["--retain-mib", "10", "--group-delay-ms", "5"]).unwrap().config;
        assert_eq!((config.max_stored_bytes, config.retained_bytes), (10 << 20, 10 << 20));
        assert_eq!(config.groups.initial_delay, Duration::from_millis(5));
    }

    #[test]
    fn an_option_that_makes_no_sense_is_named_with_its_value() {
        for arguments in [
            &["--seconds", "0"][..],
            &["--seconds", "x"],
            &["--second", "1"],
            &["--pollers", "10001"],
            &["--listen", "nowhere"],
            &["--listen", ":9092"],
            &["--listen", "localhost:99999"],
            &["--topic", "words"],
            &["--topic", "words:0"],
            &["extra"],
        ] {
            let error = parse(arguments).unwrap_err().to_string();
            assert!(error.contains(arguments[0]), "{arguments:?}: {error}");
            if arguments[0] != "--second" && arguments.len() > 1 {
                assert!(error.contains(arguments[1]), "{arguments:?}: {error}");
            }
        }
    }
}
