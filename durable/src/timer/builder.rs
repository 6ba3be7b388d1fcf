//! Settings of a timer.

use std::{
    error::Error,
    fmt,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use super::{
    DurableTimer,
    alarm::Alarm,
    core::Core,
    delivery::Delivery,
    driver::DriverSettings,
    executor::{Handler, Queue, run_blocking},
    policy::{Backoff, CatchUp},
};
use crate::{
    error::BuildError,
    memory::MemoryStore,
    store::Store,
    time::{SystemWallClock, WallClock},
};

/// A future that a spawner runs to its end.
pub type DeliveryFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Settings of a [`DurableTimer`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel_durable::{Backoff, DurableTimer, MemoryStore};
///
/// let timer = DurableTimer::builder(MemoryStore::new())
///     .backoff(Backoff::new(Duration::from_secs(5)).attempts(3))
///     .threads(2)
///     .build_blocking(|delivery| {
///         println!("{}: {:?}", delivery.id(), delivery.payload());
///         Ok(())
///     })?;
/// timer.schedule("invoice/17", Duration::from_secs(86_400), b"remind").wait()?;
/// assert_eq!(timer.count()?.live, 1);
///
/// let timer = DurableTimer::builder(MemoryStore::new()).recheck(Some(Duration::ZERO));
/// let refused = timer.build_with(drop).expect_err("out of range");
/// assert_eq!(refused.to_string(), "setting `recheck` is out of range");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct DurableTimerBuilder<S: Store> {
    store: S,
    clock: Option<Arc<dyn WallClock>>,
    threads: usize,
    driver: DriverSettings,
}

impl<S: Store> DurableTimerBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        let driver = DriverSettings { recheck: store.recheck(), ..DriverSettings::default() };
        Self { store, clock: None, threads: 4, driver }
    }

    /// Sets the wall clock. Default: that of the store if it has one, or the system's.
    #[must_use]
    pub fn clock(mut self, clock: impl WallClock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets how long before its due time the timer takes a timeout into memory: at most this time,
    /// and at least half of it. At least a millisecond. Default: a minute.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.driver.window = window;
        self
    }

    /// Sets the limits of the timeouts in memory whose delivery has not begun: their number, from 1
    /// to 2^24, and the bytes of their payloads, at least 1. Default: 16384, and 64 MiB.
    #[must_use]
    pub fn window_capacity(mut self, timeouts: usize, bytes: usize) -> Self {
        self.driver.window_capacity = timeouts;
        self.driver.window_bytes = bytes;
        self
    }

    /// Sets the most deliveries under way, at least 1. Default: 1024.
    #[must_use]
    pub fn max_deliveries(mut self, max: usize) -> Self {
        self.driver.max_deliveries = max;
        self
    }

    /// Sets how long this worker's claims stay valid after it stops, at least 3 milliseconds.
    /// Default: 30 seconds.
    ///
    /// A worker renews its lease after a third of this time. When a worker dies, others deliver its
    /// timeouts after the whole time.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.driver.lease = lease;
        self
    }

    /// Sets the name of this worker on a store of several processes. Default: none.
    ///
    /// A worker takes over the timeouts of an earlier one of the same name at once, such as those
    /// of a process that was killed and started again. Without a name it waits until the lease of
    /// that one has ended. No two workers that run at the same time may have the same name: each
    /// would take the timeouts of the other.
    #[must_use]
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.driver.worker = Some(name.into());
        self
    }

    /// Sets how often the timer looks for timeouts that other processes have added, in case a
    /// notification was lost; `None` for never. At least a millisecond. Default:
    /// [`Store::recheck`], which is a minute for PostgreSQL.
    #[must_use]
    pub fn recheck(mut self, interval: Option<Duration>) -> Self {
        self.driver.recheck = interval;
        self
    }

    /// Sets when failed deliveries are tried again.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.driver.backoff = backoff;
        self
    }

    /// Sets the time after which a delivery that has not ended counts as failed, at least a
    /// millisecond; `None` for never. Default: 15 minutes.
    ///
    /// The timer does not interrupt the handler, and ignores its end, if it comes. A blocking
    /// handler keeps its thread until then. If as many handlers as there are
    /// [`threads`](Self::threads) never return, all deliveries stop.
    #[must_use]
    pub fn handler_limit(mut self, limit: Option<Duration>) -> Self {
        self.driver.handler_limit = limit;
        self
    }

    /// Sets the policy for overdue timeouts. Default: [`CatchUp::All`].
    #[must_use]
    pub fn catch_up(mut self, policy: CatchUp) -> Self {
        self.driver.catch_up = policy;
        self
    }

    /// Sets how many overdue timeouts the timer delivers in a second: those that were due before
    /// its start, and those of a backlog. Default: no limit.
    #[must_use]
    pub fn catch_up_rate(mut self, per_second: NonZeroU32) -> Self {
        self.driver.catch_up_rate = Some(per_second);
        self
    }

    /// Sets the number of threads for a blocking handler, at least 1. Default: 4.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Starts a timer with a blocking handler, which runs on threads of the timer.
    ///
    /// `Ok` acknowledges the delivery. An error or a panic counts as a failed attempt.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a setting is out of range, or the threads cannot be started.
    pub fn build_blocking<F>(self, handler: F) -> Result<DurableTimer<S>, BuildError>
    where
        F: Fn(&Delivery) -> Result<(), Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    {
        self.check()?;
        let run = move |delivery| run_blocking(&handler, delivery);
        let clock = self.choose_clock();
        if is_virtual(&clock) {
            return self.start(clock, None, Arc::new(run));
        }
        let mut this = self;
        this.driver.threads = Some(this.threads);
        let (queue, mut threads) = Queue::start(this.threads, run)?;
        let pass_on = Arc::clone(&queue);
        let pass_on: Handler = Arc::new(move |delivery| pass_on.push(delivery));
        let timer = this.start(clock, Some(queue), pass_on)?;
        timer.core().threads.lock().append(&mut threads);
        Ok(timer)
    }

    /// Starts a timer with an asynchronous handler. `spawn` runs each of its futures, on any
    /// runtime.
    ///
    /// The timer calls `spawn` on a thread of its own, outside of the runtime, so give it a handle
    /// of the runtime. `handler` runs in the task. At most
    /// [`max_deliveries`](Self::max_deliveries) tasks run at once.
    ///
    /// `Ok` acknowledges the delivery. An error counts as a failed attempt, and so does a future
    /// that panics or is dropped after its first poll. A task that never ran is no attempt: if
    /// `spawn` panics or drops it, the timer emits a warning and tries again within a second.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use delaywheel_durable::{DurableTimer, MemoryStore};
    ///
    /// # async fn remind(payload: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Handle::current();
    /// let timer = DurableTimer::builder(MemoryStore::new()).build_async(
    ///     move |task| drop(runtime.spawn(task)),
    ///     |delivery| async move {
    ///         let result = remind(delivery.payload()).await;
    ///         (delivery, result)
    ///     },
    /// )?;
    /// timer.schedule("trial/17", Duration::ZERO, b"your trial ends").await?;
    /// # while timer.stats().acknowledged == 0 {
    /// #     tokio::task::yield_now().await;
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a setting is out of range, or the threads cannot be started.
    pub fn build_async<P, F, R, E>(
        self,
        spawn: P,
        handler: F,
    ) -> Result<DurableTimer<S>, BuildError>
    where
        P: Fn(DeliveryFuture) + Send + Sync + 'static,
        F: Fn(Delivery) -> R + Send + Sync + 'static,
        R: Future<Output = (Delivery, Result<(), E>)> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        self.check()?;
        let (clock, handler) = (self.choose_clock(), Arc::new(handler));
        let pass_on: Handler = Arc::new(move |delivery: Delivery| {
            let handler = Arc::clone(&handler);
            spawn(Box::pin(async move {
                let Some(delivery) = delivery.start() else { return };
                match handler(delivery).await {
                    (delivery, Ok(())) => delivery.acknowledge(),
                    (delivery, Err(error)) => delivery.retry(error),
                }
            }));
        });
        self.start(clock, None, pass_on)
    }

    /// Starts a timer that passes each delivery on to `handler`, on the thread of the driver.
    ///
    /// It is for handlers that pass deliveries to threads or tasks of their own. The handler must
    /// not block. If it panics and drops the delivery, that counts as a failed attempt.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a setting is out of range, or the threads cannot be started.
    pub fn build_with<F>(self, handler: F) -> Result<DurableTimer<S>, BuildError>
    where
        F: Fn(Delivery) + Send + Sync + 'static,
    {
        self.check()?;
        let clock = self.choose_clock();
        let pass_on = move |delivery: Delivery| {
            if let Some(delivery) = delivery.start() {
                handler(delivery);
            }
        };
        self.start(clock, None, Arc::new(pass_on))
    }

    fn check(&self) -> Result<(), BuildError> {
        let short = Duration::from_millis(1);
        let is_long = |time: Option<Duration>| time.is_none_or(|time| time >= short);
        let driver = &self.driver;
        let capacity = (1..=1 << 24).contains(&driver.window_capacity) && driver.window_bytes > 0;
        let settings = [
            ("window", driver.window >= short),
            ("window_capacity", capacity),
            ("max_deliveries", driver.max_deliveries > 0),
            ("lease", driver.lease >= 3 * short),
            ("recheck", is_long(driver.recheck)),
            ("handler_limit", is_long(driver.handler_limit)),
            ("threads", self.threads > 0),
        ];
        let wrong = settings.into_iter().find(|(_, is_right)| !is_right);
        wrong.map_or(Ok(()), |(name, _)| Err(BuildError::Setting(name)))
    }

    fn choose_clock(&self) -> Arc<dyn WallClock> {
        let given = self.clock.clone();
        given.or_else(|| self.store.clock()).unwrap_or_else(|| Arc::new(SystemWallClock))
    }

    fn start(
        mut self,
        clock: Arc<dyn WallClock>,
        executor: Option<Arc<Queue>>,
        handler: Handler,
    ) -> Result<DurableTimer<S>, BuildError> {
        let is_virtual = is_virtual(&clock);
        let alarm = (!is_virtual).then(Alarm::new);
        self.driver.is_virtual = is_virtual;
        self.driver.is_shared = self.store.recheck().is_some();
        let core = Core::new(self.store, clock, self.driver, alarm, executor, handler);
        let weak = Arc::downgrade(&core);
        core.store.listen(Arc::new(move |due| {
            if let Some(core) = weak.upgrade() {
                core.notice(due);
            }
        }));
        // From here on, the timer ends the threads when it is dropped.
        let timer = DurableTimer::new(Arc::clone(&core));
        if is_virtual {
            let weak: Weak<Core<S>> = Arc::downgrade(&core);
            core.clock.adopt(weak);
            return Ok(timer);
        }
        for (name, run) in [
            ("delaywheel-commit", Core::run_commits as fn(&Core<S>)),
            ("delaywheel-locked", Core::run_locked),
            ("delaywheel-driver", Core::run_driver),
        ] {
            let core = Arc::clone(&core);
            let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || run(&core));
            let thread = spawned.inspect_err(|_| timer.core().commits.close())?;
            timer.core().threads.lock().push(thread);
        }
        Ok(timer)
    }
}

/// Returns whether the clock runs its timers itself.
fn is_virtual(clock: &Arc<dyn WallClock>) -> bool {
    let none: Weak<Core<MemoryStore>> = Weak::new();
    clock.adopt(none)
}

impl<S: Store> fmt::Debug for DurableTimerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableTimerBuilder")
            .field("store", &self.store)
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}
