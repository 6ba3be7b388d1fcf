//! Rates and latencies of the stores and the timer, as ratios within one run.
//!
//! ```text
//! cargo bench -p delaywheel-durable --features postgres --bench targets -- [--check] [--quick]
//! ```
//!
//! The measures of the embedded store are compared with a sync of the same disk. Those of
//! PostgreSQL are compared with other programs, if `PEER` names the program of `benches/peers`.
//! `--check` fails if a target is missed; without it, targets are reported.
//!
//! `--rows=10000000` instead measures the memory of timers whose stores hold this many pending
//! timeouts: one worker on SQLite, and four on PostgreSQL. `--due=1000000` of the timeouts are due
//! when the timers start. `--only=SQLite` or `--only=postgres` measures one store.

#[cfg(feature = "postgres")]
#[path = "../tests/postgres/server.rs"]
mod server;

use std::{
    env,
    fs::File,
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel_durable::{
    Command, Delivery, DurableTimer, NewTimeout, SqliteStore, Store, SystemWallClock, TimeoutId,
    WallClock, WallTime,
};
use parking_lot::Mutex;

/// Delay of a timeout that is scheduled while a backlog is delivered.
const PROBE: Duration = Duration::from_millis(200);

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A measure and its target.
struct Report {
    misses: u32,
}

impl Report {
    fn line(&mut self, name: &str, value: &str, is_met: bool, target: &str) {
        let verdict = if is_met { "met" } else { "missed" };
        println!("{name:<58} {value:>18}   {target:<28} {verdict}");
        self.misses += u32::from(!is_met);
    }
}

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let seconds = if has("--quick") { 0.5 } else { 3.0 };
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("--only="));
    let number = |name: &str| -> Option<u64> {
        let value = arguments.iter().find_map(|argument| argument.strip_prefix(name));
        value.map(|value| value.parse().expect("a number of rows"))
    };
    let (rows, due) = (number("--rows="), number("--due=").unwrap_or(100_000));
    let mut report = Report { misses: 0 };
    if only.is_none_or(|only| only == "sqlite") && rows.is_some() {
        let folder = tempfile::tempdir().expect("folder");
        let store = SqliteStore::open(folder.path().join("rows.db")).expect("open");
        hold("sqlite", rows.unwrap_or(0), due, vec![store], &mut report);
    } else if only.is_none_or(|only| only == "sqlite") {
        embedded(Duration::from_secs_f64(seconds), &mut report);
    }
    #[cfg(feature = "postgres")]
    if only.is_none_or(|only| only == "postgres") && rows.is_some() {
        let Some(server) = server::Server::start() else { return };
        let connect = |_| delaywheel_durable::PostgresStore::connect(&server.parameters());
        let stores = (0..4).map(connect).collect::<Result<_, _>>().expect("connect");
        hold("postgres", rows.unwrap_or(0), due, stores, &mut report);
    } else if only.is_none_or(|only| only == "postgres") {
        shared(Duration::from_secs_f64(seconds), &mut report);
    }
    println!("{} targets missed", report.misses);
    if has("--check") && report.misses > 0 {
        std::process::exit(1);
    }
}

/// Prints a measure without a target.
fn note(name: &str, value: &str) {
    println!("{name:<58} {value:>18}");
}

/// Runs callers for a time, and returns how many calls they completed in a second.
fn rate(callers: u64, span: Duration, call: impl Fn(u64, u64) + Sync) -> f64 {
    let total = AtomicU64::new(0);
    let start = Instant::now();
    thread::scope(|scope| {
        for caller in 0..callers {
            let (total, call) = (&total, &call);
            scope.spawn(move || {
                let mut number = 0;
                while start.elapsed() < span {
                    call(caller, number);
                    number += 1;
                }
                total.fetch_add(number, SeqCst);
            });
        }
    });
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let total = total.load(SeqCst) as f64;
    total / start.elapsed().as_secs_f64()
}

/// Returns a random delay, so long that no worker claims the timeout during the measurement.
fn someday() -> Duration {
    Duration::from_secs(3_600) + YEAR.mul_f64(fastrand::f64())
}

