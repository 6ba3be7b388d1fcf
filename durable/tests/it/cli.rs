//! The program, on SQLite files. `tests/postgres/operate.rs` has PostgreSQL.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use delaywheel_durable::{Command as Change, SqliteStore};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_delaywheel-durable");

struct File {
    folder: TempDir,
    path: PathBuf,
}

fn at(seconds: u64) -> WallTime {
    WallTime::from_micros(seconds * 1_000_000).expect("in range")
}

fn schedule(store: &SqliteStore, id: &str, seconds: u64, payload: &[u8]) {
    let new = NewTimeout::new(id, at(seconds), payload).expect("valid");
    store.write(at(0), &[Change::Schedule(new)]).block_on().expect("write");
}

/// Ends the last attempts of all timeouts that are due by a time.
fn kill(store: &SqliteStore, until: u64, error: &str) {
    let dead = Settlement::Dead { error: error.to_owned() };
    crate::settle_all(store, at(until), at(until), &dead);
}

impl File {
    /// 250 dead timeouts `mail/N` and 3 `sms/N`, one that is due, and one of the year 2100.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.db");
        let store = SqliteStore::open(&path).expect("open");
        (0..250).for_each(|number| schedule(&store, &format!("mail/{number:03}"), number, b"hi"));
        kill(&store, 300, "no route");
        (0..3).for_each(|number| schedule(&store, &format!("sms/{number}"), number, b"hi"));
        kill(&store, 300, "line 1\n\u{1b}[31mred");
        schedule(&store, "due", 1_000, b"text");
        let hour = Repeat::every(Duration::from_secs(3_600)).expect("valid");
        let far = NewTimeout::new("far", at(4_102_444_800), [0xff, 0]).expect("valid");
        store.write(at(0), &[Change::Schedule(far.repeat(hour))]).block_on().expect("write");
        Self { folder, path }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        run(Some(&self.path), arguments)
    }

    fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.run(&[arguments, &["--json"]].concat());
        let json = serde_json::from_slice(&output.stdout);
        let json = json.unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code().expect("no signal"), json)
    }
}

fn run(store: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env_remove("DELAYWHEEL_STORE");
    if let Some(store) = store {
        command.env("DELAYWHEEL_STORE", format!("sqlite:{}", store.display()));
        command.current_dir(store.parent().expect("a folder"));
    }
    command.output().expect("it starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn ids(list: &Value) -> Vec<&str> {
    let timeouts = list["timeouts"].as_array().expect("a list");
    timeouts.iter().map(|timeout| timeout["id"].as_str().expect("an id")).collect()
}

/// These commands work beside a process that uses the file, as this one does.
#[test]
fn commands_that_read_work_beside_the_process_that_has_the_file_open() {
    let file = File::new();
    let _in_use = SqliteStore::open(&file.path).expect("open");
    let oldest = at(1_000).to_string();
    let stats = json!({"live": 2, "dead": 253, "due": 1, "oldest_due": oldest});
    assert_eq!(file.json(&["stats"]), (0, stats));
    let (code, shown) = file.json(&["show", "far"]);
    let far = json!({
        "id": "far", "state": "pending", "due": "2100-01-01T00:00:00Z",
        "next_attempt": "2100-01-01T00:00:00Z", "attempt": 0, "repeat": "once every 3600000000",
        "queue": "", "priority": "normal", "key": null, "error": null, "payload_bytes": 2,
        "payload": null, "payload_hex": "ff00", "history": [],
    });
    assert_eq!((code, shown), (0, far));
    // To SQLite, this path alone would name another file.
    let name = if cfg!(unix) { "file:copy.db" } else { "copy.db" };
    let (code, copied) = file.json(&["backup", name]);
    let copy = file.folder.path().join(name);
    assert_eq!((code, copied["bytes"].as_u64()), (0, copy.metadata().ok().map(|file| file.len())));
    let again = file.run(&["backup", name]);
    assert!(text(&again.stderr).contains("copy.db: "), "it names the file: {again:?}");
    let copy = SqliteStore::open(&copy).expect("a store");
    assert_eq!(copy.count().block_on().expect("count").dead, 253);
    assert_eq!(file.json(&["requeue", "sms/0", "--dry-run"]).1["requeued"], 1);
    for command in [&["cancel", "due"][..], &["requeue", "--all"], &["compact"]] {
        let output = file.run(command);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(
            text(&output.stderr).contains("another process has opened the store"),
            "{output:?}"
        );
    }
}

#[test]
fn lists_have_filters_and_continue_where_the_last_one_ended() {
    let file = File::new();
    assert_eq!(ids(&file.json(&["list"]).1), ["due", "far"]);
    assert_eq!(ids(&file.json(&["list", "--due-before", "1h"]).1), ["due"]);
    let early = file.json(&["list", "--due-before", "1970-01-01T00:00:01Z"]);
    assert_eq!(early, (0, json!({"timeouts": [], "next": null})));
    for none in [["--due-before", "-500000h"], ["--error", "line 1"]] {
        assert_eq!(ids(&file.json(&[&["list"], &none[..]].concat()).1).len(), 0, "{none:?}");
    }
    // By id, and dead ones too.
    assert_eq!(ids(&file.json(&["list", "--prefix", "mail/2", "--limit", "2"]).1).len(), 2);
    let sms = ["dead", "--error", "line 1", "--prefix", "sms/"];
    assert_eq!(ids(&file.json(&sms).1), ["sms/0", "sms/1", "sms/2"]);
    for command in [&["dead"][..], &["list", "--prefix", ""]] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let after = cursor.as_ref().map_or(vec![], |next: &String| vec!["--after", next]);
            let list = file.json(&[command, &["--limit", "51"], &after].concat()).1;
            seen.extend(ids(&list).into_iter().map(str::to_owned));
            cursor = list["next"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        let live = seen.iter().filter(|id| ["due", "far"].contains(&id.as_str())).count();
        assert_eq!(seen.len() - live, 253, "{command:?}");
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len() - live, 253, "{command:?}");
    }
}

