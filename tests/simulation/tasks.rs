//! The async tasks of a world: futures on a timer, a queue and a purgatory, and their model.
//!
//! A step polls woken tasks in an order that its seed determines. It may also poll tasks that were
//! not woken, change their wakers, reset their sleeps and drop them. After each step, the model
//! checks that every due task was woken, that no other was, and that a dropped task left nothing.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
};

use delaywheel::{AsyncPurgatory, DelayQueue, PurgatoryBuilder, Timer};

use crate::{
    books::{Books, Tick},
    fronts::duration,
    futures::{Alarm, Gate, Moment, Polled, Waits, Work},
    script::{Back, Delay, KEYS, Nanos, Script, Step, THREADS},
    task_steps::{Job, TaskStep},
    world::{World, lock},
};

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
            TaskStep::Open(back) => {
                let work = state.pick(back).and_then(|number| state.tasks[number].work.as_ref());
                work.inspect(|work| work.open());
            }
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
            Some(work) => work.poll(world, values, &books, &mut cx, moment),
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
}

impl Task {
    /// Returns the tick at which it is due; `None` if it does not wait for a time.
    fn due(&self, due: impl Fn(&Alarm) -> Tick) -> Option<Tick> {
        self.work.as_ref()?.due(due)
    }

    /// Drops the future.
    fn end(&mut self) {
        self.work = None;
        (self.is_registered, self.is_woken) = (false, false);
    }
}
