//! The futures of async tasks, and the models that judge each of their polls.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::RecvError,
    },
    task::{Context, Poll},
    time::Instant,
};

use delaywheel::{
    Completion, MissedTicks, ScheduleErrorKind,
    future::{Interval, QueueStream, Sleep, Timeout, TimeoutError, Wait},
};

use futures_core::Stream;

use crate::{
    books::{Books, Tick},
    clock::Time,
    script::{Delay, KEYS, Nanos},
    world::{World, lock},
};

/// Maximum number of ticks or values that a task takes in one poll.
const MOST_AT_ONCE: usize = 4;

pub(crate) enum Work {
    Sleep(Sleep, Alarm),
    /// The deadline counts from the first pending poll.
    Timeout(Timeout<Gate>, Delay, Option<Alarm>),
    Interval(Interval, Alarm),
    Receive(QueueStream<usize>),
    ReceiveOne(ReceiveOne),
    Wait(Wait<u32>, Waits),
}

/// A future of `recv_async`.
pub(crate) type ReceiveOne = Pin<Box<dyn Future<Output = Result<usize, RecvError>> + Send>>;

/// The value of each key.
pub(crate) type Values = Arc<Mutex<[u64; KEYS as usize]>>;

/// The model of a sleep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alarm {
    /// Nanoseconds since the origin; `u64::MAX` for never.
    pub(crate) deadline: Nanos,
    /// The least deadline since it was registered.
    pub(crate) least: Nanos,
}

/// The model of a wait.
pub(crate) struct Waits {
    pub(crate) keys: u32,
    pub(crate) delay: Delay,
    pub(crate) gate: Gate,
    pub(crate) has_condition: bool,
    pub(crate) thresholds: Vec<(u32, u64)>,
    /// Whether all thresholds must be reached, or one of them.
    pub(crate) needs_all: bool,
    pub(crate) values: Values,
    /// `None` before the first poll.
    pub(crate) deadline: Option<Tick>,
    /// Whether an event has ended it.
    pub(crate) is_satisfied: bool,
}

impl Waits {
    /// Makes the model of a wait without watches.
    pub(crate) fn new(delay: Delay, values: &Values) -> Self {
        Self {
            keys: 0,
            delay,
            gate: Gate::new(),
            has_condition: false,
            thresholds: Vec::new(),
            needs_all: false,
            values: Arc::clone(values),
            deadline: None,
            is_satisfied: false,
        }
    }

    /// Returns whether the values have reached the thresholds.
    pub(crate) fn is_reached(&self) -> bool {
        let values = lock(&self.values);
        let mut reached =
            self.thresholds.iter().map(|(key, least)| values[*key as usize] >= *least);
        if self.needs_all {
            reached.all(|is_reached| is_reached)
        } else {
            reached.any(|is_reached| is_reached)
        }
    }
}

/// A future that is ready when the script opens it. It wakes no task.
#[derive(Clone)]
pub(crate) struct Gate(Arc<AtomicBool>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Future for Gate {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.is_open() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// The result of a poll.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum Polled {
    Pending,
    /// There is more to do.
    Again,
    /// A sleep that may be polled again.
    Elapsed,
    Over,
}

/// The state of the timer, queue or purgatory of a task.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Open,
    /// A finish keeps the sleeps that are pending, and refuses others.
    Finishing,
    Ended,
}

/// The time and the state of a task before a poll, for the model.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Time,
    /// Nanoseconds since the origin, not before the latest tick that was seen.
    pub(crate) nanos: Nanos,
    pub(crate) tick: Tick,
    /// Whether the timer has no permit left for another sleep.
    pub(crate) is_full: bool,
    pub(crate) phase: Phase,
    /// Whether the task was registered and not woken since.
    pub(crate) is_registered: bool,
}

impl Moment {
    fn is_shut_down(&self) -> bool {
        self.phase == Phase::Ended
    }
}

impl Work {
    /// Polls the future, and checks the result.
    pub(crate) fn poll(
        &mut self,
        world: &World,
        values: &mut [Option<Tick>],
        books: &Books,
        cx: &mut Context<'_>,
        at: Moment,
    ) -> Result<Polled, String> {
        match self {
            Self::Sleep(sleep, alarm) => poll_sleep(sleep, alarm, books, cx, at),
            Self::Timeout(timeout, delay, alarm) => {
                poll_timeout((timeout, *delay, alarm), books, cx, at)
            }
            Self::Interval(interval, alarm) => {
                poll_interval(world, (interval, alarm), books, cx, at)
            }
            Self::Receive(stream) => poll_receive(stream, values, cx, at),
            Self::ReceiveOne(receive) => {
                let polled = take_value(receive.as_mut().poll(cx), values, at)?;
                Ok(if let Polled::Again = polled { Polled::Over } else { polled })
            }
            Self::Wait(wait, model) => poll_wait(wait, model, books, cx, at),
        }
    }

