//! The plans of the server: every statement finds its rows by an index, and reads no more of them
//! than it needs. The module `auto_explain` of the server logs the plan of each statement.

use std::num::NonZeroUsize;

use delaywheel_durable::{Overview, Settlement};

use super::*;

const LIMIT: usize = 10;

/// Returns the plans that were logged after `start`.
fn plans(log: &str, start: usize) -> Vec<&str> {
    log[start..].split("LOG:  duration").skip(1).collect()
}

/// Returns the number of entries that a plan read from an index with this prefix.
fn entries(plan: &str, index: &str) -> usize {
    let marker = format!(" using {index}");
    let lines = plan.lines().filter(|line| line.contains(&marker));
    let lines = lines.filter(|line| !line.ends_with("(never executed)"));
    let counts = lines.map(|line| {
        let count = |name: &str| -> usize {
            let (_, rest) = line.rsplit_once(name).unwrap_or_else(|| panic!("no {name}: {line}"));
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().expect("a number")
        };
        count(" rows=") * count(" loops=")
    });
    counts.sum()
}

fn settle(claims: &[Claim], settlement: &Settlement) -> Vec<Command> {
    claims.iter().map(|claim| Command::Settle(claim.clone(), settlement.clone())).collect()
}

/// Uses the store as workers and users do.
fn use_store(store: &PostgresStore, now: WallTime) {
    let worker = store.enter(now, Duration::from_secs(60), None).block_on().expect("enter");
    let until = now.saturating_add(Duration::from_micros(1));
    let request = |from| ClaimRequest { from, limit: LIMIT, ..ClaimRequest::new(now, until) };
    // The server may make a new plan for a statement up to its sixth execution.
    for round in 0..8 {
        let from = if round % 2 == 0 { WallTime::MIN } else { now };
        let batch = store.claim(worker, &request(from)).block_on().expect("claim").expect("lease");
        let claims: Vec<_> = batch.records.iter().map(Record::claim).collect();
        assert_eq!(claims.len(), LIMIT);
        assert_eq!(
            store.begin(now, &claims, None).block_on().expect("begin"),
            [Begun::Begun; LIMIT]
        );
        let dead = Settlement::Dead { error: String::new() };
        let mut commands = settle(&claims[..2], &dead);
        commands.extend(settle(&claims[2..4], &Settlement::Release));
        commands.push(Command::Reschedule(claims[5].id.clone(), now));
        commands.push(Command::Cancel(claims[6].id.clone()));
        store.write(now, &commands).block_on().expect("write");
        store.write(now, &settle(&claims[7..], &Settlement::Done)).block_on().expect("write");
        store.write(now, &[Command::Requeue(claims[0].id.clone(), now)]).block_on().expect("write");
        let after = batch.records.last().map(|last| (last.next, last.id.clone()));
        for query in [
            Query::Times { from: WallTime::MIN, until: WallTime::MAX, after: after.clone() },
            Query::Dead { after: None },
            Query::Prefix { prefix: "0".to_owned(), after: after.map(|(_, id)| id) },
            Query::Prefix { prefix: "05".to_owned(), after: None },
        ] {
            assert!(store.list(&query, LIMIT).block_on().expect("list").len() <= LIMIT);
        }
        store.count().block_on().expect("count");
        assert_eq!(Overview::of(store, now, 1, LIMIT).block_on().expect("counts").due, LIMIT);
        assert!(store.workers(LIMIT).block_on().expect("workers").is_some());
        let seen = store.overview(now, 9, LIMIT).block_on().expect("counts").remove(0);
        assert_eq!((seen.live, seen.due, seen.oldest_waiting), (LIMIT, LIMIT, Some(now)));
        assert!(store.renew(worker, now, Duration::from_secs(60)).block_on().expect("renew"));
    }
    store.keep_only(worker, &[]).block_on().expect("keep");
    // Half of them begin beside the other half.
    let keyed = |number| {
        let new = NewTimeout::new(format!("keyed {number}"), now, b"").expect("valid");
        Command::Schedule(new.queue("keyed").and_then(|new| new.key("key")).expect("valid"))
    };
    store.write(now, &(0..LIMIT).map(keyed).collect::<Vec<_>>()).block_on().expect("write");
    let request = ClaimRequest { queue: Name::new("keyed").expect("valid"), ..request(now) };
    let batch = store.claim(worker, &request).block_on().expect("claim").expect("lease");
    let claims: Vec<_> = batch.records.iter().map(Record::claim).collect();
    for half in claims.chunks(LIMIT / 2) {
        let begun = store.begin(now, half, NonZeroUsize::new(LIMIT)).block_on().expect("begin");
        assert_eq!(begun, [Begun::Begun; LIMIT / 2]);
    }
    store.leave(worker).block_on().expect("leave");
}

