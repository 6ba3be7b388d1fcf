//! Settings of a timer.

use std::{
    error::Error,
    fmt,
    future::Future,
    num::{NonZeroU32, NonZeroUsize},
    pin::Pin,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use delaywheel::Clock;
use parking_lot::Mutex;

use super::{
    DurableTimer,
    core::{Core, Served},
    delivery::Delivery,
    driver::{DriverSettings, QueueSettings},
    executor::{Handler, run_blocking, start_threads},
    policy::Backoff,
};
use crate::{
    error::BuildError,
    record::{Name, TimeoutId},
    store::Store,
};

/// A future that a spawner runs to its end.
pub type DeliveryFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Settings of a [`DurableTimer`], which has an example.
#[derive(Debug)]
pub struct DurableTimerBuilder {
    store: Box<dyn Store>,
    clock: Option<Arc<dyn Clock>>,
    driver: DriverSettings,
    queues: Vec<Queue>,
    history: Duration,
}

/// A queue that a timer serves: its name, its handler and its limits.
///
/// A timer claims only the timeouts of queues that it serves. Others wait for a timer that serves
/// theirs.
///
/// # Examples
///
/// ```
/// # use std::{num::{NonZeroU32, NonZeroUsize}, time::Duration};
/// use delaywheel_durable::{DurableTimer, SqliteStore, NewTimeout, Priority, Queue};
///
/// let email = Queue::blocking("email", |delivery| {
///     println!("to {}", delivery.id());
///     Ok(())
/// });
/// let timer = DurableTimer::builder(SqliteStore::in_memory())
///     .queue(email.threads(2).rate(NonZeroU32::MIN).key_limit(NonZeroUsize::MIN))
///     .build()?;
/// let mail = NewTimeout::new("welcome/17", timer.now(), b"")?.queue("email")?;
/// timer.schedule_new(mail.key("customer/17")?.priority(Priority::High)).wait()?;
/// timer.pause("email").wait()?;
/// assert!(timer.queues().wait()?[1].is_paused);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Queue {
    settings: QueueSettings,
    is_name: bool,
    handler: Handler,
    is_blocking: bool,
}

impl Queue {
    fn new(name: impl AsRef<str>, handler: Handler, is_blocking: bool) -> Self {
        let name = Name::new(name);
        let is_name = name.is_ok();
        let name = name.unwrap_or_default();
        let settings = QueueSettings { name, ..QueueSettings::default() };
        Self { settings, is_name, handler, is_blocking }
    }

    /// Creates a queue with a blocking handler, like
    /// [`build_blocking`](DurableTimerBuilder::build_blocking). A name that is not valid is an
    /// error of [`build`](DurableTimerBuilder::build).
    pub fn blocking<F>(name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(&Delivery) -> Result<(), Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    {
        Self::new(name, Arc::new(move |delivery| run_blocking(&handler, delivery)), true)
    }

    /// Creates a queue with an asynchronous handler, like
    /// [`build_async`](DurableTimerBuilder::build_async).
    pub fn asynchronous<P, F, R, E>(name: impl AsRef<str>, spawn: P, handler: F) -> Self
    where
        P: Fn(DeliveryFuture) + Send + Sync + 'static,
        F: Fn(Delivery) -> R + Send + Sync + 'static,
        R: Future<Output = (Delivery, Result<(), E>)> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let handler = Arc::new(handler);
        let pass_on = move |delivery: Delivery| {
            let handler = Arc::clone(&handler);
            spawn(Box::pin(async move {
                let Some(delivery) = delivery.start() else { return };
                match handler(delivery).await {
                    (delivery, Ok(())) => delivery.acknowledge(),
                    (delivery, Err(error)) => delivery.fail(&error, &format!("{error:#}")),
                }
            }));
        };
        Self::new(name, Arc::new(pass_on), false)
    }