    /// Returns whether it is a timeout of the timer.
    pub(crate) const fn sleeps(&self) -> bool {
        matches!(self, Self::Sleep(..) | Self::Timeout(..) | Self::Interval(..))
    }

    /// Returns the tick at which the task is due; `None` if it does not wait for a time.
    pub(crate) fn due(&self, due: impl Fn(&Alarm) -> Tick) -> Option<Tick> {
        match self {
            Self::Sleep(_, alarm) | Self::Interval(_, alarm) => Some(due(alarm)),
            Self::Timeout(_, _, alarm) => alarm.as_ref().map(due),
            Self::Receive(_) | Self::ReceiveOne(_) => None,
            Self::Wait(_, wait) => wait.deadline,
        }
    }

    /// Makes the future of a timeout ready, or the condition of a wait true.
    pub(crate) fn open(&self) {
        match self {
            Self::Timeout(timeout, ..) => timeout.get_ref().0.store(true, Relaxed),
            Self::Wait(_, wait) => wait.gate.0.store(true, Relaxed),
            _ => {}
        }
    }
}

impl Alarm {
    pub(crate) const fn new(deadline: Nanos) -> Self {
        Self { deadline, least: deadline }
    }

    /// Makes the model of a sleep that ends `delay` after `now`.
    pub(crate) fn after(now: Nanos, delay: Delay) -> Self {
        let Delay::Nanos(delay) = delay else { return Self::new(u64::MAX) };
        Self::new(now.saturating_add(delay))
    }

    /// Moves the deadline to `delay` after `now`. With a limit, a sleep moves in the wheel at once.
    pub(crate) fn reset(&mut self, now: Nanos, delay: Delay, has_limit: bool) {
        let Self { deadline, .. } = Self::after(now, delay);
        self.deadline = deadline;
        self.least = match has_limit {
            // It has passed, though its tick has not begun.
            _ if deadline <= now => 0,
            true => deadline,
            false => deadline.min(self.least),
        };
    }

    /// Checks the result of a poll.
    fn judge(
        &mut self,
        polled: Poll<Result<(), ScheduleErrorKind>>,
        books: &Books,
        at: Moment,
    ) -> Result<(), String> {
        let has_passed = self.deadline < u64::MAX && at.nanos >= self.deadline;
        let is_sure = books.at_nanos(self.deadline.into()) <= at.tick;
        let is_right = match polled {
            Poll::Pending => !is_sure && !at.is_shut_down(),
            Poll::Ready(Ok(())) => has_passed,
            Poll::Ready(Err(ScheduleErrorKind::ShutDown)) => at.is_shut_down() && !has_passed,
            Poll::Ready(Err(ScheduleErrorKind::Full)) => {
                at.is_full && !at.is_registered && !has_passed
            }
            Poll::Ready(Err(_)) => false,
        };
        // A further poll leaves a sleep that was moved later at its earlier deadline.
        if !at.is_registered || polled.is_ready() {
            self.least = self.deadline;
        }
        let time = (at.nanos, at.tick);
        if is_right { Ok(()) } else { Err(format!("{polled:?} of {self:?} at {time:?}")) }
    }
}

fn poll_sleep(
    sleep: &mut Sleep,
    alarm: &mut Alarm,
    books: &Books,
    cx: &mut Context<'_>,
    at: Moment,
) -> Result<Polled, String> {
    let polled = Pin::new(sleep).poll(cx).map_err(|error| error.kind());
    alarm.judge(polled, books, at)?;
    Ok(match polled {
        Poll::Pending => Polled::Pending,
        Poll::Ready(Ok(())) => Polled::Elapsed,
        Poll::Ready(Err(_)) => Polled::Over,
    })
}

fn poll_timeout(
    (timeout, delay, alarm): (&mut Timeout<Gate>, Delay, &mut Option<Alarm>),
    books: &Books,
    cx: &mut Context<'_>,
    at: Moment,
) -> Result<Polled, String> {
    let is_open = timeout.get_ref().is_open();
    let polled = Pin::new(timeout).poll(cx);
    let is_done = matches!(polled, Poll::Ready(Ok(())));
    if is_open != is_done {
        return Err(format!("{polled:?}, and its future: {is_open}"));
    }
    if is_done {
        return Ok(Polled::Over);
    }
    let alarm = alarm.get_or_insert_with(|| Alarm::after(at.nanos, delay));
    let polled = polled.map(|ended| match ended {
        Ok(()) | Err(TimeoutError::Elapsed) => Ok(()),
        Err(TimeoutError::Sleep(error)) => Err(error.kind()),
        Err(other) => unreachable!("{other}"),
    });
    alarm.judge(polled, books, at)?;
    Ok(if polled.is_pending() { Polled::Pending } else { Polled::Over })
}

