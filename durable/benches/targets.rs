//! Rates, lateness and memory of the stores and the timer.
//!
//! ```text
//! cargo bench -p delaywheel-durable --features postgres --bench targets -- [OPTION..]
//! ```
//!
//! `--only=sqlite` or `--only=postgres` measures one store, and `--quick` each rate for half a
//! second. `--due=1000000` timeouts are overdue when the workers start: one on SQLite, four on
//! PostgreSQL. `--rows=10000000` more are pending meanwhile. If `PEER` names the program of
//! `benches/peers`, PostgreSQL is compared with other programs on the same server.

#[path = "peers/src/rate.rs"]
mod rate;
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
    Command, Delivery, DurableTimer, NewTimeout, SqliteStore, Store, TimeoutId, WallTime,
};
use parking_lot::Mutex;
use pollster::FutureExt as _;
use tokio::runtime::Runtime;

use self::rate::rates;

/// Delay of a timeout that is scheduled while a backlog is delivered.
const PROBE: Duration = Duration::from_millis(200);

const HOUR: Duration = Duration::from_secs(3_600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const LONG: Duration = Duration::from_secs(60);

struct Bench {
    span: Duration,
    rows: u64,
    due: u64,
}

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
    let number =
        |name: &str, default: u64| value(name).map_or(default, |rows| rows.parse().expect("rows"));
    let bench = Bench {
        span: Duration::from_secs_f64(if has("--quick") { 0.5 } else { 3.0 }),
        rows: number("--rows=", 0),
        due: number("--due=", 100_000),
    };
    if value("--only=").is_none_or(|only| only == "sqlite") {
        let folder = tempfile::tempdir().expect("folder");
        let open = |name: &str| SqliteStore::open(folder.path().join(name)).expect("open");
        let sync = syncs(folder.path(), bench.span);
        println!("{:<58} {sync:>18.0}", "disk: syncs a second");
        let [one, many, ..] = bench.schedules("sqlite", open("rates"));
        target("sqlite: one caller", one / sync, 1.0 / 1.3, "of a sync");
        target("sqlite: 32 callers", many / sync, 0.8 * 32.0, "of a sync");
        bench.overdue("sqlite", vec![open("overdue")]);
    }
    #[cfg(feature = "postgres")]
    if value("--only=").is_none_or(|only| only == "postgres") {
        shared(&bench);
    }
}

impl Bench {
    /// Measures the rates of schedules. Returns those of ids that grow. The others come in another
    /// order than their times.
    fn schedules<S: Store>(&self, name: &str, store: S) -> [f64; 4] {
        let timer = DurableTimer::builder(store).build_with(|_| ()).expect("start");
        let [grow, _] = [true, false].map(|is_growing| {
            let (one, many) = (timer.clone(), timer.clone());
            let new = move |timer: &DurableTimer| {
                let id = if is_growing { growing() } else { scattered() };
                // So late that no worker claims the timeout during the measurement.
                let due = timer.now().saturating_add(HOUR + YEAR.mul_f64(fastrand::f64()));
                NewTimeout::new(id, due, b"payload").expect("valid")
            };
            let schedule = move || {
                let receipt = one.schedule_new(new(&one));
                async { _ = receipt.await.expect("schedule") }
            };
            let batch = move || {
                let receipt = many.schedule_batch((0..1_000).map(|_| new(&many)).collect());
                async { _ = receipt.await.expect("schedule") }
            };
            let runtime = Runtime::new().expect("runtime");
            let rates = runtime.block_on(rates(self.span, schedule, batch));
            let order = if is_growing { "that grow" } else { "scattered" };
            let name = format!("{name}: ids {order}; 1, 32 callers; batches by 1, 16");
            let [one, many, batch, batches] = rates.map(|rate| format!("{rate:.0}"));
            println!("{name:<58} {one:>6} {many:>6} {batch:>6} {batches:>6}");
            rates
        });
        assert!(timer.finish(LONG).wait().expect("finish"));
        grow
    }

