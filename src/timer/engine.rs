//! A timer as its threads see it: the core, what runs it, and where callbacks go.

use std::{
    format, io,
    string::String,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    anchor::Anchors,
    backlog::Backlog,
    core::Core,
    crew::{Crew, Member},
    executor::{Delivery, Handler},
    gate::steps_per_hold,
    stats::TimerStats,
    ticks::after,
};
use crate::{
    Expired, Histogram, Tick,
    clock::Driven,
    sync::{AtomicBool, Mutex, Ordering, Parker},
};

/// Everything of a timer but its users' handles.
pub(super) struct Engine<T> {
    pub(super) core: Arc<Core<T>>,
    pub(super) anchors: Anchors<T>,
    handler: Arc<Handler<T>>,
    delivery: Delivery<T>,
    /// What the threads are started with; `None` once they have been, or if the clock runs the
    /// timer.
    starter: Mutex<Option<Starter>>,
    is_started: AtomicBool,
    is_stopped: AtomicBool,
    /// Whether the clock runs the timer.
    is_driven: AtomicBool,
    /// Whether the reaper has ended by a panic, which only the user's clock can cause.
    is_reaper_dead: AtomicBool,
    crew: Arc<Crew>,
    reaped: Mutex<Reaped>,
}

/// What the reaper did between two sleeps.
struct Turn {
    /// The time at its end.
    now: Tick,
    /// Whether a timeout expired.
    has_expired: bool,
}

/// What is needed to start the threads.
pub(super) struct Starter {
    /// With it the reaper sleeps.
    pub(super) parker: Parker,
    /// Number of executor threads that are still to be started.
    pub(super) executors: usize,
    /// First part of the threads' names.
    pub(super) name: String,
}

/// What the reaper counts.
struct Reaped {
    wakeups: u64,
    lateness: Histogram,
}