/// Returns syncs a second, each after a write of one page.
fn syncs(folder: &Path, span: Duration) -> f64 {
    let mut file = File::create(folder.join("syncs")).expect("create");
    let start = Instant::now();
    let mut count = 0.0;
    while start.elapsed() < span {
        file.write_all(&[1; 4_096]).and_then(|()| file.sync_data()).expect("sync");
        count += 1.0;
    }
    count / start.elapsed().as_secs_f64()
}

/// Schedules by single callers, many callers, and callers of batches. Returns the three rates in
/// timeouts.
fn schedules<S: Store>(
    timer: &DurableTimer<S>,
    (callers, batching): (u64, u64),
    span: Duration,
    delay: impl Fn() -> Duration + Sync,
) -> [f64; 3] {
    let one = rate(1, span, |_, number| {
        timer.schedule(format!("one/{number:09}"), delay(), b"payload").expect("schedule");
    });
    let many = rate(callers, span, |_, _| {
        timer.schedule(TimeoutId::generate(), delay(), b"payload").expect("schedule");
    });
    let batches = rate(batching, span, |_, _| {
        let new = || {
            let due = timer.now().saturating_add(delay());
            NewTimeout::new(TimeoutId::generate(), due, b"payload").expect("valid")
        };
        timer.schedule_batch((0..1_000).map(|_| new()).collect()).wait().expect("schedule");
    });
    [one, many, batches * 1_000.0]
}

/// Delivers and acknowledges timeouts that are due when the timer starts. Returns how many in a
/// second. As for graphile-worker, all of them are in the store before.
fn deliveries<S: Store>(store: S, count: u64) -> f64 {
    let now = store.clock().map_or_else(|| SystemWallClock.now(), |clock| clock.now());
    for _ in 0..count / 1_000 {
        let new = || NewTimeout::new(TimeoutId::generate(), now, b"payload").expect("valid");
        let commands: Vec<_> = (0..1_000).map(|_| Command::Schedule(new())).collect();
        store.write(now, &commands).expect("write");
    }
    let start = Instant::now();
    let timer = DurableTimer::builder(store)
        .max_deliveries(8_192)
        .build_with(delaywheel_durable::Delivery::acknowledge)
        .expect("start");
    let target = count / 1_000 * 1_000;
    while timer.stats().acknowledged < target {
        thread::sleep(Duration::from_millis(1));
    }
    let seconds = start.elapsed().as_secs_f64();
    assert!(timer.finish(Duration::from_secs(60)));
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let delivered = target as f64;
    delivered / seconds
}

/// Observations of the handler during the delivery of a backlog.
#[derive(Default)]
struct Seen {
    /// Due time of the latest delivery of the backlog.
    last: AtomicU64,
    /// Deliveries of the backlog after one with a later due time, by the same worker.
    disordered: AtomicU64,
    /// Lateness of the probes, which become due meanwhile.
    late: Mutex<Vec<Duration>>,
}

impl Seen {
    fn see(&self, delivery: &Delivery, now: WallTime) {
        let due = delivery.record().due;
        if delivery.id().as_str().starts_with("probe/") {
            self.late.lock().push(now.since(due));
        } else if self.last.swap(due.as_micros(), SeqCst) > due.as_micros() {
            self.disordered.fetch_add(1, SeqCst);
        }
    }
}

/// Returns a size of this process in MiB.
fn size(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let digits = line.and_then(|line| line.split_whitespace().nth(1));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0) / 1_024
}

