//! A process schedules 10,000 reminders and is killed with SIGKILL while it delivers them. Its
//! parent keeps a ledger, delivers the rest, and proves that every reminder was delivered.
//!
//! ```text
//! cargo run --release -p delaywheel-durable --example reminders
//! cargo run --release -p delaywheel-durable --features postgres --example reminders -- postgres
//! ```

#[cfg(feature = "postgres")]
#[path = "../tests/postgres/server.rs"]
mod server;

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    io::{BufRead, BufReader, Write, stdout},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use delaywheel_durable::{DurableTimer, NewTimeout, SqliteStore, Store};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const REMINDERS: usize = 10_000;

fn main() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("reminders.db");
            let path = path.to_str().ok_or("the path is not text")?;
            parent("file", path, |path| SqliteStore::open(path))
        }
        ["file", path] => child(SqliteStore::open(path)?),
        #[cfg(feature = "postgres")]
        ["postgres"] => {
            let Some(server) = server::Server::start() else { return Ok(()) };
            let open = |parameters: &str| {
                delaywheel_durable::StoreResult::Ok(server::open(parameters, "delaywheel"))
            };
            parent("server", &server.parameters(), open)
        }
        #[cfg(feature = "postgres")]
        ["server", parameters] => {
            use delaywheel_durable::{NoTls, PostgresStore};

            PostgresStore::migrate_blocking(parameters, "delaywheel", NoTls)?;
            child(PostgresStore::connect_blocking(parameters, "delaywheel", NoTls)?)
        }
        _ => Err("usage: reminders [postgres]".into()),
    }
}

/// Starts a timer. It has a name, so it takes over the timeouts of a killed one at once.
fn start(store: impl Store, note: impl Fn(&str) + Send + Sync + 'static) -> Result<DurableTimer> {
    let builder = DurableTimer::builder(store).worker("node-1");
    Ok(builder.build_blocking(move |delivery| {
        note(delivery.id().as_str());
        Ok(())
    })?)
}

/// Schedules the reminders for the next three seconds, and delivers until it is killed.
fn child(store: impl Store) -> Result<()> {
    let timer = start(store, tell)?;
    let now = timer.now();
    let new = |number: usize| {
        let delay = Duration::from_millis(number as u64 * 7 % 3_000);
        NewTimeout::new(number.to_string(), now.saturating_add(delay), b"hello")
    };
    let batch = (0..REMINDERS).map(new).collect::<std::result::Result<_, _>>()?;
    timer.schedule_batch(batch).wait()?;
    tell("scheduled");
    loop {
        thread::park();
    }
}

/// Writes a line in one piece, so that lines of several threads do not mix.
fn tell(line: &str) {
    let line = format!("{line}\n");
    stdout().lock().write_all(line.as_bytes()).and_then(|()| stdout().flush()).expect("a pipe");
}

fn parent<S: Store, E: Error + Send + Sync + 'static>(
    mode: &str,
    place: &str,
    open: impl Fn(&str) -> std::result::Result<S, E>,
) -> Result<()> {
    let mut child = Command::new(env::current_exe()?);
    let mut child = child.args([mode, place]).stdout(Stdio::piped()).spawn()?;
    let (mut delivered, mut is_scheduled) = (BTreeSet::new(), false);
    for line in BufReader::new(child.stdout.take().ok_or("no pipe")?).lines() {
        match line?.as_str() {
            "scheduled" => is_scheduled = true,
            id => {
                delivered.insert(id.to_owned());
            }
        }
        if is_scheduled && delivered.len() >= REMINDERS / 3 {
            child.kill()?; // SIGKILL
        }
    }
    let first = delivered.len();
    println!("the first process was killed: {}, and had delivered {first}", child.wait()?);
    let ledger = Arc::new(Mutex::new(delivered));
    let rest = Arc::clone(&ledger);
    let note = move |id: &str| {
        rest.lock().expect("not poisoned").insert(id.to_owned());
    };
    let timer = start(open(place)?, note)?;
    while timer.count().wait()?.live > 0 {
        thread::sleep(Duration::from_millis(50));
    }
    let has_finished = timer.finish(Duration::from_secs(60)).wait().expect("finish");
    let delivered = ledger.lock().expect("not poisoned").len();
    println!("the second one delivered the rest: {delivered} of {REMINDERS}");
    if has_finished && delivered == REMINDERS { Ok(()) } else { Err("reminders were lost".into()) }
}