impl<T: Send + 'static> Engine<T> {
    pub(super) fn new(
        core: Core<T>,
        handler: Handler<T>,
        delivery: Delivery<T>,
        starter: Starter,
    ) -> Arc<Self> {
        let core = Arc::new(core);
        let engine = Arc::new(Self {
            anchors: Anchors::new(&core),
            core,
            handler: Arc::new(handler),
            delivery,
            starter: Mutex::new(Some(starter)),
            is_started: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            is_driven: AtomicBool::new(false),
            is_reaper_dead: AtomicBool::new(false),
            crew: Crew::new(),
            reaped: Mutex::new(Reaped { wakeups: 0, lateness: Histogram::new() }),
        });
        engine.offer();
        engine
    }

    /// Offers itself to the clock, which may be moving already. If that takes it on, there will be
    /// no threads.
    fn offer(self: &Arc<Self>) {
        let driven: Weak<dyn Driven> = Arc::<Self>::downgrade(self);
        if self.core.ticks().clock().adopt(driven) {
            self.is_driven.store(true, Ordering::Release);
            drop(self.take_starter());
        }
    }

    /// Takes out what the threads are started with, as they have been.
    pub(super) fn take_starter(&self) -> Option<Starter> {
        let starter = self.starter.lock().take();
        self.is_started.store(true, Ordering::Release);
        starter
    }

    /// Starts the threads, unless they have been.
    #[inline]
    pub(super) fn ensure_started(self: &Arc<Self>) -> io::Result<()> {
        if self.is_started.load(Ordering::Acquire) { Ok(()) } else { self.start() }
    }

    #[cold]
    fn start(self: &Arc<Self>) -> io::Result<()> {
        if self.start_threads()? {
            self.handler.events().started();
        }
        Ok(())
    }

    /// Returns whether they had not been started, nor the timer been shut down.
    fn start_threads(self: &Arc<Self>) -> io::Result<bool> {
        let mut starter = self.starter.lock();
        let Some(parts) = &mut *starter else { return Ok(false) };
        if self.is_stopped.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.start_executors(parts)?;
        let builder = thread::Builder::new().name(format!("{}-reaper", parts.name));
        let (engine, member) = (Arc::clone(self), self.enlist_reaper());
        // The parker is handed over once the thread exists; if it does not, a later call tries
        // again.
        let (sender, receiver) = crossbeam::channel::bounded(1);
        builder.spawn(move || {
            if let Ok(Starter { parker, .. }) = receiver.recv() {
                engine.reap(&parker, member.as_ref());
            }
        })?;
        if let Some(starter) = starter.take() {
            sender.send(starter).unwrap_or_else(|_| unreachable!("the reaper waits for this"));
        }
        self.is_started.store(true, Ordering::Release);
        Ok(true)
    }

    /// Starts the executors that are still to be started. One that was stays, if a later one cannot
    /// be.
    fn start_executors(&self, Starter { executors, name, .. }: &mut Starter) -> io::Result<()> {
        let Delivery::Threads(passage) = &self.delivery else { return Ok(()) };
        while let Some(index) = executors.checked_sub(1) {
            let (backlog, handler) = (Arc::clone(passage.backlog()), Arc::clone(&self.handler));
            let member = self.crew.enlist();
            let run = move || {
                member.begin();
                while let Some(expired) = backlog.take() {
                    handler.call(expired);
                }
            };
            thread::Builder::new().name(format!("{name}-{index}")).spawn(run)?;
            *executors = index;
        }
        Ok(())
    }

    /// Makes the reaper a member of the crew, if callbacks run on it; a pool's may, too.
    pub(super) fn enlist_reaper(&self) -> Option<Member> {
        let is_member = !matches!(self.delivery, Delivery::Threads(_));
        is_member.then(|| self.crew.enlist())
    }

    /// The life of the reaper: expires what is due, sleeps until more is.
    pub(super) fn reap(&self, parker: &Parker, member: Option<&Member>) {
        let _on_panic = EndOnPanic(self);
        member.into_iter().for_each(Member::begin);
        let mut batch = Vec::new();
        let mut slept_until = None;
        while !self.is_stopped.load(Ordering::Acquire) {
            let turn = self.expire_due(&self.delivery, &mut batch);
            if self.core.has_drained() {
                self.delivery.close(|| ());
                break;
            }
            if !turn.has_expired && slept_until.take().is_some_and(|until| until <= turn.now) {
                self.core.raise_published();
            }
            let Some(until) = self.core.fall_asleep(turn.now) else { continue };
            if self.is_stopped.load(Ordering::Acquire) {
                break;
            }
            match self.core.ticks().instant(until) {
                Some(instant) => {
                    let now = self.core.ticks().clock().now();
                    parker.park_timeout(instant.saturating_duration_since(now));
                }
                None => parker.park(),
            }
            self.core.wake_up();
            self.reaped.lock().wakeups += 1;
            slept_until = Some(until);
        }
    }

    /// Expires what is due and passes it on, a bounded number at a time.
    fn expire_due(&self, delivery: &Delivery<T>, batch: &mut Vec<Expired<T>>) -> Turn {
        let mut has_expired = false;
        let mut late = Duration::ZERO;
        loop {
            let elapsed = self.core.ticks().elapsed();
            let now = self.core.ticks().floor(elapsed);
            let mut latest_by = None;
            let is_drained = delivery.pass_on(&self.handler, batch, |batch| {
                let is_drained = self.core.expire(now, steps_per_hold(late), batch);
                latest_by = self.record(elapsed, batch);
                is_drained
            });
            if let Some(latest_by) = latest_by {
                has_expired = true;
                late = latest_by;
                self.handler.events().expired(latest_by);
            }
            if is_drained {
                return Turn { now, has_expired };
            }
        }
    }

    /// Records how late a batch is, which is passed on when so many nanoseconds have passed. Returns
    /// that of the one that is most late.
    fn record(&self, elapsed: u64, batch: &[Expired<T>]) -> Option<Duration> {
        if batch.is_empty() {
            return None;
        }
        let elapsed = Duration::from_nanos(elapsed);
        let mut latest_by = Duration::ZERO;
        let mut reaped = self.reaped.lock();
        // Many are due at the same tick, and all of these are equally late.
        for equal in batch.chunk_by(|one, next| one.deadline == next.deadline) {
            let due = self.core.ticks().since_origin(equal[0].deadline);
            let late = elapsed.saturating_sub(due);
            reaped.lateness.record(late, equal.len() as u64);
            latest_by = latest_by.max(late);
        }
        Some(latest_by)
    }

    /// Finishes `within` some time from now.
    pub(super) fn finish(&self, within: Duration) -> Vec<T> {
        self.finish_by(after(self.core.ticks().clock().now(), within))
    }

    /// Refuses new timeouts, runs those that become due until `deadline` or until none is left, then
    /// shuts down. Returns the others.
    pub(super) fn finish_by(&self, deadline: Instant) -> Vec<T> {
        let remaining = || deadline.saturating_duration_since(self.core.ticks().clock().now());
        self.core.begin_to_drain();
        if self.is_driven.load(Ordering::Acquire) {
            if self.core.ticks().clock().now() <= deadline {
                self.turn();
            }
        } else if self.is_started.load(Ordering::Acquire) {
            // Else nothing is pending: what was scheduled started the threads first.
            self.crew.wait(remaining);
        }
        // Values of a queue that are due can still be received.
        let backlog = self.delivery.backlog();
        self.end(backlog.filter(|_| !matches!(self.delivery, Delivery::Queue(_))))
    }

    /// Ends the threads, refuses new timeouts, and returns those that never ran.
    pub(super) fn shut_down(&self) -> Vec<T> {
        self.end(self.delivery.backlog())
    }

    /// Ends the threads and refuses new timeouts. Returns those that are pending and those of the
    /// backlog.
    fn end(&self, backlog: Option<&Backlog<T>>) -> Vec<T> {
        let is_first = !self.is_stopped.swap(true, Ordering::AcqRel);
        let mut values = self.delivery.close(|| self.core.close());
        let expired = backlog.map(Backlog::take_all).into_iter().flatten();
        values.extend(expired.map(|expired| expired.value));
        self.crew.dismiss();
        if is_first {
            self.handler.events().shut_down(values.len());
        }
        values
    }

    /// Returns how many timeouts are pending or in the backlog.
    pub(super) fn len(&self) -> usize {
        let backlog = self.delivery.backlog();
        self.delivery.settled(|| {
            let pending = usize::try_from(self.core.stats().1).unwrap_or(usize::MAX);
            pending.saturating_add(backlog.map_or(0, Backlog::len))
        })
    }

    /// Ends everything that relies on the reaper, which has panicked.
    fn end_after_panic(&self) {
        self.is_reaper_dead.store(true, Ordering::Release);
        self.core.begin_to_drain();
        self.delivery.close(|| ());
    }

    /// Returns whether the reaper has ended by a panic.
    pub(super) fn is_reaper_dead(&self) -> bool {
        self.is_reaper_dead.load(Ordering::Acquire)
    }

    pub(super) fn stats(&self) -> TimerStats {
        let (shards, pending) = self.core.stats();
        let reaped = self.reaped.lock();
        TimerStats {
            pending,
            scheduled: shards.scheduled,
            expired: shards.expired,
            cancelled: shards.cancelled,
            rejected: shards.rejected,
            returned: shards.returned,
            panicked: self.handler.panicked(),
            wakeups: reaped.wakeups,
            cascades: shards.cascades,
            lateness: reaped.lateness.clone(),
        }
    }
}