    /// Creates a queue whose handler passes deliveries on, like
    /// [`build_with`](DurableTimerBuilder::build_with).
    pub fn with<F>(name: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(Delivery) + Send + Sync + 'static,
    {
        let pass_on = move |delivery: Delivery| {
            if let Some(delivery) = delivery.start() {
                handler(delivery);
            }
        };
        Self::new(name, Arc::new(pass_on), false)
    }

    /// Sets the most deliveries of one key under way, of all workers. Default: no limit.
    ///
    /// A handler whose delivery is not [current](crate::Delivery::is_current) any more, such as one
    /// whose timeout was cancelled or replaced, does not count, though it may still run.
    ///
    /// All workers of the queue must have the same limit. If another worker delivers as many of a
    /// key, this one tries again after 100 milliseconds, and then less often for some 2 seconds.
    /// Then it leaves its timeouts of the key to others, for 2 seconds at least. So the oldest
    /// timeout of a busy key may wait for those that the other worker has in memory, and each
    /// worker that waits for a key gives its timeouts back and claims some anew every few seconds.
    ///
    /// A worker delivers the timeouts of a busy key that it has in memory before it claims others
    /// of that key. So one that comes later waits for these, also if its priority is higher.
    #[must_use]
    pub fn key_limit(mut self, limit: NonZeroUsize) -> Self {
        self.settings.key_limit = Some(limit);
        self
    }

    /// Sets how many deliveries of all workers begin in a second. Default: no limit.
    ///
    /// A tenth of this number may begin at once. All workers of the queue must have the same rate.
    #[must_use]
    pub fn rate(mut self, per_second: NonZeroU32) -> Self {
        self.settings.rate = Some(per_second);
        self
    }

    fn checks(&self) -> [(&'static str, bool); 4] {
        let short = Duration::from_millis(1);
        [
            ("queue", self.is_name),
            ("max_deliveries", self.settings.max_deliveries > 0),
            ("threads", self.settings.threads > 0),
            ("handler_limit", self.settings.handler_limit.is_none_or(|limit| limit >= short)),
        ]
    }
}

/// Defines the settings of a queue, also for the builder, which has those of the default queue.
macro_rules! queue_settings {
    ($kind:ident, $($settings:ident).+) => {
        impl $kind {
            /// Sets the most deliveries under way, at least 1. Default: 1024. If blocking handlers
            /// take only a moment, a backlog leaves an eighth of them to timeouts that are due now.
            #[must_use]
            pub fn max_deliveries(mut self, max: usize) -> Self {
                self.$($settings).+.max_deliveries = max;
                self
            }

            /// Sets when failed deliveries are tried again.
            #[must_use]
            pub fn backoff(mut self, backoff: Backoff) -> Self {
                self.$($settings).+.backoff = backoff;
                self
            }

            /// Sets the time after which a delivery that has not ended counts as failed, at least a
            /// millisecond; `None` for never. Default: 15 minutes.
            ///
            /// As long as the handler runs within this time, the timer extends its lease. After
            /// that, the [`StopToken`](crate::StopToken) of the delivery says so. The timer does
            /// not interrupt the handler, and ignores its end. A blocking handler keeps its thread
            /// until then. If as many handlers as there are [`threads`](Self::threads) never
            /// return, all deliveries stop. A task that has exceeded the limit and still runs does
            /// not count towards [`max_deliveries`](Self::max_deliveries); at most as many do not.
            ///
            /// A delivery that waits this long for a thread or a task goes back to the store. It is
            /// no attempt.
            #[must_use]
            pub fn handler_limit(mut self, limit: Option<Duration>) -> Self {
                self.$($settings).+.handler_limit = limit;
                self
            }

            /// Sets the number of threads for a blocking handler, at least 1. Default: 4.
            #[must_use]
            pub fn threads(mut self, threads: usize) -> Self {
                self.$($settings).+.threads = threads;
                self
            }
        }
    };
}

queue_settings!(Queue, settings);
queue_settings!(DurableTimerBuilder, driver.queue);

opaque!(Queue, settings: settings);

impl DurableTimerBuilder {
    pub(super) fn new(store: Box<dyn Store>) -> Self {
        let driver = DriverSettings { recheck: store.recheck(), ..DriverSettings::default() };
        Self { store, clock: None, driver, queues: Vec::new(), history: Duration::ZERO }
    }

    /// Sets the clock, of which the timer reads [`system_time`](Clock::system_time). A
    /// [`ManualClock`](crate::ManualClock) runs the timer on the thread that moves it. Its steps
    /// forward count as time of the handlers that run. A clock that steps when that of the system
    /// does not must report it: see [`watch`](Clock::watch). Default: that of the store.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
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

    /// Sets how long this worker's claims stay valid after it stops, at least 3 milliseconds.
    /// Default: 30 seconds.
    ///
    /// A worker renews its lease after a third of this time. When a worker dies, others deliver its
    /// timeouts after the whole time, or up to a tenth more if they held none of their own.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.driver.lease = lease;
        self
    }

    /// Sets the name of this worker on a store of several processes: 1 to 255 bytes without U+0000.
    /// Default: none.
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
    /// notification was lost. At least a millisecond. Default: [`Store::recheck`], which is a
    /// minute for PostgreSQL.
    ///
    /// With `None` or more than half an hour, a timer on a store of several processes looks each
    /// half hour: there is no notification of timeouts that are due later than in an hour.
    #[must_use]
    pub fn recheck(mut self, interval: Option<Duration>) -> Self {
        self.driver.recheck = interval;
        self
    }

    /// Drops timeouts that are overdue by more than `age` when the timer comes to them, and counts
    /// them as skipped. A recurring timeout continues with its next occurrence, and
    /// [`Missed`](crate::Missed) decides about its other ones. Default: delivers all, oldest first.
    #[must_use]
    pub fn skip_older_than(mut self, age: Duration) -> Self {
        self.driver.skip_older_than = Some(age);
        self
    }

    /// Sets how many of the timeouts that were due before its start the timer delivers in a second.
    /// Timeouts that become overdue later, as during a pause or an outage, have no such limit.
    /// Default: no limit.
    #[must_use]
    pub fn catch_up_rate(mut self, per_second: NonZeroU32) -> Self {
        self.driver.catch_up_rate = Some(per_second);
        self
    }

    /// Starts a timer with a blocking handler, which runs on threads of the timer.
    ///
    /// `Ok` acknowledges the delivery. An error or a panic counts as a failed attempt; the store
    /// keeps the text of the error and of its causes, up to 1,000 characters.
    pub fn build_blocking<F>(self, handler: F) -> Result<DurableTimer, BuildError>
    where
        F: Fn(&Delivery) -> Result<(), Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    {
        self.build_queue(Queue::blocking("", handler))
    }

    /// Starts a timer with an asynchronous handler. `spawn` runs each of its futures, on any
    /// runtime.
    ///
    /// The timer calls `spawn` on a thread of its own, outside of the runtime, so give it a handle
    /// of the runtime. `handler` runs in the task. At most
    /// [`max_deliveries`](Self::max_deliveries) tasks run at once, and as many that have exceeded
    /// their [`handler_limit`](Self::handler_limit).
    ///
    /// `Ok` acknowledges the delivery. An error counts as a failed attempt, with its text as `{:#}`
    /// writes it, and so does a future that panics or is dropped after its first poll. A task that
    /// never ran is no attempt: if `spawn` panics or drops it, the timer emits a warning and tries
    /// again within a second.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use delaywheel_durable::{DurableTimer, SqliteStore};
    ///
    /// # async fn remind(payload: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Handle::current();
    /// let timer = DurableTimer::builder(SqliteStore::in_memory()).build_async(
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
    pub fn build_async<P, F, R, E>(self, spawn: P, handler: F) -> Result<DurableTimer, BuildError>
    where
        P: Fn(DeliveryFuture) + Send + Sync + 'static,
        F: Fn(Delivery) -> R + Send + Sync + 'static,
        R: Future<Output = (Delivery, Result<(), E>)> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        self.build_queue(Queue::asynchronous("", spawn, handler))
    }