/// An operator pastes the hint into a shell.
#[test]
fn a_list_continues_after_an_id_that_is_hostile_to_a_shell_or_terminal() {
    let file = File::new();
    let store = SqliteStore::open(&file.path).expect("open");
    schedule(&store, "a '$(reboot)'\\%\n\u{1b}[2J\u{202e}é", 2_000, b"");
    schedule(&store, "b", 3_000, b"");
    let output = file.run(&["list", "--prefix", "a", "--limit", "1"]);
    assert!(!text(&output.stdout).contains("more"), "{output:?}");
    let output = file.run(&["list", "--limit", "2"]);
    let (list, hint) = text(&output.stdout).split_once("more: --after ").expect("there are more");
    assert!(list.contains("$(reboot)'\\%\\n\\u{1b}[2J\\u{202e}é"), "{list}");
    let cursor = hint.trim_end();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "%-_./:".contains(c);
    assert!(cursor.chars().all(is_plain), "{cursor}");
    assert_eq!(ids(&file.json(&["list", "--limit", "1", "--after", cursor]).1), ["b"]);
    let next = &file.json(&["list", "--limit", "2"]).1["next"];
    assert_eq!(next, cursor);
}

#[test]
fn requeue_takes_one_or_those_that_fit() {
    let file = File::new();
    let requeued = |count, is_dry| json!({"requeued": count, "dry_run": is_dry});
    let store = SqliteStore::open(&file.path).expect("open");
    schedule(&store, "ahead", 4_000_000_000, b"");
    // The clock steps back after that.
    kill(&store, 4_000_000_001, "no route");
    drop(store);
    assert_eq!(file.json(&["requeue", "--all", "--dry-run"]), (0, requeued(255, true)));
    let after_year_9999 = file.run(&["requeue", "--all", "--at", "99999999h"]);
    assert_eq!(after_year_9999.status.code(), Some(2));
    assert_eq!(file.json(&["requeue", "sms/1", "--at", "2100-01-02T00:00:00Z"]).0, 0);
    assert_eq!(file.json(&["requeue", "sms/1"]), (1, requeued(0, false)));
    assert_eq!(file.json(&["requeue", "sms/1", "--dry-run"]), (1, requeued(0, true)));
    assert_eq!(file.json(&["show", "sms/1"]).1["next_attempt"], "2100-01-02T00:00:00Z");
    assert_eq!(file.json(&["requeue", "--error", "line 1"]), (0, requeued(2, false)));
    assert_eq!(file.json(&["requeue", "--prefix", "mail/", "--limit", "120"]).1["requeued"], 120);
    assert_eq!(file.json(&["stats"]).1["dead"], 132);
    assert_eq!(file.json(&["requeue", "--all"]), (0, requeued(132, false)));
    assert_eq!(file.json(&["requeue", "--all"]), (1, requeued(0, false)));
    assert_eq!(file.json(&["requeue", "--all", "--at", "-2h"]), (1, requeued(0, false)));
    let before = file.json(&["stats"]).1;
    assert_eq!((&before["dead"], &before["due"]), (&json!(0), &json!(254)));
}