impl<T: Send + 'static> Driven for Engine<T> {
    fn turn(&self) {
        if !self.is_stopped.load(Ordering::Acquire) {
            let is_queue = matches!(self.delivery, Delivery::Queue(_));
            let delivery = if is_queue { &self.delivery } else { &Delivery::Inline };
            self.expire_due(delivery, &mut Vec::new());
        }
    }

    fn next_turn(&self) -> Option<Instant> {
        self.core.ticks().instant(self.core.next_turn()?)
    }
}

/// The users' part of a timer: when the last one is dropped, the timer shuts down.
pub(super) struct Owner<T: Send + 'static>(pub(super) Arc<Engine<T>>);

impl<T: Send + 'static> Drop for Owner<T> {
    fn drop(&mut self) {
        drop(self.0.shut_down());
    }
}

/// A reference that does not keep the timer running.
pub(super) type WeakEngine<T> = Weak<Engine<T>>;

/// Ends a timer whose reaper panics: it refuses timeouts from then on, its executors end when they
/// have run what has expired, and whoever waits for the end is told. What is pending is handed back
/// by a shutdown.
struct EndOnPanic<'a, T: Send + 'static>(&'a Engine<T>);

impl<T: Send + 'static> Drop for EndOnPanic<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end_after_panic();
        }
    }
}
