//! Several queues of one store, in virtual time.

use super::*;

fn queue(name: &str) -> (Queue, Receiver<Delivery>) {
    let (sender, deliveries) = mpsc::channel();
    (Queue::with(name, move |delivery| drop(sender.send(delivery))), deliveries)
}

fn timer(store: &SqliteStore, clock: &ManualClock, queue: Queue) -> DurableTimer {
    let builder = DurableTimer::builder(store.clone()).clock(clock.clone());
    builder.queue(queue).build().expect("start")
}

fn email(clock: &ManualClock, id: &str) -> NewTimeout {
    NewTimeout::new(id, now(clock), b"").and_then(|new| new.queue("email")).expect("valid")
}

fn ids(deliveries: &Receiver<Delivery>) -> Vec<String> {
    let acknowledge = |delivery: Delivery| {
        let id = delivery.id().to_string();
        delivery.acknowledge();
        id
    };
    deliveries.try_iter().map(acknowledge).collect()
}

/// The clock steps forward, the machine is suspended, or the store cannot be reached. The worker of
/// one queue renews its lease before that of the other.
#[test]
fn a_gap_longer_than_a_lease_repeats_no_delivery_of_another_queue() {
    for gap in [25, 60] {
        let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
        let (emails, email_deliveries) = queue("email");
        let (others, other_deliveries) = queue("other");
        let builder = DurableTimer::builder(store.clone()).clock(clock.clone());
        let timer = builder.queue(others).queue(emails).build().expect("start");
        timer.schedule_new(email(&clock, "a")).wait().expect("schedule");
        clock.advance(8 * SECOND);
        let new = NewTimeout::new("b", timer.now(), b"").and_then(|new| new.queue("other"));
        timer.schedule_new(new.expect("valid")).wait().expect("schedule");
        clock.jump(gap * SECOND);
        clock.advance(60 * SECOND);
        let deliveries = [ids(&email_deliveries), ids(&other_deliveries)];
        assert_eq!(deliveries, [["a"], ["b"]], "one delivery of each");
        let stats = timer.stats();
        assert_eq!((stats.fenced, stats.lost_leases, stats.acknowledged), (0, 0, 2));
    }
}

/// A worker without records does not renew its lease.
#[test]
fn the_end_of_an_idle_lease_is_no_loss() {
    let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
    let (emails, email_deliveries) = queue("email");
    let (others, _other_deliveries) = queue("other");
    let builder = DurableTimer::builder(store).clock(clock.clone());
    let timer = builder.queue(emails).queue(others).build().expect("start");
    for id in ["a", "b", "c"] {
        let mut new = email(&clock, id);
        new.due = timer.now().saturating_add(3_600 * SECOND);
        timer.schedule_new(new).wait().expect("schedule");
        clock.advance(3_600 * SECOND);
        assert_eq!(ids(&email_deliveries), [id]);
    }
    assert_eq!(timer.stats().lost_leases, 0);
}

#[test]
fn workers_of_different_names_and_queues_share_no_name() {
    let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
    // The last one takes the place of the first.
    let names = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("a/b/c", ""), ("a", "b/c")];
    let _workers = names.map(|(name, queue)| {
        let builder = DurableTimer::builder(store.clone()).clock(clock.clone()).worker(name);
        builder.queue(self::queue(queue).0).build().expect("start")
    });
    clock.advance(SECOND);
    assert_eq!(store.workers(9).block_on().expect("memory").expect("known").len(), 4);
}

#[test]
fn workers_share_the_rate_of_a_queue_and_obey_its_pause() {
    let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
    let limited = || {
        let (emails, seen) = queue("email");
        (timer(&store, &clock, emails.rate(NonZeroU32::new(20).expect("20"))), seen)
    };
    let workers = [limited(), limited()];
    let count = || workers.iter().map(|(_, seen)| ids(seen).len()).sum::<usize>();
    let batch = (0..200).map(|number| email(&clock, &format!("{number}")));
    workers[0].0.schedule_batch(batch.collect()).wait().expect("schedule");
    let mut counts = Vec::new();
    for second in 0..8 {
        if second == 3 {
            workers[0].0.pause("email").wait().expect("pause");
        } else if second == 5 {
            workers[1].0.resume("email").wait().expect("resume");
        }
        (0..100).for_each(|_| clock.advance(SECOND / 100));
        counts.push(count());
    }
    // A tenth of the rate is kept.
    assert_eq!(counts, [22, 20, 20, 0, 0, 22, 20, 20]);
}

