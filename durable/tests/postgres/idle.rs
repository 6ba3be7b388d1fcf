//! The connections of a process that waits.

use super::*;

/// Deliveries need more connections for a moment.
#[test]
fn a_process_that_waits_has_two_connections_and_one_that_has_ended_none() {
    let Some(server) = Server::start() else { return };
    let (timer, seen) = start(&server);
    let mut client = client(&server);
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'delaywheel'";
    let mut wait_for = |most| {
        until(|| integer(&mut client, count) <= most);
        integer(&mut client, count)
    };
    for _ in 0..2 {
        for number in 0..50 {
            timer.schedule(format!("{number}"), Duration::ZERO, b"").wait().expect("schedule");
            timer.get("none").wait().expect("get");
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

/// The database ends sessions that do nothing.
#[test]
fn a_session_that_listens_stays() {
    let Some((server, _, mut client, _)) = stored() else { return };
    let limit = "ALTER DATABASE postgres SET idle_session_timeout = '100 ms'";
    client.batch_execute(limit).expect("limit");
    let (_timer, _seen) = listening(&server.parameters());
    let stays = "SELECT count(*) FROM pg_stat_activity
        WHERE query LIKE 'LISTEN%' AND state_change < clock_timestamp() - interval '500 ms'";
    wait_for(&mut client, stays);
}