#[test]
fn cancel_takes_dead_or_live_ones_that_fit() {
    let file = File::new();
    let store = SqliteStore::open(&file.path).expect("open");
    let now = store.now();
    let ago = |days: u32| now.saturating_sub(days * DAY);
    let charge = |id, days| {
        let new = NewTimeout::new(id, ago(days), b"").and_then(|new| new.queue("charges"));
        Change::Schedule(new.expect("valid"))
    };
    let charges = [("new", 29), ("old", 31), ("older", 60)].map(|(id, days)| charge(id, days));
    store.write(now, &charges).block_on().expect("write");
    let cancelled = |count, is_dry| json!({"cancelled": count, "dry_run": is_dry});
    let live = ["cancel", "--live", "--queue", "charges"];
    let old = [&live[..], &["--due-before", "-30d"]].concat();
    assert_eq!(file.json(&[&old[..], &["--dry-run"]].concat()), (0, cancelled(2, true)));
    assert_eq!(file.run(&old).status.code(), Some(3), "this process uses the file");
    drop(store);
    assert_eq!(file.json(&[&old[..], &["--limit", "1"]].concat()), (0, cancelled(1, false)));
    assert_eq!(ids(&file.json(&["list", "--queue", "charges"]).1), ["old", "new"]);
    assert_eq!(file.json(&live), (0, cancelled(2, false)));
    assert_eq!(file.json(&live), (1, cancelled(0, false)));
    let dead = |more: &[&str]| file.json(&[&["cancel", "--dead"], more].concat());
    assert_eq!(dead(&["--queue", "charges"]), (1, cancelled(0, false)));
    assert_eq!(dead(&["--prefix", "sms/", "--error", "line 1"]), (0, cancelled(3, false)));
    assert_eq!(dead(&["--due-before", "1970-01-01T00:03:20Z"]), (0, cancelled(200, false)));
    assert_eq!(ids(&file.json(&["dead", "--limit", "1"]).1), ["mail/200"]);
    assert_eq!(dead(&["--all"]), (0, cancelled(50, false)));
    let stats = file.json(&["stats"]).1;
    assert_eq!((&stats["dead"], &stats["live"]), (&json!(0), &json!(2)));
}

#[test]
fn queues_are_listed_paused_and_filtered_and_a_timeout_has_its_history() {
    let file = File::new();
    let store = SqliteStore::open(&file.path).expect("open");
    let queue = |name| Name::new(name).expect("valid");
    // A queue that had no timeout when a rate was first asked for.
    store
        .permits(&queue("mail"), at(0), 1.try_into().expect("not 0"), 1)
        .block_on()
        .expect("permits");
    store.keep_history(Duration::MAX);
    let new = NewTimeout::new("in mail", at(1), b"").expect("valid").queue("mail");
    store.write(at(0), &[Change::Schedule(new.expect("valid"))]).block_on().expect("write");
    schedule(&store, "once", 1, b"");
    kill(&store, 2, "no route");
    let list = file.json(&["list", "--queue", "mail"]).1;
    assert_eq!((ids(&list), &list["timeouts"][0]["queue"]), (vec!["in mail"], &json!("mail")));
    let row = |queue: &str, paused, [live, due, dead]: [u32; 3], oldest: Option<u64>| {
        let oldest = oldest.map(|seconds| at(seconds).to_string());
        json!({
            "queue": queue, "paused": paused, "live": live, "due": due, "oldest_waiting": oldest,
            "delivering": 0, "dead": dead,
        })
    };
    let default = row("", false, [2, 1, 254], Some(1_000));
    let mail = |paused| row("mail", paused, [1, 1, 0], Some(1));
    let queues = |paused| json!({"queues": [default, mail(paused)]});
    assert_eq!(file.json(&["queues"]), (0, queues(false)), "beside this process");
    let attempt = json!({
        "attempt": 1, "due": at(1).to_string(), "ended": at(2).to_string(), "end": "dead",
        "error": "no route",
    });
    assert_eq!(file.json(&["show", "once"]).1["history"], json!([attempt]));
    drop(store);
    assert_eq!(file.json(&["pause", "mail"]), (0, json!({"queue": "mail", "paused": true})));
    assert_eq!(file.json(&["queues"]), (0, queues(true)));
    assert_eq!(file.json(&["resume", "mail"]).0, 0);
    for wrong in [["pause", "mial"], ["resume", "mial"]] {
        let output = file.run(&wrong);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(text(&output.stderr), "delaywheel-durable: there is no queue mial\n");
    }
    assert_eq!(file.json(&["queues"]), (0, queues(false)));
    assert_eq!(file.json(&["pause", "sms", "--new"]).0, 0);
    assert_eq!(file.json(&["queues"]).1["queues"][2], row("sms", true, [0; 3], None));
    assert_eq!(file.json(&["requeue", "--queue", "mail"]).1["requeued"], 0);
    assert_eq!(file.json(&["cancel", "once"]).0, 0);
    let gone = json!({"id": "once", "state": null, "history": [attempt]});
    assert_eq!(file.json(&["show", "once"]), (0, gone));
}

