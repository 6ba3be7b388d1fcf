//! Schedules 100,000 reminders, is killed with SIGKILL in the middle by its own parent, is started
//! again, schedules the rest, and proves that every reminder is delivered.
//!
//! ```text
//! cargo run --release -p delaywheel-durable --example reminders
//! ```
//!
//! The second mode does it with three processes on a private PostgreSQL server, and kills one:
//!
//! ```text
//! cargo run --release -p delaywheel-durable --features postgres --example reminders -- postgres
//! ```
//!
//! The parent keeps the ledger: it reads the standard output of its children.

#[cfg(feature = "postgres")]
#[path = "../tests/postgres/server.rs"]
mod server;

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    io::{BufRead, BufReader, Write, stdout},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use delaywheel_durable::{DurableTimer, NewTimeout, SqliteStore, Store};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const REMINDERS: u32 = 100_000;

/// Reminders that a caller schedules at once.
const BATCH: u32 = 100;

fn main() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let folder = env::temp_dir().join(format!("reminders-{}", std::process::id()));
            std::fs::create_dir_all(&folder)?;
            let path = folder.join("reminders.db");
            let result = path.to_str().ok_or("the path is not text".into());
            let result = result.and_then(|path| parent("file", path, 1));
            std::fs::remove_dir_all(&folder)?;
            result
        }
        ["file", path, batches] => child(&start(SqliteStore::open(path)?)?, batches),
        #[cfg(feature = "postgres")]
        ["postgres"] => {
            let Some(server) = server::Server::start() else { return Ok(()) };
            parent("server", &server.parameters(), 3)
        }
        #[cfg(feature = "postgres")]
        ["server", parameters, batches] => {
            let store = delaywheel_durable::PostgresStore::connect(parameters)?;
            child(&start(store)?, batches)
        }
        _ => Err("usage: reminders [postgres]".into()),
    }
}

/// Runs processes on one store, kills the first when two thirds of its share are acknowledged, and
/// has a last one schedule the rest.
fn parent(mode: &'static str, store: &str, processes: u32) -> Result<()> {
    let begin = Instant::now();
    let kill_at = REMINDERS * 2 / 3 / processes / BATCH * BATCH;
    let readers = (0..processes).map(|number| {
        let share = batches().skip(number as usize).step_by(processes as usize);
        let mut child = spawn(mode, store, share)?;
        Ok(thread::spawn(move || -> Result<_> {
            let mut ledger = Ledger::default();
            ledger.read(&mut child, (number == 0).then_some(kill_at))?;
            Ok((ledger, child.wait()?))
        }))
    });
    let mut total = Ledger::default();
    for (number, reader) in readers.collect::<Result<Vec<_>>>()?.into_iter().enumerate() {
        let (ledger, status) = reader.join().map_err(|_| "a reader panicked")??;
        let delivered = ledger.count(|entry| entry.deliveries > 0);
        println!("process {number}: {delivered} delivered, {status}, {:.1?}", begin.elapsed());
        for (reminder, entry) in ledger.0 {
            let sum = total.0.entry(reminder).or_default();
            sum.is_acknowledged |= entry.is_acknowledged;
            sum.deliveries += entry.deliveries;
        }
    }
    let mut last = spawn(mode, store, total.unanswered())?;
    total.read(&mut last, None)?;
    println!("another one scheduled the rest: {}, {:.1?}:", last.wait()?, begin.elapsed());
    total.check()
}

/// The entries of the reminders.
#[derive(Default)]
struct Ledger(BTreeMap<u32, Entry>);

#[derive(Default)]
struct Entry {
    is_acknowledged: bool,
    deliveries: u32,
}

impl Ledger {
    /// Reads the output of a child until its end. Kills it when this many reminders are
    /// acknowledged.
    fn read(&mut self, child: &mut Child, kill_at: Option<u32>) -> Result<()> {
        let mut acknowledged = 0;
        let pipe = child.stdout.take().ok_or("no pipe")?;
        for line in BufReader::new(pipe).lines() {
            let line = line?;
            if let Some(number) = line.strip_prefix("delivered ") {
                self.0.entry(number.parse()?).or_default().deliveries += 1;
            } else if let Some(first) = line.strip_prefix("acknowledged ") {
                let first: u32 = first.parse()?;
                for number in first..first + BATCH {
                    self.0.entry(number).or_default().is_acknowledged = true;
                }
                acknowledged += BATCH;
                if kill_at.is_some_and(|limit| acknowledged == limit / BATCH * BATCH) {
                    child.kill()?; // SIGKILL
                }
            }
        }
        Ok(())
    }