/// Fills a store with timeouts of the next year, and some that are due. Measures how fast workers
/// deliver the latter, how late timeouts are that become due meanwhile, and the memory of this
/// process.
fn hold<S: Store>(name: &str, rows: u64, due: u64, stores: Vec<S>, report: &mut Report) {
    const BATCH: u64 = 5_000;
    let clock = stores[0].clock().unwrap_or_else(|| Arc::new(SystemWallClock));
    let now = clock.now();
    let write = |count: u64, due: &dyn Fn(u64) -> Duration| {
        for first in (0..count / BATCH).map(|batch| batch * BATCH) {
            let new = |number| {
                let due = now.saturating_add(due(number));
                NewTimeout::new(TimeoutId::generate(), due, b"payload").expect("valid")
            };
            let commands: Vec<_> =
                (first..first + BATCH).map(|number| Command::Schedule(new(number))).collect();
            stores[0].write(now, &commands).expect("write");
        }
    };
    let start = Instant::now();
    // Scattered over the year: the numbers are not in the order of the times.
    let hour = Duration::from_secs(3_600);
    write(rows, &|number| {
        hour + (YEAR / 1_000_003) * u32::try_from(number * 7_919 % 1_000_003).unwrap_or(0)
    });
    let seconds = start.elapsed().as_secs_f64();
    note(&format!("{name}: {rows} rows written in"), &format!("{seconds:.1} s"));
    write(due, &|number| Duration::from_nanos(number * 100));
    let workers = stores.len();
    let seen: Vec<_> = stores.iter().map(|_| Arc::new(Seen::default())).collect();
    let start = Instant::now();
    let timers: Vec<_> = stores
        .into_iter()
        .zip(&seen)
        .map(|(store, seen)| {
            let (clock, seen) = (Arc::clone(&clock), Arc::clone(seen));
            let builder = DurableTimer::builder(store).max_deliveries(8_192);
            let handler = move |delivery: Delivery| {
                seen.see(&delivery, clock.now());
                delivery.acknowledge();
            };
            builder.build_with(handler).expect("start")
        })
        .collect();
    let (mut probes, mut memory) = (0, (u64::MAX, 0));
    let acknowledged = || timers.iter().map(|timer| timer.stats().acknowledged).sum::<u64>();
    while acknowledged() < due + probes {
        if acknowledged() < due * 9 / 10 {
            let new = timers[0].schedule(format!("probe/{probes}"), PROBE, b"");
            new.expect("schedule");
            probes += 1;
        }
        let now = size("VmRSS");
        memory = (memory.0.min(now), memory.1.max(now));
        thread::sleep(Duration::from_millis(10));
    }
    let seconds = start.elapsed().as_secs_f64();
    let count = |seen: &Arc<Seen>| seen.disordered.load(SeqCst);
    let disordered: u64 = seen.iter().map(count).sum();
    note(
        &format!("{name}: {due} due delivered by {workers} workers in"),
        &format!("{seconds:.1} s"),
    );
    note(&format!("{name}: of these out of the order of times"), &format!("{disordered}"));
    note(
        &format!("{name}: memory meanwhile, least and most"),
        &format!("{} / {} MiB", memory.0, memory.1),
    );
    let mut late: Vec<_> = seen.iter().flat_map(|seen| seen.late.lock().clone()).collect();
    late.sort_unstable();
    if let Some(&most) = late.last() {
        let at = |share: usize| late[(late.len() - 1) * share / 100];
        report.line(
            &format!("{name}: {} timeouts meanwhile late p50, p99, max", late.len()),
            &format!("{:.1?}, {:.1?}, {most:.1?}", at(50), at(99)),
            at(99) <= Duration::from_millis(10),
            "p99 <= 10 ms",
        );
    }
    let (now, most) = (size("VmRSS"), size("VmHWM"));
    report.line(
        &format!("{name}: memory now / at most"),
        &format!("{now} / {most} MiB"),
        most < 200,
        "< 200 MiB",
    );
    for timer in timers {
        assert!(timer.finish(Duration::from_secs(60)));
    }
}

