//! Schedules 100,000 reminders, is killed with SIGKILL in the middle by its own parent, is started
//! again, and proves that every reminder that was acknowledged is delivered.
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
    ops::Range,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use delaywheel_durable::{DurableTimer, NewTimeout, RedbStore, Store};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const REMINDERS: u32 = 100_000;

/// Reminders that a caller schedules at once.
const BATCH: u32 = 100;

fn main() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => parent(),
        ["child", path, phase] => {
            child(&start(RedbStore::open(path)?)?, phase == "schedule", 0..REMINDERS)
        }
        #[cfg(feature = "postgres")]
        ["postgres"] => shared::parent(),
        #[cfg(feature = "postgres")]
        ["worker", parameters, number] => shared::child(parameters, number.parse()?),
        _ => Err("usage: reminders [postgres]".into()),
    }
}

/// The entry of a reminder in the ledger.
#[derive(Default)]
struct Entry {
    is_acknowledged: bool,
    deliveries: u32,
}

fn parent() -> Result<()> {
    let folder = env::temp_dir().join(format!("reminders-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("reminders.redb");
    let result = run(&path);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn run(path: &Path) -> Result<()> {
    let mut ledger = BTreeMap::new();
    let start = Instant::now();
    let mut first = spawn(path, "schedule")?;
    // Two thirds of the reminders are acknowledged, and many delivered, when the child dies.
    read_ledger(&mut first, Some(REMINDERS * 2 / 3), &mut ledger)?;
    let killed = first.wait()?;
    let acknowledged = ledger.values().filter(|entry| entry.is_acknowledged).count();
    let delivered = ledger.values().filter(|entry| entry.deliveries > 0).count();
    println!("killed after {:.1?}: {killed}", start.elapsed());
    println!("  {acknowledged} reminders acknowledged, {delivered} delivered before the kill");
    let start = Instant::now();
    let mut second = spawn(path, "deliver")?;
    read_ledger(&mut second, None, &mut ledger)?;
    if !second.wait()?.success() {
        return Err("the second child failed".into());
    }
    let lost = ledger.values().filter(|e| e.is_acknowledged && e.deliveries == 0).count();
    let twice = ledger.values().filter(|entry| entry.deliveries > 1).count();
    let total = ledger.values().filter(|entry| entry.deliveries > 0).count();
    println!("started again, and finished after {:.1?}:", start.elapsed());
    println!("  {total} delivered in all, {twice} of them twice, {lost} acknowledged ones lost");
    if lost > 0 {
        return Err("acknowledged reminders were lost".into());
    }
    Ok(())
}

fn spawn(path: &Path, phase: &str) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    Ok(command.arg("child").arg(path).arg(phase).stdout(Stdio::piped()).spawn()?)
}

/// Reads the output of a child until its end. Kills it when this many reminders are acknowledged.
fn read_ledger(
    child: &mut Child,
    kill_at: Option<u32>,
    ledger: &mut BTreeMap<u32, Entry>,
) -> Result<()> {
    let mut acknowledged = 0;
    let pipe = child.stdout.take().ok_or("no pipe")?;
    for line in BufReader::new(pipe).lines() {
        let line = line?;
        if let Some(number) = line.strip_prefix("delivered ") {
            ledger.entry(number.parse()?).or_default().deliveries += 1;
        } else if let Some(first) = line.strip_prefix("acknowledged ") {
            let first: u32 = first.parse()?;
            for number in first..first + BATCH {
                ledger.entry(number).or_default().is_acknowledged = true;
            }
            acknowledged += BATCH;
            if kill_at.is_some_and(|limit| acknowledged == limit / BATCH * BATCH) {
                child.kill()?; // SIGKILL
            }
        }
    }
    Ok(())
}

fn start<S: Store>(store: S) -> Result<DurableTimer<S>> {
    Ok(DurableTimer::builder(store).lease(Duration::from_secs(3)).build_blocking(|delivery| {
        // The ledger has it before the delivery is acknowledged.
        tell(&format!("delivered {}\n", delivery.id()))
    })?)
}

/// Schedules a part of the reminders if asked to, and delivers until none is left.
fn child<S: Store>(timer: &DurableTimer<S>, is_scheduling: bool, part: Range<u32>) -> Result<()> {
    if is_scheduling {
        schedule(timer, part)?;
    }
    while timer.count()?.live > 0 {
        thread::sleep(Duration::from_millis(50));
    }
    if timer.finish(Duration::from_secs(60)) { Ok(()) } else { Err("deliveries hang".into()) }
}

/// Schedules reminders for the next five seconds, by eight callers.
fn schedule<S: Store>(timer: &DurableTimer<S>, part: Range<u32>) -> Result<()> {
    let caller = |caller: usize| -> Result<()> {
        for first in part.clone().step_by(BATCH as usize).skip(caller).step_by(8) {
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

/// Three processes on one database.
#[cfg(feature = "postgres")]
mod shared {
    use std::{
        collections::BTreeMap,
        env,
        process::{Child, Command, Stdio},
        thread,
        time::Instant,
    };

    use delaywheel_durable::PostgresStore;

    use super::{Entry, REMINDERS, Result, read_ledger, server::Server};

    const WORKERS: u32 = 3;

    pub(super) fn parent() -> Result<()> {
        let Some(server) = Server::start() else { return Ok(()) };
        drop(PostgresStore::connect(&server.parameters())?);
        let start = Instant::now();
        let children = (0..WORKERS).map(|number| spawn(&server, number));
        let children = children.collect::<Result<Vec<_>>>()?;
        // The first one is killed when half of its share is acknowledged.
        let readers = children.into_iter().enumerate().map(|(number, mut child)| {
            let kill_at = (number == 0).then_some(REMINDERS / WORKERS / 2);
            thread::spawn(move || -> Result<_> {
                let mut ledger = BTreeMap::new();
                read_ledger(&mut child, kill_at, &mut ledger)?;
                Ok((ledger, child.wait()?))
            })
        });
        let mut total: BTreeMap<u32, Entry> = BTreeMap::new();
        for (number, reader) in readers.collect::<Vec<_>>().into_iter().enumerate() {
            let (ledger, status) = reader.join().map_err(|_| "a reader panicked")??;
            let delivered: u32 = ledger.values().map(|entry| entry.deliveries).sum();
            println!("worker {number}: {delivered} deliveries, {status}");
            for (reminder, entry) in ledger {
                let sum = total.entry(reminder).or_default();
                sum.is_acknowledged |= entry.is_acknowledged;
                sum.deliveries += entry.deliveries;
            }
        }
        let acknowledged = total.values().filter(|entry| entry.is_acknowledged).count();
        let lost = total.values().filter(|e| e.is_acknowledged && e.deliveries == 0).count();
        let twice = total.values().filter(|entry| entry.deliveries > 1).count();
        println!("finished after {:.1?}: {acknowledged} reminders acknowledged,", start.elapsed());
        println!("  {twice} delivered twice, {lost} lost");
        if lost > 0 { Err("acknowledged reminders were lost".into()) } else { Ok(()) }
    }

    fn spawn(server: &Server, number: u32) -> Result<Child> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["worker", &server.parameters(), &number.to_string()]);
        Ok(command.stdout(Stdio::piped()).spawn()?)
    }

    pub(super) fn child(parameters: &str, number: u32) -> Result<()> {
        let share = REMINDERS / WORKERS / super::BATCH * super::BATCH;
        let part = number * share..(number + 1) * share;
        super::child(&super::start(PostgresStore::connect(parameters)?)?, true, part)
    }
}
