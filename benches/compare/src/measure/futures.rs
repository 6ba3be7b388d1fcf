//! Sleeps and timeouts beside those of tokio.
//!
//! Each contestant takes each turn in a process of its own, with a tokio runtime of two workers.
//! The timed loops run in tasks on these workers, so all contestants see the same wakers.

use std::{
    future::{poll_fn, ready},
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use delaywheel::future;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    task::JoinSet,
    time,
};

use super::Turn;
use crate::prelude::*;

/// The workers of a runtime.
const WORKERS: usize = 2;

/// The least delay of a sleep that does not elapse.
const LIMIT: Duration = Duration::from_secs(30);

/// A source of sleeps and timeouts.
trait Source: Clone + Send + Sync + 'static {
    const NAME: &'static str;

    /// Whether the runtime has tokio's alternative timer.
    const IS_ALTERNATIVE: bool = false;

    type Sleep: Future + Send;

    /// Starts the source on a runtime, which the caller has entered.
    fn start() -> Self;

    fn sleep(&self, delay: Duration) -> Self::Sleep;

    fn reset(sleep: Pin<&mut Self::Sleep>, delay: Duration);

    fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> impl Future + Send;
}

/// The free functions, which use the default timer, as those of tokio use the timer of the runtime.
#[derive(Clone)]
struct Free;

impl Source for Free {
    const NAME: &'static str = "delaywheel";

    type Sleep = future::Sleep;

    fn start() -> Self {
        Self
    }

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        future::sleep(delay)
    }

    fn reset(mut sleep: Pin<&mut Self::Sleep>, delay: Duration) {
        sleep.reset(delay);
    }

    fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> impl Future + Send {
        future::timeout(delay, future)
    }
}

pub(crate) const DRIVER: &str = "delaywheel driver";

/// A timer of the program, whose sleeps a task of the runtime expires.
#[derive(Clone)]
struct Driven(Timer);

impl Source for Driven {
    const NAME: &'static str = DRIVER;

    type Sleep = future::Sleep;

    fn start() -> Self {
        let built = Timer::builder().build_with_driver(time::sleep);
        let (timer, driver) = built.expect("the settings are valid");
        tokio::spawn(driver);
        Self(timer)
    }

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        self.0.sleep(delay)
    }

    fn reset(mut sleep: Pin<&mut Self::Sleep>, delay: Duration) {
        sleep.reset(delay);
    }

    fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> impl Future + Send {
        self.0.timeout(delay, future)
    }
}

/// The sleeps of the runtime, by its first timer or the alternative one.
#[derive(Clone)]
struct Tokio<const ALTERNATIVE: bool = false>;

impl<const ALTERNATIVE: bool> Source for Tokio<ALTERNATIVE> {
    const NAME: &'static str = shared::Tokio::<ALTERNATIVE>::NAME;

    const IS_ALTERNATIVE: bool = ALTERNATIVE;

    type Sleep = time::Sleep;

    fn start() -> Self {
        Self
    }

    fn sleep(&self, delay: Duration) -> Self::Sleep {
        time::sleep(delay)
    }

    fn reset(sleep: Pin<&mut Self::Sleep>, delay: Duration) {
        sleep.reset(time::Instant::now() + delay);
    }

    fn timeout<F: Future + Send>(&self, delay: Duration, future: F) -> impl Future + Send {
        time::timeout(delay, future)
    }
}

const CONTESTANTS: &[&str] = &[
    Free::NAME,
    Driven::NAME,
    <Tokio>::NAME,
    #[cfg(tokio_unstable)]
    Tokio::<true>::NAME,
];

/// All rows.
pub(crate) fn run(bench: &mut Bench) -> Done {
    let (some, many) = bench.full((1_000, 10_000), (100_000, 1_000_000));
    let turns = [
        ("ready".to_owned(), 0),
        (format!("once/{}", size(some)), some),
        ("sleep/1e3".to_owned(), 1_000),
        (format!("sleep/{}", size(some)), some),
        (format!("sleep/{}", size(many)), many),
        ("workers/2".to_owned(), 1_000),
        (format!("reset/{}", size(some)), some),
        (format!("elapse/{}", size(many)), many),
        ("echo".to_owned(), bench.full(20, 1_000)),
    ];
    let (program, millis) = (env::current_exe()?, bench.full(10, 300));
    let contestants: Vec<_> = bench.of(CONTESTANTS, |name| name).copied().collect();
    for (row, number) in turns {
        let row = format!("future/{row}");
        // Sleeps that elapse have a row of processor time too.
        let cpu = row.replace("elapse", "elapse_cpu");
        if !(bench.is_asked(&row) || bench.is_asked(&cpu)) {
            continue;
        }
        bench.tell(&row);
        for _ in 0..bench.rounds() {
            for contestant in &contestants {
                bench.delegate(&program, &row, contestant, [1, number], millis, 0)?;
            }
        }
    }
    Ok(())
}

