//! The reaper: the thread that expires the due timeouts of its timers and sleeps between them.
//!
//! A timer that shares no reaper has a reaper of its own, which runs the same loop.
//!
//! [`wakeup`]: super::shards::wakeup
//!
//! # Protocol
//!
//! In each round, the reaper
//!
//! 1. takes in the timers that have joined, and ends if it then serves none,
//! 2. gives each timer a turn: one bounded hold of each of its shards,
//! 3. begins the next round if a timer has due timeouts left,
//! 4. computes the time `w` until the least published expiration of all timers,
//! 5. for each timer, announces a sleep until the tick `x`, and loads the published expirations of
//!    that timer again, as [`wakeup`] describes. `x` is the earlier of two ticks: the least of
//!    these expirations, and the time `w` from now, rounded up to a tick,
//! 6. reads the clock of each timer after its announcement, and parks for the least time until an
//!    `x`, or for a little less if the ticks are short.
//!
//! A timer joins under the lock of [`Joining`]. In the same hold, it starts the thread unless one
//! runs, and registers the id of the thread. So if a callback on the thread finishes the timer
//! before step 1, the finish does not wait for the thread. After the hold, the timer unparks the
//! reaper, unless it has started the thread. The reaper ends in the hold that finds no timer.
//!
//! # Why no wake-up is lost
//!
//! *Invariant*: while the reaper sleeps, it has announced an `x` to each of its timers. This `x` is
//! not later than any expiration that the timer had published. The sleep ends when the clock of the
//! timer shows `x`, or earlier. So the argument of [`wakeup`] holds for each timer alone. All
//! timers unpark the same parker, which keeps a wake-up that comes before the reaper parks.
//!
//! A timer that joins before step 1 takes part in the round. A timer that joins later has unparked
//! the reaper, so the reaper begins another round. If the thread of the reaper has ended, the timer
//! sees this under the lock, and starts a new one.
//!
//! # Which inserts wake the reaper
//!
//! An insert wakes the reaper if it publishes an expiration before `x`. The reaper wakes at `w`
//! anyway, and `x` is at most `w`, rounded up to a tick of the timer. So an insert wakes the reaper
//! only if its timeout is the earliest of all timers.

use std::{
    boxed::Box,
    fmt, format, io,
    panic::{RefUnwindSafe, UnwindSafe},
    string::String,
    sync::Arc,
    time::Duration,
    vec::Vec,
};

use crate::{
    panics::catch,
    sync::{Mutex, Parker, ThreadId, spawn},
};

/// One thread that expires the timeouts of many timers.
///
/// By default, each timer has a reaper thread of its own. A program with dozens of timers, queues
/// or purgatories passes one `Reaper` to the [builder](crate::TimerBuilder::reaper) of each.
///
/// Clones are the same reaper. The first timeout of any of its timers starts the thread. When the
/// last of these timers has ended, the thread ends; a later timer starts it again. Timers that run
/// on a [`ManualClock`](crate::ManualClock) need no thread, and do not use it.
///
/// - *Independent timers.* Every timer keeps its own shards, clock, limits and executor threads. A
///   shutdown or a finish ends that timer alone. If the clock of a timer panics, only that timer
///   ends, as [`is_reaper_dead`](crate::Timer::is_reaper_dead) reports.
/// - *Turns.* A timer with many due timeouts expires a bounded number of them. Then the next timer
///   has its turn.
/// - *Callbacks that block.* The callbacks of an [inline](crate::TimerBuilder::inline) timer run on
///   the thread, and so does [`Executor::execute`](crate::Executor::execute). While they block, no
///   timeout of any of the timers expires. Run such callbacks on executor threads or on a pool.
/// - *Finish.* On the reaper's thread, the finish of any of its timers acts as a shutdown: it does
///   not wait.
/// - *Fork.* A forked child process does not have the thread. Make reapers and timers after the
///   fork.
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::{Completion, DelayedOperation, Purgatory, Reaper, Timer};
///
/// struct Fetch(mpsc::Sender<Completion>);
///
/// impl DelayedOperation<u32> for Fetch {
///     fn complete(self, completion: Completion) {
///         self.0.send(completion).unwrap();
///     }
/// }
///
/// let reaper = Reaper::new("broker");
/// let settings = || Timer::builder().reaper(&reaper).inline();
/// let timer = settings().build()?;
/// let fetches = Purgatory::builder().timer(settings()).build()?;
/// let produces = Purgatory::builder().timer(settings()).build()?;
///
/// let (ended, ends) = mpsc::channel();
/// let delay = Duration::from_millis(1);
/// fetches.watch(Fetch(ended.clone()), [1], delay)?;
/// produces.watch(Fetch(ended), [1], delay)?;
/// assert_eq!(ends.iter().collect::<Vec<_>>(), [Completion::Expired, Completion::Expired]);
/// # drop(timer);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Complexity
///
/// Each wake-up reads the clock of each timer, and looks at each of its shards. With dozens of
/// timers, [`TimerBuilder::shards`](crate::TimerBuilder::shards) can lower the number of shards.
#[derive(Clone)]
pub struct Reaper(Arc<Service>);

/// The part of a reaper that its thread shares with its timers.
struct Service {
    /// Prefix of the name of the thread.
    name: String,
    /// Parks the thread.
    parker: Parker,
    joining: Mutex<Joining>,
}

/// A timer that a reaper serves.
pub(crate) trait Client: Send {
    /// Registers the thread that serves the timer.
    fn begin(&mut self, thread: ThreadId);

    /// Expires due timeouts, in one hold of each shard.
    fn turn(&mut self) -> Turn;