#[test]
fn cancel_and_compact_change_the_file() {
    let file = File::new();
    let cancelled = |result| json!({"id": "mail/001", "result": result});
    assert_eq!(file.json(&["cancel", "mail/001"]), (0, cancelled("cancelled")));
    assert_eq!(file.json(&["cancel", "mail/001"]), (1, cancelled("not_found")));
    let output = file.run(&["show", "mail/001"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "delaywheel-durable: there is no timeout mail/001\n");
    let size = || file.path.metadata().expect("file").len();
    let before = size();
    let compacted = file.json(&["compact"]);
    assert_eq!(compacted, (0, json!({"bytes_before": before, "bytes_after": size()})));
    assert!(size() < before, "{before}");
}

#[test]
fn wrong_usage_and_stores_that_fail_have_exit_codes_of_their_own() {
    let folder = tempfile::tempdir().expect("folder");
    let missing = folder.path().join("missing.db");
    for arguments in
        [&["stats"][..], &["requeue", "--all", "--dry-run"], &["compact"], &["pause", ""]]
    {
        let output = run(Some(&missing), arguments);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(text(&output.stderr).contains("missing.db: "), "{output:?}");
        assert!(!missing.exists() && output.stdout.is_empty(), "{output:?}");
    }
    let empty = folder.path().join("timeouts.db-lock");
    std::fs::write(&empty, b"").expect("write");
    let output = run(Some(&empty), &["pause", "mail"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    for arguments in [
        &[][..],
        &["requeue"],
        &["requeue", "a", "--all"],
        &["cancel", "--dead"],
        &["cancel", "--all"],
        &["cancel", "--dead", "--live", "--all"],
        &["cancel", "a", "--dead"],
        &["cancel", "a", "--dry-run"],
        &["show", ""],
        &["list", "--after", "x"],
        &["list", "--due-before", "soon"],
        &["migrate"],
        &["migrate", "--print", "--schema", "a b"],
        &["stats", "--store", "postgres://app@db:port/app"],
        &["stats", "--store", "host=db password=s3cret dbnme=app"],
    ] {
        let output = run(Some(&missing), arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!text(&output.stderr).contains("s3cret"), "{output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    }
    // Parameters as `connect` takes them are no path.
    let output = run(None, &["compact", "--store", "host=db dbname=app"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("for SQLite stores"), "{output:?}");
    let output = run(None, &["stats"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--store"), "{output:?}");
}

#[test]
fn texts_control_no_terminal_and_a_reader_that_ends_is_no_error() {
    let file = File::new();
    let shown = [file.run(&["show", "sms/0"]), file.run(&["dead", "--prefix", "sms"])];
    for output in &shown {
        let text = text(&output.stdout);
        assert!(text.contains("line 1\\n\\u{1b}[31mred"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    let mut child = Command::new(PROGRAM)
        .args(["--store", file.path.to_str().expect("text"), "dead", "--limit", "250"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}