fn embedded(span: Duration, report: &mut Report) {
    let folder = tempfile::tempdir().expect("folder");
    let sync = syncs(folder.path(), span);
    note("disk: syncs a second", &format!("{sync:.0}"));
    let store = SqliteStore::open(folder.path().join("schedules.db")).expect("open");
    let timer = DurableTimer::builder(store).build_with(|_| ()).expect("start");
    let [one, many, batches] = schedules(&timer, (64, 2), span, || YEAR);
    assert!(timer.finish(Duration::from_secs(60)));
    drop(timer);
    let store = SqliteStore::open(folder.path().join("random.db")).expect("open");
    let timer = DurableTimer::builder(store).build_with(|_| ()).expect("start");
    let random = schedules(&timer, (64, 16), span, someday);
    assert!(timer.finish(Duration::from_secs(60)));
    drop(timer);
    report.line(
        "sqlite: one caller, schedules a second",
        &format!("{one:.0}"),
        one * 1.3 >= sync,
        "within 1.3x of a sync",
    );
    let by_sync = many / sync;
    report.line(
        "sqlite: 64 callers, schedules a second",
        &format!("{many:.0} ({by_sync:.1}x sync)"),
        many >= 50_000.0 || by_sync >= 0.8 * 64.0,
        ">= 50000, or 0.8 x 64 x sync",
    );
    report.line(
        "sqlite: batches of 1000, schedules a second",
        &format!("{batches:.0}"),
        batches >= 200_000.0,
        ">= 200000",
    );
    let [one, many, batches] = random.map(|rate| format!("{rate:.0}"));
    note("sqlite: the same with random delays", &format!("{one}, {many}, {batches}"));
    let store = SqliteStore::open(folder.path().join("deliveries.db")).expect("open");
    let rate = deliveries(store, 50_000);
    note("sqlite: deliveries with acknowledgement a second", &format!("{rate:.0}"));
}

#[cfg(feature = "postgres")]
fn shared(span: Duration, report: &mut Report) {
    use delaywheel_durable::PostgresStore;

    let Some(server) = server::Server::start() else { return };
    let store = PostgresStore::connect(&server.parameters()).expect("connect");
    let timer = DurableTimer::builder(store).build_with(|_| ()).expect("start");
    let [one, many, batches] = schedules(&timer, (32, 1), span, someday);
    assert!(timer.finish(Duration::from_secs(60)));
    let store = PostgresStore::connect_schema(&server.parameters(), "deliveries").expect("connect");
    let delivered = deliveries(store, 30_000);
    let store = PostgresStore::connect_schema(&server.parameters(), "lateness").expect("connect");
    let late = lateness(store);
    let noticed = notices(&server);
    report.line(
        "postgres: noticed by another process, slowest of 20",
        &format!("{noticed:.1?}"),
        noticed <= Duration::from_millis(100),
        "<= 100 ms",
    );
    note("postgres: one caller, schedules a second", &format!("{one:.0}"));
    let Some(theirs) = Peer::measure(&server, "graphile_worker") else {
        note("postgres: 32 callers, schedules a second", &format!("{many:.0}"));
        note("postgres: batches of 1000, schedules a second", &format!("{batches:.0}"));
        note("postgres: deliveries a second", &format!("{delivered:.0}"));
        note("postgres: lateness p50, p99", &format!("{:?}, {:?}", late.p50, late.p99));
        println!("PEER is not set: nothing is compared");
        return;
    };
    let mut ratio = |name: &str, ours: f64, theirs: f64, target: f64| {
        let value = format!("{ours:.0} / {theirs:.0} = {:.1}x", ours / theirs);
        report.line(
            name,
            &value,
            ours >= target * theirs,
            &format!(">= {target}x graphile_worker"),
        );
    };
    ratio("postgres: 32 callers, schedules a second", many, theirs.callers, 8.0);
    ratio("postgres: batches of 1000, schedules a second", batches, theirs.batches, 3.0);
    ratio("postgres: deliveries a second", delivered, theirs.deliveries, 3.0);
    let p99 = late.p99.as_secs_f64() * 1_000.0;
    report.line(
        "postgres: lateness p50 / p99",
        &format!("{:?} / {p99:.1} ms", late.p50),
        p99 <= theirs.p99_ms,
        &format!("p99 <= {:.1} ms (p50 {:.1})", theirs.p99_ms, theirs.p50_ms),
    );
    for name in ["apalis-postgres", "underway"] {
        let theirs = Peer::measure(&server, name).expect("PEER is set");
        let [by_callers, by_batches, by_deliveries] =
            [many / theirs.callers, batches / theirs.batches, delivered / theirs.deliveries];
        let Peer { callers, batches, deliveries, p50_ms, p99_ms } = theirs;
        note(
            &format!("{name}: callers, batches, deliveries a second; lateness"),
            &format!(
                "{callers:.0} ({by_callers:.1}x), {batches:.0} ({by_batches:.1}x), \
                 {deliveries:.0} ({by_deliveries:.1}x); {p50_ms:.1} / {p99_ms:.1} ms"
            ),
        );
    }
}