    /// Returns the batches without an answer. They may be durable; to schedule them again is safe,
    /// and delivers those twice that were delivered already.
    fn unanswered(&self) -> impl Iterator<Item = u32> {
        let is_acknowledged =
            |first: &u32| self.0.get(first).is_some_and(|entry| entry.is_acknowledged);
        batches().filter(move |first| !is_acknowledged(first))
    }

    fn count(&self, which: impl Fn(&Entry) -> bool) -> usize {
        self.0.values().filter(|entry| which(entry)).count()
    }

    /// Prints the result, and fails unless every reminder was acknowledged and delivered.
    fn check(&self) -> Result<()> {
        let acknowledged = self.count(|entry| entry.is_acknowledged);
        let delivered = self.count(|entry| entry.deliveries > 0);
        let twice = self.count(|entry| entry.deliveries > 1);
        let lost = self.count(|entry| entry.is_acknowledged && entry.deliveries == 0);
        println!(
            "  {acknowledged} acknowledged, {delivered} delivered, {twice} twice, {lost} lost"
        );
        let is_complete = acknowledged == REMINDERS as usize && lost == 0;
        if is_complete { Ok(()) } else { Err("reminders were lost".into()) }
    }
}

/// Returns the first reminders of all batches.
fn batches() -> impl Iterator<Item = u32> {
    (0..REMINDERS).step_by(BATCH as usize)
}

/// Starts a child that opens a store and schedules batches.
fn spawn(mode: &str, store: &str, batches: impl Iterator<Item = u32>) -> Result<Child> {
    let batches: Vec<_> = batches.map(|first| first.to_string()).collect();
    let mut command = Command::new(env::current_exe()?);
    command.args([mode, store, &batches.join(",")]);
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

fn start<S: Store>(store: S) -> Result<DurableTimer<S>> {
    Ok(DurableTimer::builder(store).lease(Duration::from_secs(3)).build_blocking(|delivery| {
        // The ledger has it before the delivery is acknowledged.
        tell(&format!("delivered {}\n", delivery.id()))
    })?)
}

/// Schedules batches of reminders, and delivers until none is left.
fn child<S: Store>(timer: &DurableTimer<S>, batches: &str) -> Result<()> {
    let batches = batches.split(',').filter(|first| !first.is_empty());
    schedule(timer, &batches.map(str::parse).collect::<std::result::Result<Vec<_>, _>>()?)?;
    while timer.count()?.live > 0 {
        thread::sleep(Duration::from_millis(50));
    }
    if timer.finish(Duration::from_secs(60)) { Ok(()) } else { Err("deliveries hang".into()) }
}

/// Schedules reminders for the next five seconds, by eight callers.
fn schedule<S: Store>(timer: &DurableTimer<S>, batches: &[u32]) -> Result<()> {
    let caller = |caller: usize| -> Result<()> {
        for &first in batches.iter().skip(caller).step_by(8) {
            let batch = (first..first + BATCH).map(|number| {
                let delay = Duration::from_millis(u64::from(number) * 7 % 5_000);
                NewTimeout::new(number.to_string(), timer.now().saturating_add(delay), b"hello")
            });
            timer.schedule_batch(batch.collect::<std::result::Result<_, _>>()?).wait()?;
            tell(&format!("acknowledged {first}\n"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let caller = &caller;
        let callers: Vec<_> = (0..8).map(|number| scope.spawn(move || caller(number))).collect();
        callers.into_iter().try_for_each(|caller| caller.join().map_err(|_| "a caller panicked")?)
    })
}

/// Writes a line in one piece, so that lines of several threads do not mix.
fn tell(line: &str) -> Result<()> {
    let mut stdout = stdout().lock();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}
