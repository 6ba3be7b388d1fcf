//! Three databases on one server as one: growth, and a database that ends.

use delaywheel_durable::Sharded;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns the parameters of new databases.
fn create(server: &server::Server) -> [String; 3] {
    ["one", "two", "three"].map(|name| {
        client(server).batch_execute(&format!("CREATE DATABASE {name}")).expect("create");
        server.parameters().replace("dbname=postgres", &format!("dbname={name}"))
    })
}

fn ids(prefix: &str) -> impl Iterator<Item = TimeoutId> {
    (0..60).map(move |number| TimeoutId::new(format!("{prefix}/{number}")).expect("valid"))
}

#[test]
fn two_databases_become_three_and_go_on_without_one() {
    let Some(server) = server::Server::start() else { return };
    let (sender, seen) = mpsc::channel();
    let start = |one: &String| {
        let sender = sender.clone();
        let tell = move |delivery: &Delivery| Ok(sender.send(delivery.id().to_string())?);
        builder(one).build_blocking(tell).expect("start")
    };
    let timers: Vec<_> = create(&server).iter().map(start).collect();
    let two = Sharded::new(timers[..2].to_vec());
    let receipts: Vec<_> = ids("a").map(|id| two.schedule(id, HOUR, b"")).collect();
    for receipt in receipts {
        receipt.wait().expect("schedule");
    }
    let growing = Sharded::growing(timers.clone(), 2);
    while growing.count_unmoved().wait().expect("count") > 0 {
        growing.move_some(16).wait().expect("move");
    }
    let three = Sharded::new(timers.clone());
    let moved = timers[2].count().wait().expect("count").live;
    assert!((10..=30).contains(&moved), "{moved} of 60");
    let all = Query::Prefix { prefix: "a/".to_owned(), after: None };
    assert_eq!(three.list(&all, 99).wait().expect("list").len(), 60);
    for id in ids("a") {
        three.reschedule(id, Duration::ZERO).wait().expect("reschedule");
    }
    let mut missing: BTreeSet<_> = ids("a").map(|id| id.to_string()).collect();
    while !missing.is_empty() {
        assert!(missing.remove(&seen.recv_timeout(LONG).expect("delivery")), "each once");
    }

    // The second database ends its connections, and refuses new ones.
    for id in ids("later") {
        three.schedule(id, 2 * SECOND, b"").wait().expect("schedule");
    }
    let mut client = client(&server);
    client.batch_execute("ALTER DATABASE two ALLOW_CONNECTIONS false").expect("connections");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'two'";
    client.query(end, &[]).expect("terminate");
    let lost = |id: &TimeoutId| three.home(id) == 1;
    let mut expected: BTreeSet<_> = ids("later").filter(|id| !lost(id)).collect();
    for id in ids("b") {
        match three.schedule(&id, Duration::ZERO, b"").wait() {
            Ok(_) => assert!(!lost(&id) && expected.insert(id)),
            Err(DurableError::Store(error)) => {
                use StoreErrorReason::{OutcomeUnknown, Unavailable};
                assert!([OutcomeUnknown, Unavailable].contains(&error.reason()), "{error}");
                assert!(lost(&id), "{id}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    let error = three.list(&all, 99).wait().expect_err("one is missing");
    assert!(matches!(error, DurableError::Store(_)), "{error}");
    // Some of the second one may have come before the end of its connections.
    let mut late: BTreeSet<_> = ids("later").filter(lost).collect();
    while !expected.is_empty() {
        let id = TimeoutId::new(seen.recv_timeout(LONG).expect("delivery")).expect("valid");
        late.remove(&id);
        assert!(expected.remove(&id) || lost(&id), "{id}");
    }
    client.batch_execute("ALTER DATABASE two ALLOW_CONNECTIONS true").expect("connections");
    while !late.is_empty() {
        late.remove(&*seen.recv_timeout(LONG).expect("delivery"));
    }
    assert!(three.finish(LONG));
}
