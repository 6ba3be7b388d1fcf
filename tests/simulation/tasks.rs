//! The async tasks of a world: futures on a timer, a queue and a purgatory, and their model.
//!
//! A step polls woken tasks in an order that its seed determines. It may also poll tasks that were
//! not woken, change their wakers, reset their sleeps and drop them. After each step, the model
//! checks that every due task was woken, that no other was, and that a dropped task left nothing.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use delaywheel::{
    AsyncPurgatory, Completion, DelayQueue, MissedTicks, PurgatoryBuilder, ScheduleErrorKind,
    Timer,
    future::{Interval, QueueStream, Sleep, Timeout, TimeoutError, Wait},
};

use crate::{
    books::{Books, Tick},
    clock::Time,
    fronts::duration,
    script::{Back, Delay, Dice, KEYS, Nanos, Script, Step, THREADS},
    world::{World, lock},
};

/// Maximum number of ticks or values that a task takes in one poll.
const MOST_AT_ONCE: usize = 4;

/// Adds steps of tasks to half of the scripts. The other steps stay as they are.
pub(crate) fn add_steps(script: &mut Script, seed: u64) {
    let mut dice = Dice::new(!seed);
    if dice.one_in(2) {
        return;
    }
    let steps = std::mem::take(&mut script.steps);
    for step in steps {
        script.steps.push(step);
        while dice.one_in(2) {
            script.steps.push((dice.thread(), Step::Task(dice.task_step())));
        }
    }
}

/// A step of the async tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TaskStep {
    Spawn(Job),
    /// Polls some woken tasks, in an order that the second number seeds.
    Run(usize, u64),
    /// Polls a task, whether it was woken or not; with a new waker if the flag is set.
    Poll(Back, bool),
    Reset(Back, Delay),
    /// Drops a task; with an even number, one that was woken.
    Drop(Back),
    /// The future of a timeout gets ready, or the condition of a wait true.
    Open(Back),
    /// A value for the queue.
    Insert(Delay),
    /// An event on a key.
    Announce(u32),
}

/// What an async task does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Job {
    Sleep(Delay),
    Timeout(Delay),
    Interval(Nanos, MissedTicks),
    Receive,
    /// Bits: keys whose events it awaits; and whether it has a condition.
    Wait(u32, bool, Delay),
}

impl Dice<'_> {
    fn task_step(&mut self) -> TaskStep {
        let (back, delay) = (self.back(), self.delay());
        match self.0.u32(0..40) {
            0..13 => TaskStep::Spawn(self.job(delay)),
            13..22 => TaskStep::Run(self.0.usize(1..8), self.0.u64(0..u64::MAX)),
            22..27 => TaskStep::Poll(back, self.one_in(2)),
            27..31 => TaskStep::Reset(back, delay),
            31..34 => TaskStep::Drop(back),
            34..36 => TaskStep::Open(back),
            36..38 => TaskStep::Insert(Delay::Nanos(self.skewed(40))),
            _ => TaskStep::Announce(self.key()),
        }
    }

    fn job(&mut self, delay: Delay) -> Job {
        let missed = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip];
        match self.0.u32(0..10) {
            0..3 => Job::Sleep(delay),
            3 => Job::Timeout(delay),
            4 => Job::Interval(self.skewed(55), self.pick(&missed)),
            5..8 => Job::Receive,
            _ => Job::Wait(self.keys(), self.one_in(2), delay),
        }
    }
}

/// A task, by its index.
type Number = usize;

/// The wake-ups since the last check: a task, and the generation of the waker.
type Wakes = Arc<Mutex<Vec<(Number, u64)>>>;

pub(crate) struct Tasks {
    timer: Timer,
    queue: DelayQueue<usize>,
    purgatory: AsyncPurgatory<u32, u32>,
    /// Converts times to ticks.
    books: Mutex<Books>,
    state: Mutex<State>,
    wakes: Wakes,
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    /// The deadline of each value of the queue; `None` once it was received.
    values: Vec<Option<Tick>>,
    is_shut_down: bool,
}