fn poll_interval(
    world: &World,
    (interval, alarm): (&mut Interval, &mut Alarm),
    books: &Books,
    cx: &mut Context<'_>,
    mut at: Moment,
) -> Result<Polled, String> {
    for _ in 0..MOST_AT_ONCE {
        let polled = interval.poll_tick(cx).map_err(|error| error.kind());
        let planned = alarm.deadline;
        alarm.judge(polled.map_ok(|_| ()), books, at)?;
        at.is_registered = false;
        if at.phase == Phase::Finishing {
            at.phase = Phase::Ended;
        }
        match polled {
            Poll::Pending => return Ok(Polled::Pending),
            Poll::Ready(Ok(instant)) => {
                check_tick(world, books, planned, instant)?;
                let period = u64::try_from(interval.period().as_nanos()).unwrap_or(u64::MAX);
                let now = at.nanos.max(planned);
                *alarm = Alarm::new(next_tick(interval.missed_ticks(), period, planned, now));
            }
            Poll::Ready(Err(_)) if at.is_shut_down() => return Ok(Polled::Over),
            Poll::Ready(Err(_)) => return Ok(Polled::Again),
        }
    }
    Ok(Polled::Again)
}

fn poll_receive(
    stream: &mut QueueStream<usize>,
    values: &mut [Option<Tick>],
    cx: &mut Context<'_>,
    at: Moment,
) -> Result<Polled, String> {
    for _ in 0..MOST_AT_ONCE {
        match take_value(
            Pin::new(&mut *stream).poll_next(cx).map(|value| value.ok_or(RecvError)),
            values,
            at,
        )? {
            Polled::Again => {}
            polled => return Ok(polled),
        }
    }
    Ok(Polled::Again)
}

/// Checks the result of a poll for a value. There may be another value.
fn take_value(
    polled: Poll<Result<usize, RecvError>>,
    values: &mut [Option<Tick>],
    at: Moment,
) -> Result<Polled, String> {
    match polled {
        Poll::Pending => Ok(Polled::Pending),
        Poll::Ready(Ok(value)) => {
            let deadline = values.get_mut(value).and_then(Option::take);
            if deadline.is_none_or(|deadline| deadline > at.tick) {
                return Err(format!("value {value}: {deadline:?} at {}", at.tick));
            }
            Ok(Polled::Again)
        }
        Poll::Ready(Err(_)) if at.is_shut_down() => Ok(Polled::Over),
        Poll::Ready(Err(error)) => Err(error.to_string()),
    }
}

fn poll_wait(
    wait: &mut Wait<u32>,
    model: &mut Waits,
    books: &Books,
    cx: &mut Context<'_>,
    at: Moment,
) -> Result<Polled, String> {
    let is_first = model.deadline.is_none();
    let deadline = *model.deadline.get_or_insert_with(|| books.after(at.now, model.delay));
    let polled = Pin::new(wait).poll(cx);
    let is_open = model.has_condition && model.gate.is_open() || model.is_reached();
    let is_right = match &polled {
        Poll::Pending => (at.is_registered || is_first && !is_open) && !at.is_shut_down(),
        Poll::Ready(Ok(Completion::Satisfied)) => model.is_satisfied || is_first && is_open,
        Poll::Ready(Ok(Completion::Expired)) => deadline <= at.tick && !model.is_satisfied,
        Poll::Ready(Ok(Completion::ShutDown) | Err(_)) => at.is_shut_down(),
        Poll::Ready(Ok(_)) => false,
    };
    if !is_right {
        return Err(format!("{polled:?}, due at {deadline}"));
    }
    Ok(if polled.is_pending() { Polled::Pending } else { Polled::Over })
}

/// Returns the tick that follows a tick planned for `planned` and taken at `now`.
fn next_tick(missed: MissedTicks, period: Nanos, planned: Nanos, now: Nanos) -> Nanos {
    let next = planned.saturating_add(period);
    match missed {
        MissedTicks::Skip if next < now => {
            let passed = (now - planned) / period;
            planned.saturating_add(period.saturating_mul(passed + 1))
        }
        MissedTicks::Delay if next < now => now.saturating_add(period),
        _ => next,
    }
}

/// Checks the instant that an interval returns.
fn check_tick(
    world: &World,
    books: &Books,
    planned: Nanos,
    instant: Instant,
) -> Result<(), String> {
    let origin = books.begin_of(0).expect("tick 0 has begun");
    let expected = world.instant_of(origin + u128::from(planned));
    if instant == expected {
        Ok(())
    } else {
        Err(format!("a tick at {instant:?}, not {expected:?}"))
    }
}