/// All were scheduled before the first one was due, and handlers take a second.
#[test]
fn a_full_window_delays_no_high_priority_that_was_scheduled_long_before() {
    let (clock, (emails, seen)) = (ManualClock::new(), queue("email"));
    let builder = DurableTimer::builder(SqliteStore::in_memory()).clock(clock.clone());
    let builder = builder.window_capacity(64, 1 << 20).queue(emails.max_deliveries(1));
    let timer = builder.build().expect("start");
    let new = |id: &str, seconds, priority| {
        let due = timer.now().saturating_add(SECOND * seconds);
        NewTimeout { due, priority, ..email(&clock, id) }
    };
    let low = (0..100).map(|id| new(&format!("{id}"), 1, Priority::Low));
    let batch = low.chain([new("high", 5, Priority::High)]).collect();
    timer.schedule_batch(batch).wait().expect("schedule");
    clock.advance(SECOND);
    for _ in 0..5 {
        assert_eq!(seen.try_iter().map(Delivery::acknowledge).count(), 1);
        clock.advance(SECOND);
    }
    assert_eq!(ids(&seen), ["high"]);
}

/// Those that are too old begin no delivery, and use no permit.
#[test]
fn a_rate_holds_after_timeouts_that_are_skipped() {
    let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
    let (emails, seen) = queue("email");
    let builder = DurableTimer::builder(store).clock(clock.clone()).skip_older_than(SECOND);
    let emails = emails.rate(NonZeroU32::new(20).expect("20"));
    let timer = builder.queue(emails).build().expect("start");
    let schedule = |name, age| {
        let due = timer.now().saturating_sub(age);
        let new = |id| NewTimeout { due, ..email(&clock, &format!("{name} {id}")) };
        timer.schedule_batch((0..99).map(new).collect()).wait().expect("schedule");
    };
    for number in 0..40 {
        schedule(number, 10 * SECOND);
        clock.advance(SECOND / 20);
    }
    assert_eq!((ids(&seen).len(), timer.stats().skipped), (0, 40 * 99));
    schedule(40, Duration::ZERO);
    clock.advance(Duration::ZERO);
    assert_eq!(ids(&seen).len(), 2, "a tenth of the rate");
}

/// The lease of the worker is 30 seconds.
#[test]
fn a_long_delivery_stays_current_until_it_is_cancelled_replaced_or_over_its_limit() {
    let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
    let (emails, seen) = queue("email");
    let first = timer(&store, &clock, emails.handler_limit(Some(1_000 * SECOND)));
    let (emails, other) = queue("email");
    let second = timer(&store, &clock, emails);
    let batch = ["a", "b", "c"].map(|id| email(&clock, id));
    first.schedule_batch(batch.to_vec()).wait().expect("schedule");
    clock.advance(Duration::ZERO);
    let deliveries: Vec<_> = seen.try_iter().collect();
    for ten_seconds in 0..90 {
        clock.advance(10 * SECOND);
        if ten_seconds == 45 {
            first.shutdown();
        }
    }
    let current = || deliveries.iter().map(Delivery::is_current).collect::<Vec<_>>();
    assert_eq!((current(), ids(&other).len()), (vec![true; 3], 0), "the lease was extended");
    let (wake, woken) = mpsc::channel();
    let token = deliveries[0].stop_token();
    let waiting = std::thread::spawn(move || {
        wake.send(()).expect("the test waits");
        pollster::block_on(token.stopped());
    });
    woken.recv().expect("the thread runs");
    second.cancel("a").wait().expect("cancel");
    let replaced = second.schedule_new(email(&clock, "b")).wait().expect("replace");
    assert_eq!(replaced, Scheduled::ReplacedDelivering);
    clock.advance(Duration::ZERO);
    assert_eq!(current(), [false, false, true]);
    waiting.join().expect("it was woken");
    assert_eq!(other.try_iter().chain(seen.try_iter()).count(), 1, "the new one");
    clock.advance(101 * SECOND);
    assert_eq!(current(), [false; 3]);
    assert!(deliveries[2].stop_token().wait(Duration::MAX));
}

#[cfg(feature = "serde")]
#[test]
fn a_payload_of_an_unknown_version_waits_for_another_worker_and_is_no_attempt() {
    use delaywheel_durable::Payload;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Mail<const VERSION: u32>(String);

    impl<const VERSION: u32> Payload for Mail<VERSION> {
        const VERSION: u32 = VERSION;
    }

    fn worker<const VERSION: u32>(
        store: &SqliteStore,
        clock: &ManualClock,
    ) -> (DurableTimer, Receiver<String>) {
        let (sender, seen) = mpsc::channel();
        let queue = Queue::blocking("", move |delivery| {
            Ok(sender.send(delivery.decode::<Mail<VERSION>>()?.0)?)
        });
        (timer(store, clock, queue), seen)
    }

    let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
    let (old, none) = worker::<1>(&store, &clock);
    let mail = NewTimeout::typed("a", old.now(), &Mail::<2>("hello".to_owned())).expect("JSON");
    old.schedule_new(mail).wait().expect("schedule");
    clock.advance(3_600 * SECOND);
    let record = records(&store).remove(0);
    assert_eq!((record.attempt, none.try_iter().count()), (0, 0));
    assert_eq!(record.error.as_deref(), Some("version 2 of the payload is unknown here"));
    let (_new, seen) = worker::<2>(&store, &clock);
    old.shutdown();
    clock.advance(600 * SECOND);
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["hello"]);
    assert_eq!(records(&store), []);
}
