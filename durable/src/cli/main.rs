//! The program `delaywheel-durable`: what an operator does with a store. The README describes it.

mod args;
mod report;
mod target;

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use delaywheel_durable::{
    Answer, Cancelled, Command, Name, Overview, PostgresStore, Query, QueueOverview, Record, State,
    Store, StoreError, TimeoutId, WallTime, change,
};
use indicatif::{ProgressBar, ProgressStyle};
use pollster::FutureExt as _;
use serde_json::json;

use self::{
    args::{Action, Args, Filter, Requeue},
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
    #[error("{}", chain(.0))]
    Store(#[from] StoreError),
    #[error(transparent)]
    Output(#[from] io::Error),
}

fn chain(error: &StoreError) -> String {
    let errors = std::iter::successors(Some(error as &dyn Error), |&error| error.source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(": ")
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
    let target = Target::new(store, args.schema.clone());
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
        Action::List { due_before, page } => {
            let store = target.open(true)?;
            let now = store.now();
            let until = due_before.map(|time| time.resolve(now)).transpose()?;
            let prefix = page.filter.prefix.clone();
            let query = match (until, prefix) {
                (None, Some(prefix)) => Query::Prefix { prefix, after: None },
                (until, _) => {
                    let until = until.unwrap_or(WallTime::MAX);
                    Query::Times { from: WallTime::MIN, until, after: None }
                }
            };
            list(&*store, query, &page, report)
        }
        Action::Dead { page } => {
            list(&*target.open(true)?, Query::Dead { after: None }, &page, report)
        }
        Action::Show { id } => {
            let store = target.open(true)?;
            let record = store.get(&id).block_on()?;
            let history = store.history(store.now(), Some(&id), None, PAGE).block_on()?;
            if record.is_none() && history.is_empty() {
                return Ok(missing(&id));
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
        Action::Cancel { id } => cancel(&*target.open(false)?, &id, report),
        Action::Requeue(requeue) => {
            let store = target.open(requeue.dry_run)?;
            let requeued = requeue_all(&*store, &requeue)?;
            report.print(&json!({"requeued": requeued, "dry_run": requeue.dry_run}))?;
            Ok(requeued > 0)
        }
        Action::Queues => {
            let store = target.open(true)?;
            let now = store.now();
            let count = |queue| QueueOverview::of(&*store, queue, now, usize::MAX).block_on();
            let queues: Result<Vec<_>, _> =
                store.queues().block_on()?.into_iter().map(count).collect();
            let queues: Vec<_> = queues?.iter().map(report::queue).collect();
            report.print(&json!({"queues": queues}))
        }
        Action::Pause { queue } => pause(&target, &queue, true, report),
        Action::Resume { queue } => pause(&target, &queue, false, report),
        Action::Backup { file } => {
            let bar = spinner("writing the copy");
            target.sqlite(true)?.backup(&file)?;
            bar.finish_and_clear();
            report.print(&json!({"file": file, "bytes": file.metadata()?.len()}))
        }
        Action::Compact => {
            let bar = spinner("compacting");
            let size = || Ok::<_, Failure>(target.file()?.metadata()?.len());
            let before = size()?;
            target.sqlite(false)?.compact()?;
            bar.finish_and_clear();
            report.print(&json!({"bytes_before": before, "bytes_after": size()?}))
        }
        #[cfg(feature = "page")]
        Action::Page(page) => target.serve(page).map(|()| true),
    }
}

fn list(store: &dyn Store, mut query: Query, page: &args::Page, report: Report) -> Outcome {
    if let Some((time, id)) = page.after.clone() {
        query.continue_after(time, id);
    }
    let mut found = Vec::new();
    // One more tells whether there are others.
    while found.len() <= page.limit {
        let records = store.list(&query, PAGE).block_on()?;
        let Some(last) = records.last() else { break };
        query.continue_after(last.next, last.id.clone());
        found.extend(records.into_iter().filter(|record| page.filter.fits(record)));
    }
    let has_more = found.len() > page.limit;
    found.truncate(page.limit);
    report.records(&found, has_more)
}

fn missing(id: &TimeoutId) -> bool {
    let id = report::plain(id.as_str());
    let _ = writeln!(io::stderr(), "delaywheel-durable: there is no timeout {id}");
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

/// Requeues dead timeouts page by page. One that dies again meanwhile is not requeued again.
fn requeue_all(store: &dyn Store, requeue: &Requeue) -> Result<usize, Failure> {
    let start = store.now();
    // What dies again is then not from before the start.
    let due = requeue.at.map_or(Ok(start), |time| time.resolve(start))?.max(start);
    let write = |records: &mut dyn Iterator<Item = &Record>| {
        let commands = records.map(|record| Command::Requeue(record.id.clone(), due));
        let commands: Vec<_> = commands.collect();
        if requeue.dry_run {
            return Ok(commands.len());
        }
        let answers = change(|| store.write(store.now(), &commands).block_on())?;
        Ok(answers.into_iter().filter(|&answer| answer == Answer::Requeued(true)).count())
    };
    if let Some(id) = &requeue.id {
        let record = store.get(id).block_on()?;
        return write(&mut record.iter().filter(|record| record.state == State::Dead));
    }
    let bar = ProgressBar::new(store.count().block_on()?.dead).with_message("0");
    let style = "{bar:40} {pos}/{len} read, {msg} requeued, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
    let (mut after, mut requeued) = (None, 0);
    while requeued < requeue.limit {
        let records = store.list(&Query::Dead { after }, PAGE).block_on()?;
        after = records.last().map(|last| (last.next, last.id.clone()));
        if after.is_none() {
            break;
        }
        bar.inc(records.len() as u64);
        let fits = |record: &&Record| record.next < start && requeue.filter.fits(record);
        requeued += write(&mut records.iter().filter(fits).take(requeue.limit - requeued))?;
        bar.set_message(requeued.to_string());
    }
    bar.finish_and_clear();
    Ok(requeued)
}

fn pause(target: &Target, queue: &Name, is_paused: bool, report: Report) -> Outcome {
    let store = target.open(false)?;
    change(|| store.pause(queue, is_paused).block_on())?;
    report.print(&json!({"queue": queue.as_str(), "paused": is_paused}))
}

fn spinner(text: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(text);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

impl Filter {
    fn fits(&self, record: &Record) -> bool {
        let has = |part: &String| record.error.as_ref().is_some_and(|error| error.contains(part));
        self.prefix.as_ref().is_none_or(|prefix| record.id.as_str().starts_with(prefix))
            && self.queue.as_ref().is_none_or(|queue| record.queue == *queue)
            && self.error.as_ref().is_none_or(has)
    }
}
