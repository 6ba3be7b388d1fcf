//! What the command line asks for.

use std::time::Duration;

use lexopt::prelude::*;

/// What is to be run, and how.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Requests a second.
    pub(crate) rate: u32,
    /// Number of requests; those of some seconds if it is not told.
    num: Option<u32>,
    /// Keys of a request.
    pub(crate) keys: usize,
    /// Number of different keys.
    pub(crate) key_space: u32,
    pub(crate) timeout: Duration,
    latency: Option<Latency>,
    pub(crate) mode: Mode,
    pub(crate) is_search: bool,
    /// By how much a search raises the rate.
    pub(crate) step: u32,
    pub(crate) is_checked: bool,
}

/// What requests are completed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    ByHandle,
    ByEvents,
    /// By nothing: there is no purgatory, only the driver.
    Empty,
}

/// A log-normal distribution of latencies, by its percentiles in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) pct75: f64,
    pub(crate) pct50: f64,
}

/// The two workloads that were published.
const PUBLISHED: [Latency; 2] =
    [Latency { pct75: 60.0, pct50: 20.0 }, Latency { pct75: 400.0, pct50: 200.0 }];

/// How long requests arrive, unless their number is told.
const SECONDS: u32 = 3;

impl Options {
    pub(crate) fn from_args() -> Result<Self, lexopt::Error> {
        let mut options = Self {
            rate: 0,
            num: None,
            keys: 3,
            key_space: 100,
            timeout: Duration::from_millis(200),
            latency: None,
            mode: Mode::ByHandle,
            is_search: false,
            step: 50_000,
            is_checked: false,
        };
        let (mut rate, mut pct75, mut pct50) = (None, None, None);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("rate") => rate = Some(parser.value()?.parse()?),
                Long("num") => options.num = Some(parser.value()?.parse()?),
                Long("keys") => options.keys = parser.value()?.parse()?,
                Long("key-space-size") => options.key_space = parser.value()?.parse()?,
                Long("timeout") => {
                    options.timeout = Duration::from_millis(parser.value()?.parse()?);
                }
                Long("pct75") => pct75 = Some(parser.value()?.parse()?),
                Long("pct50") => pct50 = Some(parser.value()?.parse()?),
                Long("by-events") => options.mode = Mode::ByEvents,
                Long("empty") => options.mode = Mode::Empty,
                Long("search") => options.is_search = true,
                Long("step") => options.step = parser.value()?.parse()?,
                Long("check") => options.is_checked = true,
                _ => return Err(argument.unexpected()),
            }
        }
        options.rate = rate.unwrap_or(if options.is_search { 400_000 } else { 1_000_000 });
        options.latency = match (pct75, pct50) {
            (Some(pct75), Some(pct50)) => Some(Latency { pct75, pct50 }),
            (None, None) => None,
            _ => return Err("--pct75 and --pct50 belong together".into()),
        };
        if options.rate == 0 || options.num == Some(0) || options.key_space == 0 {
            return Err("rates and numbers are not 0".into());
        }
        Ok(options)
    }

    /// The workloads that were asked for.
    pub(crate) fn latencies(&self) -> Vec<Latency> {
        self.latency.map_or(PUBLISHED.to_vec(), |latency| vec![latency])
    }

    /// Number of requests.
    pub(crate) fn num(&self) -> u32 {
        self.num.unwrap_or(self.rate.saturating_mul(SECONDS))
    }

    pub(crate) fn at_rate(&self, rate: u32) -> Self {
        Self { rate, ..self.clone() }
    }
}
