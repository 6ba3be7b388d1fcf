//! The command line.

use clap::{Parser, builder::RangedI64ValueParser, value_parser};
use delaywheel_broker::broker::Config;

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
    #[command(flatten)]
    pub(crate) config: Config,

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(arguments: &str) -> Result<Settings, String> {
        let arguments = ["broker"].into_iter().chain(arguments.split_whitespace());
        Settings::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_and_the_others_have_their_defaults() {
        let settings = parse("--seconds 2 --pollers=7").unwrap();
        assert_eq!((settings.seconds, settings.pollers, settings.producers), (2, 7, 16));
        assert_eq!(settings.config.follower_delay, Duration::from_millis(2));
        assert_eq!(settings.config.group_delay, Duration::from_secs(3));
        let settings = parse("--listen localhost:9092 --no-follower").unwrap();
        assert_eq!(settings.listen.as_deref(), Some("localhost:9092"));
        assert!(settings.config.no_follower && !settings.config.no_auto_create);
        let config = parse("--topic a:3 --topic=b:1 --no-auto-create").unwrap().config;
        assert!(config.no_auto_create && config.topics == [("a".into(), 3), ("b".into(), 1)]);
        let config =
            parse("--retain-mib 10 --max-message-kib 3 --group-delay-ms 5").unwrap().config;
        assert_eq!((config.max_stored_bytes, config.max_message_bytes), (10 << 20, 3 << 10));
        assert_eq!(config.group_delay, Duration::from_millis(5));
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