/// Connects to a server that logs its plans.
fn explained(server: &Server) -> PostgresStore {
    let options = "-c session_preload_libraries=auto_explain -c auto_explain.log_min_duration=0
        -c auto_explain.log_analyze=on -c auto_explain.log_timing=off";
    let options = options.replace('\n', " ");
    let parameters = format!("{} options='{options}'", server.parameters());
    for sql in ["ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"] {
        client(server).batch_execute(sql).expect("settings");
    }
    open(&parameters, "delaywheel")
}

fn schedule(store: &PostgresStore, now: WallTime, numbers: std::ops::Range<u32>, delay: Duration) {
    let new = |number| {
        let id = TimeoutId::new(format!("{number:06}")).expect("valid");
        NewTimeout::new(id, now.saturating_add(delay), b"payload").expect("valid")
    };
    let commands: Vec<_> = numbers.map(|number| Command::Schedule(new(number))).collect();
    store.write(now, &commands).block_on().expect("write");
}

/// A server that knows that the table is small reads all of it for the ids of a batch.
#[test]
fn plans_from_when_the_table_was_small_do_not_stay() {
    let Some(server) = Server::start() else { return };
    let store = explained(&server);
    let now = store.now();
    schedule(&store, now, 0..100, Duration::ZERO);
    client(&server).batch_execute("VACUUM ANALYZE").expect("analyze");
    use_store(&store, now);
    schedule(&store, now, 100_000..120_000, Duration::ZERO);
    until(|| {
        let start = server.log().len();
        use_store(&store, now);
        let log = server.log();
        let reads_all = |plan: &&str| {
            let is_full = |(scan, condition): (&str, &str)| {
                scan.contains(" using timeouts_pkey on")
                    && !condition.contains("Index Cond")
                    && !scan.ends_with("(never executed)")
            };
            plan.lines().zip(plan.lines().skip(1)).any(is_full)
        };
        !plans(&log, start).iter().any(reads_all)
    });
}

#[test]
fn every_statement_reads_by_an_index_and_claims_read_what_they_claim() {
    let Some(server) = Server::start() else { return };
    let store = explained(&server);
    let now = store.now();
    // Plans that the server keeps from when the table was nearly empty must be good as well.
    let schedule = |numbers, delay| schedule(&store, now, numbers, delay);
    schedule(0..100, Duration::ZERO);
    use_store(&store, now);
    schedule(100_000..120_000, Duration::ZERO);
    schedule(200_000..220_000, Duration::from_secs(86_400));
    for analyzes in [false, true] {
        if analyzes {
            client(&server).batch_execute("ANALYZE").expect("analyze");
        }
        let start = server.log().len();
        use_store(&store, now);
        let log = server.log();
        let plans = plans(&log, start);
        let claims: Vec<_> = plans.iter().filter(|plan| plan.contains("WITH picked")).collect();
        assert_eq!(claims.len(), 9, "{log}");
        for plan in claims {
            let read = entries(plan, "timeouts_pending");
            assert!((1..=LIMIT + 1).contains(&read), "{read} entries for {LIMIT} records: {plan}");
            assert!(plan.contains("Tid Scan on timeouts"), "finds its rows again: {plan}");
            // Entries before that may be of what was delivered while an old transaction is open.
            assert!(plan.contains("next_at >= $2"), "reads all entries: {plan}");
        }
        for plan in plans {
            for scan in ["Seq Scan on timeouts", "Bitmap Heap Scan on timeouts"] {
                assert!(!plan.contains(scan), "without an index: {plan}");
            }
            let is_count = plan.contains("sum(live)");
            assert!(!is_count || entries(plan, "timeouts_") == 0, "counts are kept: {plan}");
            if plan.contains(") found") || plan.contains(".leases") {
                // A count also reads the records that are held.
                let read = entries(plan, "timeouts_");
                assert!(read <= 2 * LIMIT, "{read} entries for an operator: {plan}");
            }
            if plan.contains("AS level") && plan.contains("FULL JOIN") {
                assert!(plan.contains(" using timeouts_dead_queue"), "reads other queues: {plan}");
                // Of two queues, those that wait or are dead, and those that are held.
                let read = entries(plan, "timeouts_");
                assert!(read <= 5 * LIMIT, "{read} entries for an operator: {plan}");
            }
            let is_passed_over = plan.contains("starts_with") && plan.contains("Rows Removed");
            assert!(!is_passed_over, "a list by prefix reads others: {plan}");
            // The server may believe that no record is held, and that to read them all costs
            // nothing.
            if plan.contains("unnest($1") {
                let read = entries(plan, "timeouts_");
                // A begin reads twice: it finds and locks them.
                let most = if plan.contains("WITH held") { 2 * LIMIT } else { LIMIT };
                assert!(read <= most, "{read} entries for the changes of a batch: {plan}");
            }
        }
    }
}
