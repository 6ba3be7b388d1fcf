//! Futures in virtual time on each runtime, and in real time on each.

use std::{
    future::{Future, pending},
    io,
    time::{Duration, Instant},
};

use delaywheel::{
    Clock, Completion, ManualClock, MissedTicks, Purgatory, Timer,
    future::{AsyncPurgatory, TimeoutError},
};

const HOUR: Duration = Duration::from_secs(3600);

/// The time of a [`ManualClock`], which does not run the timers of this clock.
#[derive(Debug)]
struct View(ManualClock);

impl Clock for View {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

/// An hour of a timer that its clock runs, and one of a timer with a driver.
async fn an_hour<S>(
    spawn: impl Fn(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) -> S,
    join: impl AsyncFn(S),
) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    an_hour_of(timer, clock, &spawn, &join).await;

    let clock = ManualClock::new();
    let outer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let builder = Timer::builder().clock(View(clock.clone()));
    let driven = builder.build_with_driver(move |delay| outer.sleep(delay));
    let (timer, driver) = driven.expect("the settings are valid");
    let driver = spawn(Box::pin(driver));
    an_hour_of(timer, clock, &spawn, &join).await;
    join(driver).await;
}

/// Sleeps, a timeout, an interval, a queue and waits in a purgatory, while a test advances the
/// clock by an hour.
async fn an_hour_of<S>(
    timer: Timer,
    clock: ManualClock,
    spawn: impl Fn(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) -> S,
    join: impl AsyncFn(S),
) {
    let queue = Timer::builder().clock(clock.clone()).build_queue().expect("they are valid");
    queue.insert(HOUR, "due").expect("the queue is open");
    let builder = Timer::builder().clock(clock.clone());
    let purgatory: AsyncPurgatory<u32> =
        Purgatory::builder().timer(builder).build().expect("the settings are valid");
    let (fetch, produce) = (purgatory.clone(), purgatory.clone());
    let (one, two, three, four) = (timer.clone(), timer.clone(), timer.clone(), timer.clone());
    let tasks = [
        spawn(Box::pin(async move { one.sleep(HOUR).await.expect("the timer runs") })),
        spawn(Box::pin(async move {
            let error = two.timeout(HOUR, pending::<()>()).await.expect_err("it is over");
            assert!(matches!(error, TimeoutError::Elapsed));
        })),
        spawn(Box::pin(async move {
            let mut interval = three.interval(HOUR / 4, MissedTicks::Burst);
            for _ in 0..5 {
                interval.tick().await.expect("the timer runs");
            }
        })),
        spawn(Box::pin(async move { assert_eq!(queue.recv_async().await, Ok("due")) })),
        spawn(Box::pin(async move {
            let sleep = async { four.sleep(HOUR / 2).await.map_err(io::Error::from) };
            four.timeout(HOUR, sleep).await.expect("it is in time").expect("the timer runs");
        })),
        spawn(Box::pin(async move {
            let end = fetch.wait([3], HOUR).await.expect("the purgatory is open");
            assert_eq!(end, Completion::Expired);
        })),
        spawn(Box::pin(async move {
            let end = produce.wait([4], 2 * HOUR).await.expect("the purgatory is open");
            assert_eq!(end, Completion::Satisfied);
        })),
    ];
    // Tasks that have not begun when the clock moves would count from then on.
    while (timer.stats().pending, purgatory.stats().delayed) != (5, 2) {
        futures_lite::future::yield_now().await;
    }
    clock.advance(HOUR);
    assert_eq!(purgatory.check_and_complete(&4), 1);
    for task in tasks {
        join(task).await;
    }
    assert_eq!((timer.stats().pending, purgatory.stats().delayed), (0, 0));
}

