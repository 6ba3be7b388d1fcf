//! Three databases on one server as one, of which one ends.

use delaywheel_durable::Sharded;

use super::*;

/// Returns the parameters of new databases.
fn create(server: &server::Server) -> [String; 3] {
    ["one", "two", "three"].map(|name| {
        client(server).batch_execute(&format!("CREATE DATABASE {name}")).expect("create");
        server.parameters().replace("dbname=postgres", &format!("dbname={name}"))
    })
}

#[test]
fn three_databases_go_on_without_one() {
    let Some(server) = server::Server::start() else { return };
    let (sender, seen) = mpsc::channel();
    let start = |one: &String| {
        let sender = sender.clone();
        let tell = move |delivery: &Delivery| Ok(sender.send(delivery.id().to_string())?);
        builder(one).build_blocking(tell).expect("start")
    };
    let timers: Vec<_> = create(&server).iter().map(start).collect();
    let three = Sharded::new(timers);
    let all = Query::Prefix { prefix: String::new(), after: None };

    // The second database ends its connections, and refuses new ones.
    let mut client = client(&server);
    client.batch_execute("ALTER DATABASE two ALLOW_CONNECTIONS false").expect("connections");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'two'";
    client.query(end, &[]).expect("terminate");
    let lost = |id: &TimeoutId| three.home(id) == 1;
    let mut expected = BTreeSet::new();
    for id in (0..60).map(|number| TimeoutId::new(format!("{number}")).expect("valid")) {
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
    while !expected.is_empty() {
        let id = seen.recv_timeout(LONG).expect("delivery");
        assert!(expected.remove(&*id), "{id}");
    }
    client.batch_execute("ALTER DATABASE two ALLOW_CONNECTIONS true").expect("connections");
    assert!(three.finish(LONG).wait().expect("finish"));
}
