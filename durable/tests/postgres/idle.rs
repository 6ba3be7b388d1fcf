//! What a worker that waits asks the server, and how it learns of the timeouts of other processes.

use delaywheel_durable::ManualWallClock;

use super::*;

/// Another program may insert rows by itself, and a notification may be lost.
#[test]
fn a_row_without_a_notification_is_found_by_the_next_look() {
    let Some(server) = Server::start() else { return };
    let (sender, seen) = mpsc::channel();
    let timer = telling(builder(&server.parameters()).recheck(Some(SECOND / 20)), sender);
    let mut client = client(&server);
    // The begin of listening makes the timer look as well, but only once.
    for id in ["a", "b", "c"] {
        let insert = "INSERT INTO delaywheel.timeouts (id, due, next_at, payload)
            VALUES ($1, now(), now(), '')";
        client.execute(insert, &[&id]).expect("insert");
        assert_eq!(seen.recv_timeout(LONG).expect("delivery"), id);
    }
    assert!(timer.finish(LONG));
}

/// The timer never looks just because some time has passed, so nothing but a notification can make
/// it claim. The bench `targets` measures how long that takes.
#[test]
fn a_nearer_timeout_of_another_process_is_delivered_without_a_poll() {
    let Some(server) = Server::start() else { return };
    let (sender, seen) = mpsc::channel();
    let timer = start_without_polls(&server.parameters(), sender);
    timer.schedule("far", 3_000 * SECOND, b"").wait().expect("schedule");
    // A store without a timer, as another process has one.
    let other = connect(&server);
    let deliver = |id: &str| {
        let now = other.clock().now();
        let new = NewTimeout::new(id, now, b"").expect("valid");
        other.write(now, &[Command::Schedule(new)]).expect("write");
        assert_eq!(seen.recv_timeout(LONG).expect("delivery"), id);
    };
    // Also the begin of listening has the timer look: this may find the first timeout, and no
    // later.
    deliver("a");
    let before = timer.stats().claims;
    for id in ["b", "c", "d"] {
        deliver(id);
    }
    let made = timer.stats().claims - before;
    assert!(made <= 12, "{made} claims for three notifications, each for two lanes");
    assert!(timer.finish(LONG));
}

/// Deliveries need more connections for a moment.
#[test]
fn a_process_that_waits_has_two_connections_and_one_that_has_ended_none() {
    let Some(server) = Server::start() else { return };
    let (timer, seen) = start(&server);
    let mut client = client(&server);
    let mut count = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'delaywheel'";
        client.query_one(sql, &[]).expect("connections").get::<_, i64>(0)
    };
    let mut wait_for = |most| {
        until(|| count() <= most);
        count()
    };
    for _ in 0..2 {
        for number in 0..50 {
            timer.schedule(format!("{number}"), Duration::ZERO, b"").wait().expect("schedule");
            timer.get("none").expect("get");
        }
        for _ in 0..50 {
            seen.recv_timeout(LONG).expect("delivery");
        }
        assert!((3..=7).contains(&wait_for(7)), "of several kinds");
        assert_eq!(wait_for(2), 2, "one that listens, and one other");
    }
    drop((timer, seen));
    wait_for(0);
}

/// Returns the first words of the statements in a log.
fn statements(log: &str) -> Vec<String> {
    let entries = log.split("LOG:  ").skip(1).filter_map(|entry| {
        let (kind, text) = entry.split_once(": ")?;
        let is_statement = kind == "statement" || kind.starts_with("execute");
        // The lines of a statement after the first one begin with a tab.
        let lines = text.split('\n').enumerate();
        let own = lines.take_while(|(number, line)| *number == 0 || line.starts_with('\t'));
        let words = own.flat_map(|(_, line)| line.split_whitespace()).take(3);
        is_statement.then(|| words.collect::<Vec<_>>().join(" "))
    });
    entries.collect()
}

/// The timer runs in virtual time, and the connection that listens in real time.
#[test]
fn a_worker_that_waits_sends_the_documented_statements_only() {
    let Some(server) = Server::start() else { return };
    let parameters = format!("{} options='-c log_statement=all'", server.parameters());
    for recheck in [None, Some(60 * SECOND)] {
        let store = open(&parameters, "delaywheel");
        let clock = ManualWallClock::at(store.clock().now());
        let listens = || {
            let all = statements(&server.log());
            all.iter().filter(|sql| *sql == "LISTEN delaywheel").count()
        };
        let earlier = listens();
        let timer = DurableTimer::builder(store)
            .clock(clock.clone())
            .recheck(recheck)
            .build_blocking(|_| Ok(()))
            .expect("start");
        timer.schedule("far", 300 * 86_400 * SECOND, b"").wait().expect("schedule");
        clock.advance(Duration::ZERO);
        until(|| listens() != earlier);
        let (before, start) = (timer.stats(), server.log().len());
        clock.advance(3_600 * SECOND);
        let after = timer.stats();
        let sent: BTreeSet<_> = statements(&server.log()[start..]).into_iter().collect();
        assert_eq!(after.commits, before.commits);
        let claims = after.claims - before.claims;
        // In two lanes; the begin of listening may add one look.
        let looks = if recheck.is_some() { 2 * 60 } else { 0 };
        assert!((looks..=looks + 2).contains(&claims), "{claims} claims in an hour");
        let documented = [
            "",
            "BEGIN",
            "COMMIT",
            "SELECT id FROM",
            "INSERT INTO delaywheel.workers",
            "SELECT (SELECT min(t.next_at)",
            "SELECT clock_timestamp()",
            "UPDATE delaywheel.timeouts t",
            "UPDATE delaywheel.workers SET",
            "WITH picked AS",
        ];
        assert!(sent.iter().all(|sql| documented.contains(&sql.as_str())), "{sent:?}");
        assert_eq!(sent.contains("WITH picked AS"), claims > 0, "{sent:?}");
    }
}