/// Returns the longest time from a commit of one process to the begin of the delivery in another
/// one, which waits for a later timeout.
#[cfg(feature = "postgres")]
fn notices(server: &server::Server) -> Duration {
    use delaywheel_durable::{Command, PostgresStore};

    let open = || PostgresStore::connect_schema(&server.parameters(), "notices").expect("connect");
    let (sender, seen) = std::sync::mpsc::channel();
    let timer = DurableTimer::builder(open())
        .recheck(None)
        .build_with(move |delivery| {
            sender.send(Instant::now()).expect("the bench waits");
            delivery.acknowledge();
        })
        .expect("start");
    timer.schedule("far", YEAR, b"").expect("schedule");
    let other = open();
    let noticed = |_| {
        let now = timer.now();
        let new = NewTimeout::new(TimeoutId::generate(), now, b"").expect("valid");
        other.write(now, &[Command::Schedule(new)]).expect("write");
        let written = Instant::now();
        seen.recv().expect("a delivery").saturating_duration_since(written)
    };
    let slowest = (0..20).map(noticed).max().expect("20 tries");
    assert!(timer.finish(Duration::from_secs(60)));
    slowest
}

/// Delivers timeouts that are due one by one in the next seconds, and returns how late they are.
#[cfg(feature = "postgres")]
fn lateness<S: Store>(store: S) -> delaywheel_durable::Latency {
    let timer = DurableTimer::builder(store)
        .build_with(delaywheel_durable::Delivery::acknowledge)
        .expect("start");
    let start = timer.now().saturating_add(Duration::from_secs(2));
    let batch = (0..1_000).map(|number| {
        let due = start.saturating_add(Duration::from_millis(number * 4));
        NewTimeout::new(TimeoutId::generate(), due, b"payload").expect("valid")
    });
    timer.schedule_batch(batch.collect()).wait().expect("schedule");
    while timer.stats().acknowledged < 1_000 {
        thread::sleep(Duration::from_millis(20));
    }
    let stats = timer.stats();
    assert!(timer.finish(Duration::from_secs(60)));
    stats.lateness
}

/// Rates a second of another program on the same server, and its lateness in milliseconds.
#[cfg(feature = "postgres")]
struct Peer {
    callers: f64,
    batches: f64,
    deliveries: f64,
    p50_ms: f64,
    p99_ms: f64,
}

#[cfg(feature = "postgres")]
impl Peer {
    /// Runs the program that the variable `PEER` names, which measures another program in a
    /// database of its own. Its last line has the figures.
    fn measure(server: &server::Server, name: &str) -> Option<Self> {
        let program = env::var("PEER").ok()?;
        let mut client =
            postgres::Client::connect(&server.parameters(), postgres::NoTls).expect("connect");
        client.batch_execute(&format!("CREATE DATABASE \"{name}\"")).expect("database");
        let url = format!("postgres://postgres@127.0.0.1:{}/{name}", server.port);
        let output = std::process::Command::new(program).args([name, &url]).output().expect("peer");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let last = text.lines().last().expect("figures");
        let figures: Vec<f64> =
            last.split(' ').map(|figure| figure.parse().expect("a figure")).collect();
        let [callers, batches, deliveries, p50_ms, p99_ms] = figures[..] else {
            panic!("five figures, not {last}")
        };
        Some(Self { callers, batches, deliveries, p50_ms, p99_ms })
    }
}
