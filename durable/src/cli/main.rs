//! The program `delaywheel-durable`: what an operator does with a store. The README describes it.

mod args;
mod report;
mod target;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use delaywheel_durable::{
    Answer, Cancelled, Command, Name, Overview, PostgresStore, Query, Record, State, Store,
    StoreError, TimeoutId, WallTime, causes, change,
};
use indicatif::ProgressBar;
use pollster::FutureExt as _;
use serde_json::json;

use self::{
    args::{Action, Args, Cancel, Filter, Requeue},
    report::Report,
    target::Target,
};

/// Records that are read at once. Each may have a payload of 1 MiB.
const PAGE: usize = 100;

/// Exit codes, next to 0.
const NOT_FOUND: u8 = 1;
const USAGE: u8 = 2;
const FAILED: u8 = 3;

fn main() -> ExitCode {
    let args = Args::parse();
    let report = Report { is_json: args.json };
    match run(args, report) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_FOUND),
        // The reader, such as `head`, has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            // If standard error fails as well, the exit code still reports the error.
            let _ = writeln!(io::stderr(), "delaywheel-durable: {failure}");
            let is_usage = matches!(failure, Failure::Usage(_));
            ExitCode::from(if is_usage { USAGE } else { FAILED })
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{}", causes(.0))]
    Store(#[from] StoreError),
    #[error("{} timeouts were {}, then: {}", .0, .1, causes(.2))]
    Partly(usize, &'static str, StoreError),
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Whether what was named was found.
type Outcome = Result<bool, Failure>;

fn run(args: Args, report: Report) -> Outcome {
    if matches!(args.action, Action::Migrate { print: true }) {
        write!(io::stdout(), "{}", PostgresStore::migrations(&args.schema)?.concat())?;
        return Ok(true);
    }
    let Some(store) = args.store else {
        return target::usage("name the store by --store or DELAYWHEEL_STORE");
    };
    let target = Target::new(store, args.schema.clone())?;
    match args.action {
        Action::Migrate { .. } => {
            target.migrate()?;
            let version = PostgresStore::migrations(&args.schema)?.len();
            report.print(&json!({"schema": args.schema, "version": version}))
        }
        Action::Stats => {
            let store = target.open(true)?;
            let seen = Overview::of(&*store, store.now(), 0, usize::MAX).block_on()?;
            let oldest = seen.oldest_due.map(|time| time.to_string());
            let (live, dead, due) = (store.count().block_on()?.live, seen.dead, seen.due);
            report.print(&json!({"live": live, "dead": dead, "due": due, "oldest_due": oldest}))
        }
        Action::List(page) => {
            let prefix = page.filter.prefix.clone().filter(|_| page.filter.due_before.is_none());
            let query = prefix.map_or(LIVE, |prefix| Query::Prefix { prefix, after: None });
            list(&*target.open(true)?, query, &page, report)
        }
        Action::Dead(page) => list(&*target.open(true)?, DEAD, &page, report),
        Action::Show { id } => {
            let store = target.open(true)?;
            let record = store.get(&id).block_on()?;
            let history = store.history(store.now(), Some(&id), None, PAGE).block_on()?;
            if record.is_none() && history.is_empty() {
                return Ok(missing("timeout", id.as_str()));
            }
            let absent = json!({"id": id.as_str(), "state": null});
            let mut object = record.as_ref().map_or(absent, |record| {
                let mut object = report::summary(record);
                object["payload"] = std::str::from_utf8(&record.payload).ok().into();
                object["payload_hex"] = report::hex(&record.payload).into();
                object
            });
            object["history"] = history.iter().map(report::attempt).collect();
            report.print(&object)
        }
        Action::Cancel(Cancel { id: Some(id), .. }) => cancel(&*target.open(false)?, &id, report),
        Action::Cancel(Cancel { dead, many, .. }) => {
            let store = target.open(many.dry_run)?;
            // A purge keeps a timeout that was requeued or scheduled again after the read.
            let (query, command): (_, fn(_) -> _) =
                if dead { (DEAD, Command::Purge) } else { (LIVE, Command::Cancel) };
            let ids = read(&*store, query, &many.filter, many.limit, |record| record.id)?;
            change_all(&*store, &ids, "cancelled", command, many.dry_run, report)
        }
        Action::Requeue(Requeue { id, many, at }) => {
            let store = target.open(many.dry_run)?;
            let now = store.now();
            let due = at.map_or(Ok(now), |time| time.resolve(now))?.max(now);
            let ids = if let Some(id) = id {
                let record = store.get(&id).block_on()?;
                let is_dead = record.is_some_and(|record| record.state == State::Dead);
                if is_dead { vec![id] } else { Vec::new() }
            } else {
                read(&*store, DEAD, &many.filter, many.limit, |record| record.id)?
            };
            let command = |id| Command::Requeue(id, due);
            change_all(&*store, &ids, "requeued", command, many.dry_run, report)
        }
        Action::Queues => {
            let store = target.open(true)?;
            let queues = store.overview(store.now(), usize::MAX, usize::MAX).block_on()?;
            let queues: Vec<_> = queues.iter().map(report::queue).collect();
            report.print(&json!({"queues": queues}))
        }
        Action::Pause { queue, new } => pause(&target, &queue, true, new, report),
        Action::Resume { queue } => pause(&target, &queue, false, false, report),
        Action::Backup { file } => {
            let bar = spinner("writing the copy");
            target.sqlite(true)?.backup(&file)?;
            bar.finish_and_clear();
            report.print(&json!({"file": file, "bytes": file.metadata()?.len()}))
        }
        Action::Compact => {
            let bar = spinner("compacting");
            let before = target.size()?;
            target.sqlite(false)?.compact()?;
            bar.finish_and_clear();
            report.print(&json!({"bytes_before": before, "bytes_after": target.size()?}))
        }
        #[cfg(feature = "page")]
        Action::Page(page) => target.serve(page).map(|()| true),
    }
}

const DEAD: Query = Query::Dead { after: None };

const LIVE: Query = Query::Times { from: WallTime::MIN, until: WallTime::MAX, after: None };

fn list(store: &dyn Store, mut query: Query, page: &args::Page, report: Report) -> Outcome {
    if let Some((time, id)) = page.after.clone() {
        query.continue_after(time, id);
    }
    // One more tells whether there are others.
    let mut found =
        read(store, query, &page.filter, page.limit.saturating_add(1), |record| record)?;
    let has_more = found.len() > page.limit;
    found.truncate(page.limit);
    report.records(&found, has_more)
}

/// Returns what `keep` takes of the first timeouts of a list that fit the filter. A change of many
/// reads all before its first write, so it changes no timeout twice, such as one that dies again.
fn read<T>(
    store: &dyn Store,
    mut query: Query,
    filter: &Filter,
    limit: usize,
    keep: impl Fn(Record) -> T,
) -> Result<Vec<T>, Failure> {
    let (until, bar) = (filter.until(store)?, spinner("reading"));
    let mut found = Vec::new();
    while found.len() < limit {
        let records = store.list(&query, PAGE).block_on()?;
        let Some(last) = records.last() else { break };
        let next = last.next;
        query.continue_after(next, last.id.clone());
        let fitting = records.into_iter().filter(|record| filter.fits(record, until));
        found.extend(fitting.take(limit - found.len()).map(&keep));
        // A list that is read with a bound is in the order of time.
        if until.is_some_and(|until| until <= next) {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(found)
}

fn missing(what: &str, name: &str) -> bool {
    let name = report::plain(name);
    let _ = writeln!(io::stderr(), "delaywheel-durable: there is no {what} {name}");
    false
}

fn cancel(store: &dyn Store, id: &TimeoutId, report: Report) -> Outcome {
    let cancel = [Command::Cancel(id.clone())];
    let answers = change(|| store.write(store.now(), &cancel).block_on())?;
    let result = match answers[..] {
        [Answer::Cancelled(Cancelled::Cancelled)] => "cancelled",
        [Answer::Cancelled(Cancelled::Delivering)] => "delivering",
        _ => "not_found",
    };
    report.print(&json!({"id": id.as_str(), "result": result}))?;
    Ok(result != "not_found")
}

/// Changes timeouts, and prints how many it has changed.
fn change_all(
    store: &dyn Store,
    ids: &[TimeoutId],
    what: &'static str,
    command: impl Fn(TimeoutId) -> Command,
    is_dry: bool,
    report: Report,
) -> Outcome {
    let (mut changed, bar) = (0, spinner(what));
    for ids in ids.chunks(PAGE) {
        if is_dry {
            changed += ids.len();
            continue;
        }
        let commands = ids.iter().cloned().map(&command).collect::<Vec<_>>();
        let answers = change(|| store.write(store.now(), &commands).block_on());
        let answers = answers.map_err(|error| Failure::Partly(changed, what, error))?;
        let none = [Answer::Requeued(false), Answer::Cancelled(Cancelled::NotFound)];
        changed += answers.iter().filter(|answer| !none.contains(answer)).count();
        bar.set_message(format!("{changed} {what}"));
    }
    bar.finish_and_clear();
    report.print(&json!({what: changed, "dry_run": is_dry}))?;
    Ok(changed > 0)
}

fn pause(target: &Target, queue: &Name, is_paused: bool, is_new: bool, report: Report) -> Outcome {
    let store = target.open(false)?;
    if !is_new && store.queues().block_on()?.iter().all(|known| known.name != *queue) {
        return Ok(missing("queue", queue.as_str()));
    }
    change(|| store.pause(queue, is_paused).block_on())?;
    report.print(&json!({"queue": queue.as_str(), "paused": is_paused}))
}

fn spinner(text: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(text);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

impl Filter {
    fn until(&self, store: &dyn Store) -> Result<Option<WallTime>, Failure> {
        self.due_before.map(|time| time.resolve(store.now())).transpose()
    }

    fn fits(&self, record: &Record, until: Option<WallTime>) -> bool {
        let has = |part: &String| record.error.as_ref().is_some_and(|error| error.contains(part));
        self.prefix.as_ref().is_none_or(|prefix| record.id.as_str().starts_with(prefix))
            && self.queue.as_ref().is_none_or(|queue| record.queue == *queue)
            && self.error.as_ref().is_none_or(has)
            && until.is_none_or(|until| record.next < until)
    }
}