struct Task {
    /// `None` after its end.
    work: Option<Work>,
    waker: Waker,
    /// Number of the waker.
    generation: u64,
    /// Whether the task must be polled.
    is_woken: bool,
    /// Whether the last poll was pending, and nothing has woken the task since.
    is_registered: bool,
}

enum Work {
    Sleep(Sleep, Alarm),
    /// The deadline counts from the first pending poll.
    Timeout(Timeout<Gate>, Delay, Option<Alarm>),
    Interval(Interval, Alarm),
    Receive(QueueStream<usize>),
    Wait(Wait<u32, u32>, Waits),
}

/// The model of a sleep.
#[derive(Debug, Clone, Copy)]
struct Alarm {
    /// Nanoseconds since the origin; `u64::MAX` for never.
    deadline: Nanos,
    /// The least deadline since it was registered.
    least: Nanos,
}

/// The model of a wait.
struct Waits {
    keys: u32,
    delay: Delay,
    gate: Gate,
    has_condition: bool,
    /// `None` before the first poll.
    deadline: Option<Tick>,
    /// Whether an event has ended it.
    is_satisfied: bool,
}

/// A future that is ready when the script opens it. It wakes no task.
#[derive(Clone)]
struct Gate(Arc<AtomicBool>);

impl Gate {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn is_open(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Future for Gate {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.is_open() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Records wake-ups.
struct Signal {
    wakes: Wakes,
    task: Number,
    generation: u64,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.wakes).push((self.task, self.generation));
    }
}

/// The result of a poll.
#[derive(Debug, Clone, Copy, Hash)]
enum Polled {
    Pending,
    /// There is more to do.
    Again,
    /// A sleep that may be polled again.
    Elapsed,
    Over,
}

/// The time and the state of a task before a poll, for the model.
#[derive(Clone, Copy)]
struct Moment {
    now: Time,
    /// Nanoseconds since the origin, not before the latest tick that was seen.
    nanos: Nanos,
    tick: Tick,
    /// Whether the timer has no permit left for another sleep.
    is_full: bool,
    is_shut_down: bool,
    /// Whether the task was registered and not woken since.
    is_registered: bool,
}

impl Alarm {
    const fn new(deadline: Nanos) -> Self {
        Self { deadline, least: deadline }
    }

    /// Makes the model of a sleep that ends `delay` after `now`.
    fn after(now: Nanos, delay: Delay) -> Self {
        let Delay::Nanos(delay) = delay else { return Self::new(u64::MAX) };
        Self::new(now.saturating_add(delay))
    }