    /// Starts a timer that passes each delivery on to `handler`, on the thread of the driver.
    ///
    /// It is for handlers that pass deliveries to threads or tasks of their own. The handler must
    /// not block. If it panics and drops the delivery, that counts as a failed attempt.
    pub fn build_with<F>(self, handler: F) -> Result<DurableTimer, BuildError>
    where
        F: Fn(Delivery) + Send + Sync + 'static,
    {
        self.build_queue(Queue::with("", handler))
    }

    /// Sets for how long the store keeps attempts that have ended, for
    /// [`DurableTimer::history`]. Default: zero, which keeps none.
    ///
    /// All timers of a store should have the same. An attempt costs one more row. Errors have at
    /// most 1,000 characters. Commits that add attempts remove old ones, and so do workers of
    /// PostgreSQL that renew a lease.
    #[must_use]
    pub fn history(mut self, keep: Duration) -> Self {
        self.history = keep;
        self
    }

    /// Adds a queue for the timer to serve. The settings `threads`, `max_deliveries`, `backoff` and
    /// `handler_limit` of this builder hold for the default queue only, which
    /// [`build_blocking`](Self::build_blocking), [`build_async`](Self::build_async) and
    /// [`build_with`](Self::build_with) add. The others hold for each queue.
    #[must_use]
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Starts a timer that serves the queues which were added. Without any, it delivers nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a setting is out of range, two queues have one name, or the threads cannot
    /// be started.
    pub fn build(mut self) -> Result<DurableTimer, BuildError> {
        self.check()?;
        let clock = self.clock.take().unwrap_or_else(|| self.store.clock());
        let is_virtual = clock.adopt(Weak::<Core>::new());
        self.driver.is_virtual = is_virtual;
        self.driver.is_shared = self.store.recheck().is_some();
        let (mut queues, mut handles) = (Vec::new(), Vec::new());
        for (number, queue) in self.queues.into_iter().enumerate() {
            let Queue { settings: queue, mut handler, is_blocking, .. } = queue;
            let mut settings = DriverSettings { queue, number, ..self.driver.clone() };
            if is_blocking && !is_virtual {
                settings.threads = Some(settings.queue.threads);
                let (pass_on, mut more) = start_threads(settings.queue.threads, &handler)?;
                handles.append(&mut more);
                handler = pass_on;
            }
            queues.push(Served { settings, handler: Mutex::new(Some(handler)) });
        }
        self.store.keep_history(self.history);
        let core = Core::new(self.store, clock, is_virtual, queues);
        core.store.listen(Arc::downgrade(&core.told));
        // From here on, the timer ends the threads when it is dropped.
        let timer = DurableTimer::new(Arc::clone(&core));
        core.threads.lock().append(&mut handles);
        if is_virtual {
            let weak: Weak<Core> = Arc::downgrade(&core);
            core.clock.adopt(weak);
            return Ok(timer);
        }
        // The driver's comes last: nothing would end its worker if another one could not start.
        let threads: [(_, fn(&Core)); 4] = [
            ("delaywheel-more", |core| core.run_commits(1)),
            ("delaywheel-commit", |core| core.run_commits(0)),
            ("delaywheel-locked", Core::run_locked),
            ("delaywheel-driver", Core::run_driver),
        ];
        for (name, run) in threads.into_iter().skip(usize::from(core.store.groups() < 2)) {
            let core = Arc::clone(&core);
            let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || run(&core));
            let thread = spawned.inspect_err(|_| timer.core.commits.close())?;
            timer.core.threads.lock().push(thread);
        }
        Ok(timer)
    }

    fn build_queue(mut self, mut queue: Queue) -> Result<DurableTimer, BuildError> {
        queue.settings = self.driver.queue.clone();
        self.queues.push(queue);
        self.build()
    }

    fn check(&self) -> Result<(), BuildError> {
        let short = Duration::from_millis(1);
        let driver = &self.driver;
        let capacity = (1..=1 << 24).contains(&driver.window_capacity) && driver.window_bytes > 0;
        let mut names: Vec<_> = self.queues.iter().map(|queue| &queue.settings.name).collect();
        names.sort_unstable();
        names.dedup();
        let settings = [
            ("window", driver.window >= short),
            ("window_capacity", capacity),
            ("lease", driver.lease >= 3 * short),
            ("worker", driver.worker.as_ref().is_none_or(|name| TimeoutId::new(name).is_ok())),
            ("recheck", driver.recheck.is_none_or(|time| time >= short)),
            ("queue", names.len() == self.queues.len()),
        ];
        let mut all = settings.into_iter().chain(self.queues.iter().flat_map(Queue::checks));
        let wrong = all.find(|(_, is_right)| !is_right);
        wrong.map_or(Ok(()), |(name, _)| Err(BuildError::Setting(name)))
    }
}
