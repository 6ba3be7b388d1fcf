//! What the command line says.

use std::{net::SocketAddr, time::Duration};

use lexopt::prelude::{Long, Short, ValueExt};

/// How to call this.
pub(crate) const USAGE: &str = "\
A small Kafka broker whose requests wait in a purgatory. Without --listen it serves clients of its own
for a while, checks that every record arrives once and in order, and reports.

  --seconds N       how long the load lasts; 5
  --producers N     clients that produce and wait for the follower, one batch at a time; 16
  --partitions N    partitions of a topic, and clients that consume; 8
  --pollers N       clients that poll a topic where nothing happens; 100
  --follower-ms N   how long the simulated follower takes to acknowledge; 2
  --listen ADDRESS  only serve, at that address, any Kafka client; port 0 finds a free one
  --help            print this

Ctrl-C ends either: what waits is answered.";

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Run the load and report.
    Load,
    /// Serve others at an address.
    Listen(SocketAddr),
    /// Print how to call this.
    Help,
}

/// The settings of a run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) duration: Duration,
    pub(crate) producers: u32,
    pub(crate) partitions: i32,
    pub(crate) pollers: u32,
    pub(crate) follower: Duration,
}

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
            partitions: 8,
            pollers: 100,
            follower: Duration::from_millis(2),
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Long("seconds") => settings.duration = Duration::from_secs(number(&mut parser)?),
                Long("producers") => settings.producers = number(&mut parser)?,
                Long("partitions") => settings.partitions = number(&mut parser)?,
                Long("pollers") => settings.pollers = number(&mut parser)?,
                Long("follower-ms") => {
                    settings.follower = Duration::from_millis(number(&mut parser)?);
                }
                Long("listen") => settings.mode = Mode::Listen(parser.value()?.parse()?),
                Long("help") | Short('h') => settings.mode = Mode::Help,
                other => return Err(other.unexpected()),
            }
        }
        Ok(settings)
    }
}

/// The number that comes next, 1 to 10000.
fn number<T: TryFrom<u16>>(parser: &mut lexopt::Parser) -> Result<T, lexopt::Error> {
    let number: u16 = parser.value()?.parse()?;
    let range = 1..=10_000;
    if !range.contains(&number) {
        return Err(format!("{number} is not among {range:?}").into());
    }
    T::try_from(number).map_err(|_| format!("{number} is too large").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Settings, lexopt::Error> {
        Settings::parse(lexopt::Parser::from_args(arguments))
    }

    #[test]
    fn what_is_said_is_read_and_the_rest_is_as_by_default() {
        let settings = parse(&["--seconds", "2", "--pollers=7"]).unwrap();
        assert_eq!((settings.duration, settings.pollers), (Duration::from_secs(2), 7));
        assert_eq!((settings.mode, settings.producers), (Mode::Load, 16));
        let listening = parse(&["--listen", "127.0.0.1:9092"]).unwrap().mode;
        assert_eq!(listening, Mode::Listen("127.0.0.1:9092".parse().unwrap()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for arguments in [&["--seconds", "0"][..], &["--seconds", "x"], &["--second", "1"]] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
        for arguments in [&["--pollers", "10001"][..], &["--listen", "nowhere"], &["extra"]] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }
}
