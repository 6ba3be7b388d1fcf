//! A process is killed with SIGKILL at random moments, again and again, on one store. Its parent
//! keeps a ledger of the answers that the process got, and compares it with the deliveries.
//!
//! `CRASH_ROUNDS` sets the number of rounds.

#![cfg(all(unix, feature = "redb"))]

#[cfg(feature = "postgres")]
#[path = "postgres/server.rs"]
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    io::{BufRead, BufReader, Write, stdout},
    process::{Child, Command, Stdio},
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use delaywheel_durable::{Cancelled, DurableTimer, RedbStore, Scheduled, Store};
use fastrand::Rng;

const CALLERS: u64 = 8;

/// Writes a line that survives the end of this process.
fn tell(line: &str) {
    // One write for a line: lines of several threads do not mix.
    let line = format!("\nledger {line}\n");
    stdout().lock().write_all(line.as_bytes()).and_then(|()| stdout().flush()).expect("ledger");
}

/// The work of the killed process. Not a test by itself.
#[test]
#[ignore = "the crash test runs it as a process"]
fn child() {
    if let Ok(path) = env::var("CRASH_FILE") {
        run(RedbStore::open(path).expect("open"));
    }
    #[cfg(feature = "postgres")]
    if let Ok(parameters) = env::var("CRASH_SERVER") {
        run(delaywheel_durable::PostgresStore::connect(&parameters).expect("connect"));
    }
}

fn run<S: Store>(store: S) {
    let round: u64 = env::var("CRASH_ROUND").expect("round").parse().expect("a number");
    let is_last = env::var("CRASH_LAST").is_ok();
    let (sender, drained) = mpsc::channel();
    let drained = Mutex::new(drained);
    // On a server the records of a killed process are free when its lease ends.
    let timer = DurableTimer::builder(store)
        .lease(Duration::from_secs(2))
        .build_blocking(move |delivery| {
            tell(&format!("delivered {}", delivery.id()));
            Ok(sender.send(())?)
        })
        .expect("start");
    if is_last {
        while timer.count().expect("count").live > 0 {
            let _ = drained.lock().expect("not poisoned").recv_timeout(Duration::from_secs(1));
        }
        assert!(timer.finish(Duration::from_secs(60)));
        tell("end");
        return;
    }
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let timer = timer.clone();
            scope.spawn(move || run_caller(&timer, round, caller));
        }
    });
}

fn run_caller<S: Store>(timer: &DurableTimer<S>, round: u64, caller: u64) {
    let mut rng = Rng::with_seed(round * CALLERS + caller);
    for number in 0.. {
        let id = format!("{round}/{caller}/{number}");
        let delay = Duration::from_millis(rng.u64(..200));
        assert_eq!(timer.schedule(&id, delay, b"x").expect("schedule"), Scheduled::Created);
        tell(&format!("scheduled {id}"));
        if rng.u8(..4) == 0 {
            tell(&format!("cancelling {id}"));
            match timer.cancel(&id).expect("cancel") {
                Cancelled::Cancelled => tell(&format!("cancelled {id}")),
                Cancelled::Delivering | Cancelled::NotFound => (),
                _ => unreachable!("a new answer"),
            }
        }
    }
}

/// The entry of a timeout in the parent's ledger.
#[derive(Default)]
struct Entry {
    is_scheduled: bool,
    /// A cancel was asked for; the kill may have come before its answer.
    may_be_cancelled: bool,
    is_cancelled: bool,
    deliveries: u32,
}

/// Starts a child; a variable of its environment says which store it opens.
fn start((variable, place): (&str, &OsStr), round: u64, is_last: bool) -> Child {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(variable, place).env("CRASH_ROUND", round.to_string());
    if is_last {
        command.env("CRASH_LAST", "1");
    }
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("child")
}

/// Reads the ledger of a child to its end, and kills the child after this many lines.
fn read(child: &mut Child, kill_after: Option<usize>, entries: &mut BTreeMap<String, Entry>) {
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut count = 0;
    for line in lines {
        let line = line.expect("text");
        let Some((what, id)) = line.strip_prefix("ledger ").and_then(|entry| entry.split_once(' '))
        else {
            continue;
        };
        let entry = entries.entry(id.to_owned()).or_default();
        match what {
            "scheduled" => entry.is_scheduled = true,
            "cancelling" => entry.may_be_cancelled = true,
            "cancelled" => entry.is_cancelled = true,
            _ => {
                assert!(!entry.is_cancelled, "{id} was delivered after it was cancelled");
                entry.deliveries += 1;
            }
        }
        count += 1;
        if kill_after == Some(count) {
            child.kill().expect("kill");
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_sigkill() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.redb");
    check(("CRASH_FILE", path.as_os_str()), 12);
}

#[cfg(feature = "postgres")]
#[test]
fn nothing_acknowledged_is_lost_by_sigkill_of_a_client_of_postgres() {
    let Some(server) = server::Server::start() else { return };
    check(("CRASH_SERVER", server.parameters().as_ref()), 6);
}

fn check(store: (&str, &OsStr), default_rounds: u64) {
    let rounds = env::var("CRASH_ROUNDS");
    let rounds = rounds.map_or(default_rounds, |rounds| rounds.parse().expect("a number"));
    let mut rng = Rng::with_seed(1);
    let mut entries = BTreeMap::new();
    for round in 0..rounds {
        let mut child = start(store, round, false);
        read(&mut child, Some(rng.usize(1..400)), &mut entries);
        child.wait().expect("killed");
    }
    let mut child = start(store, rounds, true);
    read(&mut child, None, &mut entries);
    assert!(child.wait().expect("end").success());
    let missing: BTreeSet<_> = entries
        .iter()
        .filter(|(_, entry)| entry.is_scheduled && !entry.may_be_cancelled && entry.deliveries == 0)
        .map(|(id, _)| id)
        .collect();
    assert!(missing.is_empty(), "lost: {missing:?}");
    let delivered = entries.values().filter(|entry| entry.deliveries > 0).count();
    let twice = entries.values().filter(|entry| entry.deliveries > 1).count();
    println!("{rounds} kills, {} timeouts, {delivered} delivered, {twice} twice", entries.len());
    assert!(delivered > 0);
}