    /// Moves the deadline to `delay` after `now`. With a limit, a sleep moves in the wheel at once.
    fn reset(&mut self, now: Nanos, delay: Delay, has_limit: bool) {
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
            Poll::Pending => !is_sure && !at.is_shut_down,
            Poll::Ready(Ok(())) => has_passed,
            Poll::Ready(Err(ScheduleErrorKind::ShutDown)) => at.is_shut_down && !has_passed,
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

impl Tasks {
    /// Returns the tasks of a world, if the script has steps for them.
    pub(crate) fn of_script(world: &World, script: &Script) -> Option<Self> {
        let has_tasks = script.steps.iter().any(|(_, step)| matches!(step, Step::Task(_)));
        has_tasks.then(|| Self::new(world))
    }

    fn new(world: &World) -> Self {
        let set_up = || {
            let builder = world.set_up(true);
            match world.setup.max_pending {
                Some(max) => builder.max_pending(max),
                None => builder,
            }
        };
        let timer = set_up().build().expect("the settings are in range");
        // The first sleep creates the timer of the sleeps.
        drop(timer.sleep(duration(Delay::Endless)));
        let queue = world.set_up(true).build_queue().expect("the settings are in range");
        let purgatory = PurgatoryBuilder::new().timer(world.set_up(true)).build();
        let books = Books::new(world.now(), world.setup.tick, None, THREADS);
        Self {
            timer,
            queue,
            purgatory: purgatory.expect("the settings are in range"),
            books: Mutex::new(books),
            state: Mutex::default(),
            wakes: Arc::default(),
        }
    }

    /// Records the time of the clock.
    pub(crate) fn see(&self, world: &World) {
        lock(&self.books).see(world.now());
    }

    /// Takes a step of a task.
    pub(crate) fn take(&self, world: &World, step: TaskStep) -> Result<(), String> {
        self.see(world);
        let mut state = lock(&self.state);
        match step {
            TaskStep::Spawn(job) => self.spawn(world, &mut state, job),
            TaskStep::Run(count, order) => {
                let mut woken: Vec<_> = state.numbers(|task| task.is_woken).collect();
                fastrand::Rng::with_seed(order).shuffle(&mut woken);
                for number in woken.into_iter().take(count) {
                    self.poll(world, &mut state, number)?;
                }
            }
            TaskStep::Poll(back, is_changed) => {
                if let Some(number) = state.pick(back) {
                    if is_changed {
                        let generation = state.tasks[number].generation + 1;
                        state.tasks[number].generation = generation;
                        state.tasks[number].waker = self.waker(number, generation);
                    }
                    self.poll(world, &mut state, number)?;
                }
            }
            TaskStep::Reset(back, delay) => self.reset(world, &mut state, back, delay),
            TaskStep::Drop(back) => {
                let woken = (back % 2 == 0).then(|| state.numbers(|task| task.is_woken).last());
                if let Some(number) = woken.flatten().or_else(|| state.pick(back / 2)) {
                    state.tasks[number].end();
                }
            }
            TaskStep::Open(back) => state.open(back),
            TaskStep::Insert(delay) => {
                let deadline = lock(&self.books).after(world.now(), delay);
                let value = state.values.len();
                self.queue.insert(duration(delay), value).map_err(|error| error.to_string())?;
                state.values.push(Some(deadline));
            }
            TaskStep::Announce(key) => self.announce(world, &mut state, key)?,
        }
        self.check_state(world, &mut state, false)
    }

    /// Checks the tasks after a step of others.
    pub(crate) fn check(&self, world: &World) -> Result<(), String> {
        self.see(world);
        self.check_state(world, &mut lock(&self.state), world.is_swept())
    }

    /// Shuts everything down, and runs all tasks to their ends.
    pub(crate) fn end(&self, world: &World) -> Result<(), String> {
        self.see(world);
        let mut state = lock(&self.state);
        state.is_shut_down = true;
        drop(self.timer.shutdown());
        let returned = self.queue.shutdown();
        drop(self.purgatory.shutdown());
        let left = state.values.iter().flatten().count();
        if returned.len() != left {
            return Err(format!("the queue returned {} values of {left}", returned.len()));
        }
        state.values.clear();
        self.collect(world, &mut state)?;
        for number in 0..state.tasks.len() {
            if state.tasks[number].is_registered {
                return Err(format!("task {number} sleeps after the shutdown"));
            }
            if state.tasks[number].is_woken {
                self.poll(world, &mut state, number)?;
            }
            state.tasks[number].end();
        }
        self.check_state(world, &mut state, false)
    }

    fn waker(&self, task: Number, generation: u64) -> Waker {
        Waker::from(Arc::new(Signal { wakes: Arc::clone(&self.wakes), task, generation }))
    }

    /// Returns the current time. `u64::MAX` stands for a time that never comes.
    fn now(&self, world: &World) -> Nanos {
        lock(&self.books).since(world.now()).min(u64::MAX - 1)
    }

    fn spawn(&self, world: &World, state: &mut State, job: Job) {
        let (number, now) = (state.tasks.len(), self.now(world));
        let work = match job {
            Job::Sleep(delay) => {
                let sleep = self.timer.sleep(duration(delay));
                Work::Sleep(sleep, Alarm::after(now, delay))
            }
            Job::Timeout(delay) => {
                Work::Timeout(self.timer.timeout(duration(delay), Gate::new()), delay, None)
            }
            Job::Interval(period, missed) => {
                let interval = self.timer.interval(duration(Delay::Nanos(period)), missed);
                Work::Interval(interval, Alarm::new(now))
            }
            Job::Receive => Work::Receive(self.queue.stream()),
            Job::Wait(keys, has_condition, delay) => {
                let gate = Gate::new();
                let watched = (0..KEYS).filter(|key| keys & (1 << key) > 0);
                let mut wait = self.purgatory.wait(watched, duration(delay));
                if has_condition {
                    let gate = gate.clone();
                    wait = wait.when(move || gate.is_open());
                }
                let (deadline, is_satisfied) = (None, false);
                Work::Wait(wait, Waits { keys, delay, gate, has_condition, deadline, is_satisfied })
            }
        };
        state.tasks.push(Task {
            work: Some(work),
            waker: self.waker(number, 0),
            generation: 0,
            is_woken: true,
            is_registered: false,
        });
    }

    /// Polls a task once, and checks the result.
    fn poll(&self, world: &World, state: &mut State, number: Number) -> Result<(), String> {
        let moment = Moment {
            now: world.now(),
            nanos: self.now(world),
            tick: lock(&self.books).now(world.now()),
            is_full: world.setup.max_pending.is_some_and(|max| state.sleeping() >= max),
            is_shut_down: state.is_shut_down,
            is_registered: state.tasks[number].is_registered,
        };
        let State { tasks, values, .. } = state;
        let task = &mut tasks[number];
        let waker = task.waker.clone();
        let mut cx = Context::from_waker(&waker);
        (task.is_registered, task.is_woken) = (false, false);
        let books = lock(&self.books);
        let polled = match task.work.as_mut() {
            None => return Ok(()),
            Some(Work::Sleep(sleep, alarm)) => poll_sleep(sleep, alarm, &books, &mut cx, moment),
            Some(Work::Timeout(timeout, delay, alarm)) => {
                poll_timeout((timeout, *delay, alarm), &books, &mut cx, moment)
            }
            Some(Work::Interval(interval, alarm)) => {
                poll_interval(world, (interval, alarm), &books, &mut cx, moment)
            }
            Some(Work::Receive(stream)) => poll_receive(stream, values, &mut cx, moment),
            Some(Work::Wait(wait, model)) => poll_wait(wait, model, &books, &mut cx, moment),
        };
        drop(books);
        let polled = polled.map_err(|fault| format!("task {number}: {fault}"))?;
        world.note((number, polled));
        match polled {
            Polled::Pending => task.is_registered = true,
            Polled::Again => task.is_woken = true,
            Polled::Elapsed => {}
            Polled::Over => task.end(),
        }
        self.collect(world, state)
    }

    fn reset(&self, world: &World, state: &mut State, back: Back, delay: Delay) {
        let Some(number) = state.pick(back) else { return };
        let (now, has_limit) = (self.now(world), world.setup.max_pending.is_some());
        let task = &mut state.tasks[number];
        match task.work.as_mut() {
            Some(Work::Sleep(sleep, alarm)) => {
                sleep.reset(duration(delay));
                alarm.reset(now, delay, has_limit);
            }
            Some(Work::Interval(interval, alarm)) => {
                interval.reset_after(duration(delay));
                alarm.reset(now, delay, has_limit);
            }
            _ => return,
        }
        // As documented, a sleep that has ended or was woken is polled again after a reset.
        task.is_woken |= !task.is_registered;
    }

    /// Announces an event on a key.
    fn announce(&self, world: &World, state: &mut State, key: u32) -> Result<(), String> {
        let mut ended = 0;
        for task in &mut state.tasks {
            let Some(Work::Wait(_, wait)) = &mut task.work else { continue };
            let is_watched = wait.keys & (1 << key) > 0 && task.is_registered;
            if is_watched && (!wait.has_condition || wait.gate.is_open()) {
                wait.is_satisfied = true;
                ended += 1;
            }
        }
        let completed = self.purgatory.check_and_complete(&key);
        if completed != ended {
            return Err(format!("an event on key {key} ended {completed} waits, not {ended}"));
        }
        self.collect(world, state)?;
        let is_silent = |task: &Task| {
            task.is_registered
                && matches!(&task.work, Some(Work::Wait(_, wait)) if wait.is_satisfied)
        };
        match state.tasks.iter().position(is_silent) {
            Some(number) => Err(format!("wait {number} was not woken by an event on key {key}")),
            None => Ok(()),
        }
    }

    /// Records the wake-ups since the last call, and checks that each has a reason.
    fn collect(&self, world: &World, state: &mut State) -> Result<(), String> {
        let wakes = std::mem::take(&mut *lock(&self.wakes));
        let books = lock(&self.books);
        let tick = books.now(world.now());
        for (number, generation) in wakes {
            let task = &mut state.tasks[number];
            if generation != task.generation {
                return Err(format!("waker {generation} of task {number} was replaced"));
            }
            if !std::mem::replace(&mut task.is_registered, false) {
                return Err(format!("task {number} was woken twice, or after its end"));
            }
            let due = match &task.work {
                Some(Work::Wait(_, wait)) if wait.is_satisfied => None,
                _ => task.due(|alarm| books.at_nanos(alarm.least.into())),
            };
            if due.is_some_and(|due| due > tick) && !state.is_shut_down {
                return Err(format!("task {number}, due at {due:?}, was woken at {tick}"));
            }
            task.is_woken = true;
        }
        Ok(())
    }

    /// Compares the model with the counts. If `is_swept`, every due task must have been woken.
    fn check_state(&self, world: &World, state: &mut State, is_swept: bool) -> Result<(), String> {
        self.collect(world, state)?;
        self.timer.check_invariants();
        self.queue.check_invariants();
        self.purgatory.check_invariants();
        let books = lock(&self.books);
        let tick = books.now(world.now());
        for (number, task) in state.tasks.iter().enumerate().filter(|_| is_swept) {
            let due = task.due(|alarm| books.at_nanos(alarm.deadline.into()));
            if task.is_registered && due.is_some_and(|due| due <= tick) {
                return Err(format!("task {number}, due at {due:?}, sleeps at {tick}"));
            }
        }
        let receives = |task: &&Task| matches!(task.work, Some(Work::Receive(_)));
        let waiting = |task: &&Task| task.is_registered;
        let asleep = state.tasks.iter().filter(receives).filter(waiting).count();
        let woken = state.tasks.iter().filter(receives).filter(|task| task.is_woken).count();
        let due = state.values.iter().flatten().filter(|deadline| **deadline <= tick).count();
        if is_swept && woken < due.min(asleep + woken) {
            return Err(format!("{due} values are due, {asleep} tasks sleep, {woken} are woken"));
        }
        let waits = |task: &&Task| matches!(task.work, Some(Work::Wait(..)));
        let delayed = state.tasks.iter().filter(waits).filter(waiting).count() as u64;
        let values = state.values.iter().flatten().count();
        let counts = (self.timer.stats().pending, self.queue.len(), self.purgatory.delayed());
        let expected = (state.sleeping(), values, delayed);
        if counts == expected {
            Ok(())
        } else {
            Err(format!("sleeps, values and waits: {counts:?}, not {expected:?}"))
        }
    }
}

impl State {
    fn numbers(&self, is_one: impl Fn(&Task) -> bool) -> impl DoubleEndedIterator<Item = Number> {
        let all = self.tasks.iter().enumerate();
        let found = all.filter(|(_, task)| task.work.is_some() && is_one(task));
        found.map(|(number, _)| number).collect::<Vec<_>>().into_iter()
    }

    fn pick(&self, back: Back) -> Option<Number> {
        self.numbers(|_| true).rev().nth(back)
    }

    /// Returns the number of sleeps in the wheel.
    fn sleeping(&self) -> u64 {
        let sleeps = |task: &&Task| {
            matches!(task.work, Some(Work::Sleep(..) | Work::Timeout(..) | Work::Interval(..)))
        };
        self.tasks.iter().filter(sleeps).filter(|task| task.is_registered).count() as u64
    }

    /// Makes the future of a timeout ready, or the condition of a wait true.
    fn open(&mut self, back: Back) {
        let Some(number) = self.pick(back) else { return };
        let task = &mut self.tasks[number];
        match &task.work {
            Some(Work::Timeout(timeout, ..)) => timeout.get_ref().0.store(true, Relaxed),
            Some(Work::Wait(_, wait)) => wait.gate.0.store(true, Relaxed),
            _ => {}
        }
    }
}

impl Task {
    /// Returns the tick at which the task is due; `None` if it does not wait for a time.
    fn due(&self, due: impl Fn(&Alarm) -> Tick) -> Option<Tick> {
        match self.work.as_ref()? {
            Work::Sleep(_, alarm) | Work::Interval(_, alarm) => Some(due(alarm)),
            Work::Timeout(_, _, alarm) => alarm.as_ref().map(due),
            Work::Receive(_) => None,
            Work::Wait(_, wait) => wait.deadline,
        }
    }

    /// Drops the future.
    fn end(&mut self) {
        self.work = None;
        (self.is_registered, self.is_woken) = (false, false);
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
        match polled {
            Poll::Pending => return Ok(Polled::Pending),
            Poll::Ready(Ok(instant)) => {
                check_tick(world, books, planned, instant)?;
                let period = u64::try_from(interval.period().as_nanos()).unwrap_or(u64::MAX);
                let now = at.nanos.max(planned);
                *alarm = Alarm::new(next_tick(interval.missed_ticks(), period, planned, now));
            }
            Poll::Ready(Err(_)) if at.is_shut_down => return Ok(Polled::Over),
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
        match stream.poll_recv(cx) {
            Poll::Pending => return Ok(Polled::Pending),
            Poll::Ready(Ok(value)) => {
                let deadline = values.get_mut(value).and_then(Option::take);
                if deadline.is_none_or(|deadline| deadline > at.tick) {
                    return Err(format!("value {value}: {deadline:?} at {}", at.tick));
                }
            }
            Poll::Ready(Err(_)) if at.is_shut_down => return Ok(Polled::Over),
            Poll::Ready(Err(error)) => return Err(error.to_string()),
        }
    }
    Ok(Polled::Again)
}

fn poll_wait(
    wait: &mut Wait<u32, u32>,
    model: &mut Waits,
    books: &Books,
    cx: &mut Context<'_>,
    at: Moment,
) -> Result<Polled, String> {
    let is_first = model.deadline.is_none();
    let deadline = *model.deadline.get_or_insert_with(|| books.after(at.now, model.delay));
    let polled = Pin::new(wait).poll(cx);
    let is_open = model.has_condition && model.gate.is_open();
    let is_right = match &polled {
        Poll::Pending => (at.is_registered || is_first && !is_open) && !at.is_shut_down,
        Poll::Ready(Ok(Completion::Satisfied)) => model.is_satisfied || is_first && is_open,
        Poll::Ready(Ok(Completion::Expired)) => deadline <= at.tick && !model.is_satisfied,
        Poll::Ready(Ok(Completion::ShutDown) | Err(_)) => at.is_shut_down,
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