    /// Measures how fast workers deliver what is overdue, with scattered ids, how late other
    /// timeouts are meanwhile, and the memory of this process. Returns deliveries a second.
    fn overdue<S: Store>(&self, name: &str, stores: Vec<S>) -> f64 {
        const BATCH: u64 = 5_000;
        let clock = stores[0].clock();
        let now = stores[0].now();
        let write = |count: u64, is_due: bool| {
            for _ in 0..count / BATCH {
                let new = || {
                    let span = HOUR.mul_f64(fastrand::f64());
                    let later = now.saturating_add(HOUR + 8_760 * span);
                    let due = if is_due { now.saturating_sub(span) } else { later };
                    Command::Schedule(NewTimeout::new(scattered(), due, b"payload").expect("valid"))
                };
                let commands: Vec<_> = (0..BATCH).map(|_| new()).collect();
                stores[0].write(now, &commands).block_on().expect("write");
            }
        };
        write(self.rows, false);
        let due = self.due / BATCH * BATCH;
        write(due, true);
        let (workers, late) = (stores.len(), Arc::new(Mutex::new(Vec::new())));
        let start = Instant::now();
        let timers = stores.into_iter().map(|store| {
            let (clock, late) = (Arc::clone(&clock), Arc::clone(&late));
            let handler = move |delivery: &Delivery| {
                if delivery.id().as_str().starts_with("probe/") {
                    let now = WallTime::now_of(clock.system_time());
                    late.lock().push(now.since(delivery.due()));
                }
                Ok(())
            };
            DurableTimer::builder(store).build_blocking(handler).expect("start")
        });
        let timers: Vec<_> = timers.collect();
        let acknowledged = || timers.iter().map(|timer| timer.stats().acknowledged).sum::<u64>();
        let mut probes = 0;
        while acknowledged() < due + probes {
            if acknowledged() < due * 9 / 10 {
                let probe = timers[0].schedule(format!("probe/{probes}"), PROBE, b"").wait();
                probe.expect("schedule");
                probes += 1;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let seconds = start.elapsed().as_secs_f64();
        for timer in &timers {
            assert!(timer.finish(LONG).wait().expect("finish"));
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = due as f64 / seconds;
        let name = format!("{name}: {due} overdue by {workers} workers, of {} more", self.rows);
        println!("{name:<58} {seconds:>15.1} s, {rate:.0} a second");
        let mut late = std::mem::take(&mut *late.lock());
        late.sort_unstable();
        if let Some(most) = late.last() {
            let at = |share: usize| late[(late.len() - 1) * share / 100];
            println!("  others late p50, p99, max: {:.1?}, {:.1?}, {most:.1?}", at(50), at(99));
        }
        println!("  memory now and at most: {} and {} MiB", size("VmRSS:"), size("VmHWM:"));
        rate
    }
}

fn target(name: &str, value: f64, least: f64, unit: &str) {
    let verdict = if value >= least { "met" } else { "missed" };
    println!("{name:<58} {value:>17.1}x   >= {least:.1}x {unit:<20} {verdict}");
}

fn growing() -> TimeoutId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    TimeoutId::new(format!("{:020}", NEXT.fetch_add(1, SeqCst))).expect("valid")
}

fn scattered() -> TimeoutId {
    TimeoutId::new(format!("{:016x}", fastrand::u64(..))).expect("valid")
}

/// Returns syncs a second, each after a write of one page.
fn syncs(folder: &Path, span: Duration) -> f64 {
    let mut file = File::create(folder.join("syncs")).expect("create");
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < span {
        file.write_all(&[1; 4_096]).and_then(|()| file.sync_data()).expect("sync");
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

fn size(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let digits = line.and_then(|line| line.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0) / 1_024
}

#[cfg(feature = "postgres")]
fn shared(bench: &Bench) {
    let Some(server) = server::Server::start() else { return };
    let open = |schema| server::open(&server.parameters(), schema);
    let [_, many, batch, batches] = bench.schedules("postgres", open("rates"));
    let deliveries = bench.overdue("postgres", (0..4).map(|_| open("overdue")).collect());
    let late = lateness(open("lateness"));
    println!("{:<58} {late:>15.1} ms", "postgres: lateness p99");
    let alone = sharing(vec![open("alone")]);
    let three = sharing((0..3).map(|_| open("three")).collect());
    target("postgres: three workers, 20 ms each", three / alone, 2.7, "of one");
    let Ok(program) = env::var("PEER") else { return };
    for name in ["graphile_worker", "apalis-postgres", "underway"] {
        let url = format!("postgres://postgres@127.0.0.1:{}/{name}", server.port);
        let client = postgres::Client::connect(&server.parameters(), postgres::NoTls);
        let create = format!("CREATE DATABASE \"{name}\"");
        client.expect("connect").batch_execute(&create).expect("database");
        let output = std::process::Command::new(&program).args([name, &url]).output();
        let output = output.expect("peer");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let figures = text.lines().last().unwrap_or_default().split(' ');
        let figures: Vec<f64> = figures.map(|figure| figure.parse().expect("a figure")).collect();
        let [callers, one, all, delivered, _, p99] = figures[..] else { panic!("{text}") };
        target("postgres: 32 callers", many / callers, 8.0, name);
        target("postgres: batches of 1000, one caller", batch / one, 3.0, name);
        target("postgres: batches of 1000, 16 callers", batches / all, 3.0, name);
        target("postgres: deliveries", deliveries / delivered, 3.0, name);
        if p99.is_finite() {
            target("postgres: lateness p99, theirs by ours", p99 / late, 1.0, name);
        }
    }
}

/// Delivers timeouts that are due at once, and returns how many in a second. Each keeps one of the
/// four threads of its worker busy for 20 ms.
#[cfg(feature = "postgres")]
fn sharing<S: Store>(stores: Vec<S>) -> f64 {
    const COUNT: u32 = 1_200;
    let handler = |_: &Delivery| {
        thread::sleep(Duration::from_millis(20));
        Ok(())
    };
    let timers = stores.into_iter();
    let timers = timers.map(|store| DurableTimer::builder(store).build_blocking(handler));
    let timers: Vec<_> = timers.map(|timer| timer.expect("start")).collect();
    let due = timers[0].now().saturating_add(Duration::from_secs(2));
    let new = |_| NewTimeout::new(scattered(), due, b"payload").expect("valid");
    timers[0].schedule_batch((0..COUNT).map(new).collect()).wait().expect("schedule");
    let acknowledged = || timers.iter().map(|timer| timer.stats().acknowledged).sum::<u64>();
    while acknowledged() < COUNT.into() {
        thread::sleep(Duration::from_millis(1));
    }
    let rate = f64::from(COUNT) / timers[0].now().since(due).as_secs_f64();
    assert!(timers.iter().all(|timer| timer.finish(LONG).wait().expect("finish")));
    rate
}

/// Delivers timeouts that are due one by one in the next seconds, and returns how late they are in
/// milliseconds, p99.
#[cfg(feature = "postgres")]
fn lateness<S: Store>(store: S) -> f64 {
    let timer = DurableTimer::builder(store).build_with(Delivery::acknowledge).expect("start");
    let start = timer.now().saturating_add(Duration::from_secs(2));
    let batch = (0..1_000).map(|number| {
        let due = start.saturating_add(Duration::from_millis(number * 4));
        NewTimeout::new(growing(), due, b"payload").expect("valid")
    });
    timer.schedule_batch(batch.collect()).wait().expect("schedule");
    while timer.stats().acknowledged < 1_000 {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(timer.finish(LONG).wait().expect("finish"));
    timer.stats().lateness.p99.as_secs_f64() * 1_000.0
}