    /// Returns the time until the least published expiration; [`Duration::MAX`] if there is none.
    fn until_next(&self) -> Duration;

    /// Announces that the reaper sleeps until the least published expiration, and for at most
    /// `within`. Returns the time to sleep; `None` if the reaper must not sleep.
    fn fall_asleep(&mut self, within: Duration) -> Option<Duration>;

    /// Announces that the reaper is awake. `has_slept` tells whether it has slept.
    fn wake_up(&mut self, has_slept: bool);

    /// Ends the timer after a panic of its clock.
    fn end_after_panic(&mut self);
}

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// No due timeout is left.
    Drained,
    /// Due timeouts are left for the next turn.
    Again,
    /// The timer has ended.
    Ended,
}

pub(super) type Clients = Vec<Box<dyn Client>>;

struct Joining {
    /// Timers that have joined, and that the thread has not taken in yet.
    clients: Clients,
    /// The thread of the reaper, from its start until it decides to end.
    thread: Option<ThreadId>,
}

impl Reaper {
    /// Makes a reaper, which starts its thread with the first timeout. `name` is the prefix of the
    /// name of the thread; NUL characters are left out.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(Arc::new(Service {
            name: name.into().replace('\0', ""),
            parker: Parker::new(),
            joining: Mutex::new(Joining { clients: Vec::new(), thread: None }),
        }))
    }

    /// Returns the parker of the thread.
    pub(super) fn parker(&self) -> &Parker {
        &self.0.parker
    }

    /// Serves another timer. Starts the thread unless it runs. If the start fails, the reaper does
    /// not serve the timer.
    pub(super) fn serve(&self, client: Box<dyn Client>) -> io::Result<()> {
        self.join(client, || {
            let reaper = self.clone();
            let run = move || {
                // By default, Linux may wake a thread 50 us late, to wake several threads at once.
                #[cfg(all(target_os = "linux", not(miri)))]
                let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1));
                reaper.run();
            };
            spawn(format!("{}-reaper", self.0.name), Box::new(run))
        })
    }

    /// Serves another timer. Calls `start` to start the thread unless it runs.
    pub(super) fn join(
        &self,
        mut client: Box<dyn Client>,
        start: impl FnOnce() -> io::Result<ThreadId>,
    ) -> io::Result<()> {
        let mut joining = self.0.joining.lock();
        let running = joining.thread;
        let thread = running.map_or_else(start, Ok)?;
        client.begin(thread);
        joining.clients.push(client);
        joining.thread = Some(thread);
        drop(joining);
        if running.is_some() {
            self.0.parker.unpark();
        }
        Ok(())
    }

    /// The loop of the thread, which ends with the last timer.
    pub(super) fn run(&self) {
        let mut clients = Vec::new();
        while self.take_in(&mut clients) {
            if round(&mut clients) {
                sleep(&self.0.parker, &mut clients);
            }
        }
    }

    /// Takes in the timers that have joined. Returns `false` if the thread has to end.
    fn take_in(&self, clients: &mut Clients) -> bool {
        let mut joining = self.0.joining.lock();
        clients.append(&mut joining.clients);
        if clients.is_empty() {
            joining.thread = None;
        }
        !clients.is_empty()
    }
}

/// Gives each timer a turn, and removes those that have ended. Returns whether no due timeout is
/// left.
pub(super) fn round(clients: &mut Clients) -> bool {
    let mut is_drained = true;
    each(clients, &mut |client| {
        let turn = client.turn();
        is_drained &= turn != Turn::Again;
        turn != Turn::Ended
    });
    is_drained
}

/// Sleeps until the next expiration of all timers, or until another thread wakes the reaper.
pub(super) fn sleep(parker: &Parker, clients: &mut Clients) {
    // Panics of clocks may have ended all timers.
    let pause = fall_asleep(clients).filter(|_| !clients.is_empty());
    pause.inspect(|pause| parker.park_timeout(*pause));
    wake_up(clients, pause.is_some());
}

/// Announces to each timer that the reaper is awake.
pub(super) fn wake_up(clients: &mut Clients, has_slept: bool) {
    each(clients, &mut |client| {
        client.wake_up(has_slept);
        true
    });
}

/// Announces a sleep to each timer. Returns the time to sleep; `None` if a timer has work.
pub(super) fn fall_asleep(clients: &mut Clients) -> Option<Duration> {
    let mut within = Duration::MAX;
    each(clients, &mut |client| {
        within = within.min(client.until_next());
        true
    });
    let mut pause = (!within.is_zero()).then_some(Duration::MAX);
    each(clients, &mut |client| {
        pause = pause.and_then(|pause| Some(pause.min(client.fall_asleep(within)?)));
        true
    });
    pause
}

/// Runs a step of each timer, and removes those for which it returns `false` or panics.
///
/// Only the user's clock can panic. The reaper continues to serve the other timers.
fn each(clients: &mut Clients, step: &mut dyn FnMut(&mut dyn Client) -> bool) {
    let mut index = 0;
    while let Some(client) = clients.get_mut(index) {
        let stays = catch(|| step(&mut **client));
        if matches!(stays, Ok(true)) {
            index += 1;
            continue;
        }
        let mut client = clients.swap_remove(index);
        if stays.is_err() {
            drop(catch(|| client.end_after_panic()));
        }
        // The drop of a client may drop the user's handler.
        drop(catch(|| drop(client)));
    }
}

// User code never runs under a lock of the reaper, so a panic leaves no inconsistent state.
impl UnwindSafe for Reaper {}
impl RefUnwindSafe for Reaper {}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("name", &self.0.name).finish_non_exhaustive()
    }
}