async fn an_hour_on_tokio() {
    an_hour(tokio::spawn, async |task| task.await.expect("no task panics")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_passes_on_tokio_with_two_threads() {
    an_hour_on_tokio().await;
}

#[tokio::test(start_paused = true)]
async fn an_hour_passes_while_the_time_of_tokio_is_paused() {
    let before = tokio::time::Instant::now();
    an_hour_on_tokio().await;
    assert_eq!(tokio::time::Instant::now(), before, "it is another clock");
}

/// The clock of tokio, which a test can pause.
#[derive(Debug)]
struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

#[tokio::test(start_paused = true)]
async fn the_paused_time_of_tokio_drives_sleeps() {
    let builder = Timer::builder().clock(TokioClock);
    let driven = builder.build_with_driver(tokio::time::sleep);
    let (timer, driver) = driven.expect("the settings are valid");
    let driver = tokio::spawn(driver);
    let before = TokioClock.now();
    timer.sleep(HOUR).await.expect("the timer runs");
    let limited = timer.timeout(HOUR, pending::<()>()).await;
    assert!(matches!(limited, Err(TimeoutError::Elapsed)));
    let took = TokioClock.now() - before;
    assert!((2 * HOUR..2 * HOUR + Duration::from_millis(10)).contains(&took), "{took:?}");
    drop(timer);
    driver.await.expect("the driver does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleeps_of_tasks_on_two_threads_end_by_a_driver() {
    let driven = Timer::builder().build_with_driver(tokio::time::sleep);
    let (timer, driver) = driven.expect("the settings are valid");
    let driver = tokio::spawn(driver);
    let tasks: Vec<_> = (0..500)
        .map(|index| {
            let timer = timer.clone();
            tokio::spawn(async move {
                for round in 0..5 {
                    let delay = Duration::from_micros((index * 7_919 + round * 1_237) % 5_000);
                    let start = Instant::now();
                    timer.sleep(delay).await.expect("the timer runs");
                    assert!(start.elapsed() >= delay);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    drop(timer);
    driver.await.expect("the driver does not panic");
}

#[test]
fn an_hour_passes_on_smol() {
    let executor = async_executor::Executor::new();
    let hour = an_hour(|future| executor.spawn(future), async |task| task.await);
    async_io::block_on(executor.run(hour));
}

/// Runs all tasks until `task` ends, as the page on tokio shows.
fn run<T>(
    executor: &async_executor::LocalExecutor<'_>,
    clock: &ManualClock,
    task: async_executor::Task<T>,
) -> T {
    while !task.is_finished() {
        if !executor.try_tick() {
            clock.advance_to_next().expect("a task waits for something that never comes");
        }
    }
    futures_executor::block_on(task)
}

#[test]
fn tasks_run_at_their_times_while_the_clock_steps_from_deadline_to_deadline() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let executor = async_executor::LocalExecutor::new();
    let (timer, shown) = (&timer, &clock);
    let tasks: Vec<_> = [HOUR, 2 * HOUR]
        .map(|period| {
            executor.spawn(async move {
                let mut times = Vec::new();
                for _ in 0..3 {
                    timer.sleep(period).await.expect("the timer runs");
                    times.push(shown.elapsed());
                }
                times
            })
        })
        .into();
    let times: Vec<_> = tasks.into_iter().map(|task| run(&executor, &clock, task)).collect();
    assert_eq!(times, [[HOUR, 2 * HOUR, 3 * HOUR], [2 * HOUR, 4 * HOUR, 6 * HOUR]]);
}

#[test]
fn sleeps_end_in_real_time_on_a_runtime_without_a_timer() {
    let timer = Timer::new();
    let sleep = async || {
        let (start, delay) = (Instant::now(), Duration::from_millis(3));
        timer.sleep(delay).await.expect("the timer runs");
        assert!(start.elapsed() >= delay);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it has no driver");
    runtime.block_on(sleep());
    async_io::block_on(sleep());
    futures_executor::block_on(sleep());
}

#[test]
fn a_time_of_jiff_is_a_time_of_the_wall_clock() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let time = jiff::Timestamp::from_second(946_684_801).expect("it is in range");
    timer.schedule_at_time(time, || ()).expect("the timer runs");
    timer.schedule_at_time(time.to_zoned(jiff::tz::TimeZone::UTC), || ()).expect("it runs");
    clock.advance(Duration::from_millis(999));
    assert_eq!(timer.stats().expired, 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(timer.stats().expired, 2);
}