pub(super) fn take(turn: &Turn) -> io::Result<Vec<Figure>> {
    match &*turn.contestant {
        Free::NAME => take_of::<Free>(turn),
        Driven::NAME => take_of::<Driven>(turn),
        <Tokio>::NAME => take_of::<Tokio>(turn),
        _ => take_of::<Tokio<true>>(turn),
    }
}

fn take_of<S: Source>(turn: &Turn) -> io::Result<Vec<Figure>> {
    let runtime = shared::runtime(WORKERS, S::IS_ALTERNATIVE)?;
    let source = {
        let _entered = runtime.enter();
        S::start()
    };
    let (number, span) = (turn.number, turn.time());
    let costs = |workers, work: fn(&S, &mut Context<'_>, u32, Duration) -> f64| {
        on_workers(&runtime, &source, workers, move |source, cx| work(source, cx, number, span))
    };
    let figure = match turn.row.split('/').nth(1) {
        Some("ready") => costs(1, ready_at_once)[0],
        Some("once") => costs(1, pending_once)[0],
        Some("sleep") => costs(1, create_and_drop)[0],
        Some("reset") => costs(1, reset)[0],
        Some("workers") => costs(WORKERS, create_and_drop).iter().map(|cost| 1e3 / cost).sum(),
        Some("elapse") => return Ok(elapse(&source, &runtime, number)),
        _ => return runtime.block_on(echo(&source, number, span)),
    };
    Ok(vec![Figure::new(&*turn.row, S::NAME, figure)])
}

