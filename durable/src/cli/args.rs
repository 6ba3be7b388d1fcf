//! The arguments of the program.

use clap::{Args as Group, Parser, Subcommand};
use delaywheel_durable::{Name, PostgresStore, TimeoutId, WallTime, When, causes};
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use percent_encoding::percent_decode_str;

use crate::Failure;

const STORE: &str =
    "The store: sqlite:PATH, a path, postgres://USER@HOST/DATABASE, or host=HOST dbname=DATABASE";

/// Shows and changes the timeouts of a store of delaywheel-durable.
///
/// Exit codes: 0 done, also for an empty list; 1 no such timeout or queue, or none to change; 2
/// wrong usage; 3 the store failed.
#[derive(Debug, Parser)]
#[command(name = "delaywheel-durable", version)]
pub(crate) struct Args {
    #[arg(long, global = true, help = STORE, env = "DELAYWHEEL_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Schema of a PostgreSQL store
    #[arg(long, global = true, env = "DELAYWHEEL_SCHEMA", default_value = "delaywheel",
        value_parser = schema)]
    pub(crate) schema: String,
    /// Prints one JSON object instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Creates or migrates the tables of a PostgreSQL store
    Migrate {
        /// Prints the SQL, connects to nothing
        #[arg(long)]
        print: bool,
    },
    /// Prints the numbers of timeouts
    Stats,
    /// Lists timeouts, earliest first; with a prefix only, by id and dead ones too
    List(Page),
    /// Lists dead timeouts with the errors of their last attempts
    Dead(Page),
    /// Prints one timeout with its payload, and its attempts that the store keeps
    Show { id: TimeoutId },
    /// Cancels timeouts
    Cancel(Cancel),
    /// Makes dead timeouts due again
    Requeue(Requeue),
    /// Lists the queues, whether they are paused, and their numbers of timeouts
    Queues,
    /// Pauses a queue: no delivery of it begins until it is resumed
    Pause {
        queue: Name,
        /// Also if it has had no timeout yet
        #[arg(long)]
        new: bool,
    },
    /// Resumes a queue
    Resume { queue: Name },
    /// Copies a SQLite store to a new file, also while a process uses it
    Backup { file: std::path::PathBuf },
    /// Makes the file of a SQLite store smaller
    Compact,
    /// Serves a page that shows the store in a browser
    #[cfg(feature = "page")]
    Page(Serve),
}

#[derive(Debug, Group)]
pub(crate) struct Filter {
    /// Only ids that begin with this
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// Only timeouts whose latest error contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
    /// Only timeouts of this queue; the default one has an empty name
    #[arg(long)]
    pub(crate) queue: Option<Name>,
    /// Only timeouts whose next attempt, or last attempt if they are dead, is before a time:
    /// 2030-01-31T12:00:00Z, 2h from now, or -30d
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) due_before: Option<Time>,
}

#[derive(Debug, Group)]
pub(crate) struct Page {
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Most timeouts
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: usize,
    /// Continues after the cursor that the list before has printed
    #[arg(long, value_name = "CURSOR", value_parser = cursor)]
    pub(crate) after: Option<(WallTime, TimeoutId)>,
}

/// Arguments that choose timeouts. A change of many needs one of them.
const CHOICE: [&str; 5] = ["all", "prefix", "error", "queue", "due_before"];

#[derive(Debug, Group)]
#[command(group = clap::ArgGroup::new("which").args(["id"]).args(CHOICE).required(true).multiple(true))]
pub(crate) struct Many {
    /// All of them
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Most timeouts
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    pub(crate) limit: usize,
    /// Only counts them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Requeue {
    /// One timeout
    #[arg(conflicts_with_all = CHOICE, conflicts_with = "limit")]
    pub(crate) id: Option<TimeoutId>,
    #[command(flatten)]
    pub(crate) many: Many,
    /// When they are due, instead of now: 2030-01-31T12:00:00Z, or 2h from now
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: Option<Time>,
}

#[derive(Debug, Group)]
#[command(group = clap::ArgGroup::new("kind").args(["id", "dead", "live"]).required(true))]
pub(crate) struct Cancel {
    /// One timeout, in any state
    #[arg(conflicts_with_all = CHOICE, conflicts_with_all = ["limit", "dry_run"])]
    pub(crate) id: Option<TimeoutId>,
    /// Dead timeouts
    #[arg(long)]
    pub(crate) dead: bool,
    /// Timeouts that are not dead, also those that are being delivered
    #[arg(long)]
    pub(crate) live: bool,
    #[command(flatten)]
    pub(crate) many: Many,
}

#[cfg(feature = "page")]
#[derive(Debug, Group)]
pub(crate) struct Serve {
    /// Address and port; one that is not of this machine only needs a token
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) listen: std::net::SocketAddr,
    /// Shows buttons that requeue dead timeouts, and pause and resume queues
    #[arg(long)]
    pub(crate) allow_changes: bool,
    /// Secret of at least 16 characters; the environment hides it from other users
    #[arg(long, env = "DELAYWHEEL_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Heading of the page
    #[arg(long, default_value = "Durable timeouts")]
    pub(crate) title: String,
}

/// A time, or a span from now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Time {
    At(Timestamp),
    In(SignedDuration),
}

impl std::str::FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        text.parse().map(Self::At).or_else(|_| {
            text.parse::<Span>()?.to_duration(SpanRelativeTo::days_are_24_hours()).map(Self::In)
        })
    }
}

impl Time {
    pub(crate) fn resolve(self, now: WallTime) -> Result<WallTime, Failure> {
        let time = match self {
            Self::In(span) if span.is_negative() => Ok(now.saturating_sub(span.unsigned_abs())),
            Self::In(span) => When::In(span.unsigned_abs()).resolve(now),
            Self::At(time) => WallTime::try_from(time),
        };
        time.map_err(|error| Failure::Usage(error.to_string()))
    }
}

fn schema(name: &str) -> Result<String, String> {
    PostgresStore::migrations(name).map(|_| name.to_owned()).map_err(|error| causes(&error))
}

/// Reads a cursor: microseconds since 1970, a colon, and an id, some of whose bytes are encoded.
fn cursor(text: &str) -> Result<(WallTime, TimeoutId), String> {
    let read = || {
        let (micros, encoded) = text.split_once(':')?;
        let time = WallTime::from_micros(micros.parse().ok()?).ok()?;
        let id = percent_decode_str(encoded).decode_utf8().ok()?;
        Some((time, TimeoutId::new(id).ok()?))
    };
    read().ok_or_else(|| "this is not a cursor that a list has printed".to_owned())
}