/// Runs the same work in a task on each of so many workers, which begin together.
fn on_workers<S: Source>(
    runtime: &Runtime,
    source: &S,
    workers: usize,
    work: impl Fn(&S, &mut Context<'_>) -> f64 + Copy + Send + 'static,
) -> Vec<f64> {
    let barrier = Arc::new(Barrier::new(workers));
    let start = |_| {
        let (source, barrier) = (source.clone(), Arc::clone(&barrier));
        runtime.spawn(poll_fn(move |cx| {
            // It blocks the worker, so each task has a worker of its own.
            barrier.wait();
            Poll::Ready(work(&source, cx))
        }))
    };
    let tasks: Vec<_> = (0..workers).map(start).collect();
    let results = tasks.into_iter().map(|task| runtime.block_on(task));
    results.map(|result| result.expect("no task panics")).collect()
}

/// Repeats chunks of work until the time is up. Returns the nanoseconds of each operation.
fn repeat(span: Duration, mut chunk: impl FnMut() -> u64) -> f64 {
    let (start, mut number) = (Instant::now(), 0);
    while start.elapsed() < span {
        number += chunk();
    }
    nanos_per(start.elapsed(), number)
}

/// Different delays, as connections have them.
fn delay(index: u32) -> Duration {
    LIMIT + index.wrapping_mul(7_919) % 30_000 * MILLI
}

/// Makes sleeps and polls each once.
fn pending<S: Source>(source: &S, cx: &mut Context<'_>, number: u32) -> Vec<Pin<Box<S::Sleep>>> {
    let mut sleeps: Vec<_> =
        (0..number).map(|index| Box::pin(source.sleep(delay(index)))).collect();
    sleeps.iter_mut().for_each(|sleep| assert!(sleep.as_mut().poll(cx).is_pending()));
    sleeps
}

fn ready_at_once(source: &impl Source, cx: &mut Context<'_>, _: u32, span: Duration) -> f64 {
    repeat(span, || {
        for _ in 0..10_000 {
            let limited = source.timeout(black_box(LIMIT), ready(7));
            assert!(black_box(pin!(limited).poll(cx).is_ready()));
        }
        10_000
    })
}

/// The futures live in memory that was allocated and touched before, as in a task: an allocation
/// takes longer than half of the rest.
fn pending_once(source: &impl Source, cx: &mut Context<'_>, number: u32, span: Duration) -> f64 {
    let once = || {
        let mut is_polled = false;
        poll_fn(move |_| {
            if std::mem::replace(&mut is_polled, true) { Poll::Ready(()) } else { Poll::Pending }
        })
    };
    let new = |index| source.timeout(delay(index), once());
    let mut all: Vec<_> = (0..number).map(|index| Box::pin(Some(new(index)))).collect();
    repeat(span, || {
        for (index, limited) in (0..).zip(&mut all) {
            limited.set(Some(new(index)));
            let limited = limited.as_mut().as_pin_mut().expect("it has just been set");
            assert!(limited.poll(cx).is_pending());
        }
        for limited in &mut all {
            let polled = limited.as_mut().as_pin_mut().expect("it is in flight").poll(cx);
            assert!(polled.is_ready());
            limited.set(None);
        }
        u64::from(number)
    })
}

fn create_and_drop(source: &impl Source, cx: &mut Context<'_>, number: u32, span: Duration) -> f64 {
    let _others = pending(source, cx, number);
    repeat(span, || {
        for index in 0..10_000 {
            assert!(pin!(source.sleep(delay(index))).poll(cx).is_pending());
        }
        10_000
    })
}

/// A message of each connection: its sleep is reset and polled.
fn reset<S: Source>(source: &S, cx: &mut Context<'_>, number: u32, span: Duration) -> f64 {
    let mut sleeps = pending(source, cx, number);
    repeat(span, || {
        for (index, sleep) in (0..).zip(&mut sleeps) {
            S::reset(sleep.as_mut(), delay(index));
            assert!(sleep.as_mut().poll(cx).is_pending());
        }
        u64::from(number)
    })
}

/// Sleeps of tasks that elapse within a second.
fn elapse<S: Source>(source: &S, runtime: &Runtime, number: u32) -> Vec<Figure> {
    // They are due once all have been spawned.
    let (first, span) = (2 * MICRO * number + 20 * MILLI, MICRO * number);
    let (arrivals, before) = (Arrivals::new(number as usize), process_cpu());
    let due: Vec<_> = (0..number)
        .map(|index| {
            let offset = u64::from(index) * 7_919_000 % nanos(span);
            nanos(first) + offset
        })
        .collect();
    let (source, noted, deadlines) = (source.clone(), Arc::clone(&arrivals), due.clone());
    let spawned = runtime.spawn(async move {
        for due in deadlines {
            let (arrivals, deadline) = (Arc::clone(&noted), noted.instant(due));
            let sleep = source.sleep(deadline.saturating_duration_since(Instant::now()));
            tokio::spawn(async move {
                sleep.await;
                arrivals.note(due);
            });
        }
    });
    runtime.block_on(spawned).expect("no task panics");
    let late = arrivals.settle_strictly(due).lateness(0..u64::MAX);
    let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
    let row = format!("future/elapse/{}", size(number));
    let mut figures = Figure::percentiles(&row, S::NAME, &late, "p99", MILLI);
    let cpu = cpu.map(|cpu| nanos_per(cpu, u64::from(number)));
    figures.extend(
        cpu.map(|cpu| Figure::new(format!("future/elapse_cpu/{}", size(number)), S::NAME, cpu)),
    );
    figures
}

/// An echo server and its clients in one runtime, over loopback; each connection has one sleep.
async fn echo<S: Source>(source: &S, connections: u32, span: Duration) -> io::Result<Vec<Figure>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (mut servers, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..connections {
        let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (client, (server, _)) = (client?, server?);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        servers.spawn(serve(source.clone(), server));
        clients.push(client);
    }
    let (start, before) = (Instant::now(), process_cpu());
    let end = start + 5 * span;
    let mut asking: JoinSet<_> = clients.into_iter().map(|client| ask(client, end)).collect();
    let mut answers = 0;
    while let Some(asked) = asking.join_next().await {
        answers += asked.map_err(io::Error::other)??;
    }
    let (time, cpu) = (start.elapsed(), process_cpu());
    servers.shutdown().await;
    let rate = count(answers) / time.as_secs_f64() / 1e3;
    let mut figures = vec![Figure::new("future/echo/rate", S::NAME, rate)];
    let cpu = cpu
        .zip(before)
        .map(|(after, before)| nanos_per(after.saturating_sub(before), answers) / 1e3);
    figures.extend(cpu.map(|cpu| Figure::new("future/echo/cpu", S::NAME, cpu)));
    Ok(figures)
}

const MESSAGE: usize = 64;

/// Answers messages, until none comes within the time limit. Each message resets the sleep.
async fn serve<S: Source>(source: S, mut stream: TcpStream) -> io::Result<()> {
    let mut idle = pin!(source.sleep(LIMIT));
    let mut buffer = [0; MESSAGE];
    loop {
        S::reset(idle.as_mut(), LIMIT);
        tokio::select! {
            biased;
            read = stream.read_exact(&mut buffer) => read?,
            _ = idle.as_mut() => return Err(io::ErrorKind::TimedOut.into()),
        };
        stream.write_all(&buffer).await?;
    }
}

/// Sends messages and awaits their answers until the time is up. Returns their number.
async fn ask(mut stream: TcpStream, end: Instant) -> io::Result<u64> {
    let mut buffer = [7; MESSAGE];
    let mut answers = 0;
    while Instant::now() < end {
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
        answers += 1;
    }
    Ok(answers)
}
