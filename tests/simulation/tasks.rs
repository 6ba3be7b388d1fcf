//! The async tasks of a world: futures on a timer, a queue and a purgatory, and their model.
//!
//! A step polls woken tasks in an order that its seed determines. It may also poll tasks that were
//! not woken, change their wakers, reset their sleeps and drop them. After each step, the model
//! checks that every due task was woken, that no other was, and that a dropped task left nothing.

mod task;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Waker},
};

use delaywheel::{AsyncPurgatory, Condition, DelayQueue, Purgatory, Timer, Watch};

use self::task::{Number, Signal, State, Task, Wakes};
use crate::{
    books::Books,
    fronts::duration,
    futures::{Alarm, Gate, Moment, Phase, Polled, Values, Waits, Work},
    script::{Back, Delay, KEYS, Nanos, Script, Step, THREADS},
    task_steps::{Job, TaskStep},
    world::{World, lock},
};

pub(crate) struct Tasks {
    /// The timer of the sleeps. A finish replaces it.
    timer: Mutex<Timer>,
    queue: DelayQueue<usize>,
    purgatory: AsyncPurgatory<u32>,
    /// Converts times to ticks of the queue and the purgatory.
    books: Mutex<Books>,
    /// The same for the timer of the sleeps.
    sleep_books: Mutex<Books>,
    state: Mutex<State>,
    wakes: Wakes,
    /// The values of the purgatory's keys.
    values: Values,
}

impl Tasks {
    /// Returns the tasks of a world, if the script has steps for them.
    pub(crate) fn of_script(world: &World, script: &Script) -> Option<Arc<Self>> {
        let has_tasks = script.steps.iter().any(|(_, step)| matches!(step, Step::Task(_)));
        has_tasks.then(|| Arc::new(Self::new(world)))
    }

    fn new(world: &World) -> Self {
        let queue = world.set_up(true).build_queue().expect("the settings are in range");
        let purgatory = Purgatory::builder().timer(world.set_up(true)).build();
        Self {
            timer: Mutex::new(timer(world)),
            queue,
            purgatory: purgatory.expect("the settings are in range"),
            books: Mutex::new(books(world)),
            sleep_books: Mutex::new(books(world)),
            state: Mutex::default(),
            wakes: Arc::default(),
            values: Values::default(),
        }
    }

    /// Records the time of the clock.
    pub(crate) fn see(&self, world: &World) {
        lock(&self.books).see(world.now());
        lock(&self.sleep_books).see(world.now());
        see(&lock(&self.timer));
    }

    /// Takes a step of a task.
    pub(crate) fn take(self: &Arc<Self>, world: &Arc<World>, step: TaskStep) -> Result<(), String> {
        self.see(world);
        if let TaskStep::Finish(count, order) = step {
            self.finish(world, count, order)?;
            return self.check_state(world, &mut lock(&self.state), false);
        }
        let mut state = lock(&self.state);
        match step {
            TaskStep::Spawn(job) => self.spawn(world, &mut state, job),
            TaskStep::Run(count, order) => self.run(world, &mut state, count, order)?,
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
            TaskStep::Announce(key) => {
                let call = || self.purgatory.check_and_complete(&key);
                self.complete(world, &mut state, call, |wait| {
                    wait.keys & (1 << key) > 0 && (!wait.has_condition || wait.gate.is_open())
                })?;
            }
            TaskStep::Advance(key, by) => {
                let value = lock(&self.values)[key as usize] + by;
                lock(&self.values)[key as usize] = value;
                let call = || self.purgatory.advance(&key, value);
                self.complete(world, &mut state, call, Waits::is_reached)?;
            }
            TaskStep::Finish(..) => unreachable!("it holds no lock of the state"),
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
        state.phase = Phase::Ended;
        drop(lock(&self.timer).shutdown());
        let returned = self.queue.shutdown();
        drop(self.purgatory.shutdown());
        let left = state.values.iter().flatten().count();
        if returned.len() != left {
            return Err(format!("the queue returned {} values of {left}", returned.len()));
        }
        state.values.clear();
        self.end_tasks(world, &mut state, |_| true)?;
        self.check_state(world, &mut state, false)
    }

    fn waker(&self, task: Number, generation: u64) -> Waker {
        Waker::from(Arc::new(Signal { wakes: Arc::clone(&self.wakes), task, generation }))
    }

    /// Returns the books of the timer, queue or purgatory of a task.
    fn books_of(&self, task: &Task) -> MutexGuard<'_, Books> {
        lock(if task.sleeps() { &self.sleep_books } else { &self.books })
    }

    /// Returns the current time. `u64::MAX` stands for a time that never comes.
    fn now(&self, world: &World) -> Nanos {
        lock(&self.sleep_books).since(world.now()).min(u64::MAX - 1)
    }

    /// Polls some woken tasks, in an order that a seed determines.
    fn run(
        &self,
        world: &World,
        state: &mut State,
        count: usize,
        order: u64,
    ) -> Result<(), String> {
        let mut woken: Vec<_> = state.numbers(|task| task.is_woken).collect();
        fastrand::Rng::with_seed(order).shuffle(&mut woken);
        woken.into_iter().take(count).try_for_each(|number| self.poll(world, state, number))
    }

    /// Finishes the timer. A callback polls some tasks in the meantime. Then starts another timer.
    fn finish(
        self: &Arc<Self>,
        world: &Arc<World>,
        count: usize,
        order: u64,
    ) -> Result<(), String> {
        let ending = lock(&self.timer).clone();
        let fault = Arc::new(Mutex::new(Ok(())));
        let (tasks, there, result) = (Arc::clone(self), Arc::clone(world), Arc::clone(&fault));
        let poll = move || {
            let mut state = lock(&tasks.state);
            let collected = tasks.collect(&there, &mut state);
            *lock(&result) = collected.and_then(|()| tasks.run(&there, &mut state, count, order));
        };
        let origin = lock(&self.sleep_books).begin_of(0).expect("tick 0 has begun");
        let callback = ending.schedule_at(world.instant_of(origin), poll);
        callback.map(drop).map_err(|error| error.to_string())?;
        {
            let mut state = lock(&self.state);
            state.phase = Phase::Finishing;
            for task in &mut state.tasks {
                task.is_kept = task.is_registered;
            }
        }
        let left = ending.finish(duration(Delay::Nanos(0)));
        if !left.is_empty() {
            return Err(String::from("a callback that was due did not run in a finish"));
        }
        std::mem::replace(&mut *lock(&fault), Ok(()))?;
        let mut state = lock(&self.state);
        state.phase = Phase::Ended;
        self.end_tasks(world, &mut state, Work::sleeps)?;
        state.phase = Phase::Open;
        *lock(&self.timer) = timer(world);
        *lock(&self.sleep_books) = books(world);
        Ok(())
    }

    /// Runs tasks whose timer, queue or purgatory has ended to their ends.
    fn end_tasks(
        &self,
        world: &World,
        state: &mut State,
        is_one: impl Fn(&Work) -> bool,
    ) -> Result<(), String> {
        self.collect(world, state)?;
        for number in 0..state.tasks.len() {
            if !state.tasks[number].work.as_ref().is_some_and(&is_one) {
                continue;
            }
            if state.tasks[number].is_registered {
                return Err(format!("task {number} sleeps after the end"));
            }
            if state.tasks[number].is_woken {
                self.poll(world, state, number)?;
            }
            state.tasks[number].end();
        }
        Ok(())
    }

    fn spawn(&self, world: &World, state: &mut State, job: Job) {
        let (number, now) = (state.tasks.len(), self.now(world));
        let timer = lock(&self.timer).clone();
        let work = match job {
            Job::Sleep(delay) => {
                let sleep = timer.sleep(duration(delay));
                Work::Sleep(sleep, Alarm::after(now, delay))
            }
            Job::Timeout(delay) => {
                Work::Timeout(timer.timeout(duration(delay), Gate::new()), delay, None)
            }
            Job::Interval(period, missed) => {
                let interval = timer.interval(duration(Delay::Nanos(period)), missed);
                Work::Interval(interval, Alarm::new(now))
            }
            Job::Receive => Work::Receive(self.queue.stream()),
            Job::ReceiveOne => {
                let queue = self.queue.clone();
                Work::ReceiveOne(Box::pin(async move { queue.recv_async().await }))
            }
            Job::Wait(keys, has_condition, delay) => {
                let mut model = Waits::new(delay, &self.values);
                (model.keys, model.has_condition) = (keys, has_condition);
                let watched = (0..KEYS).filter(|key| keys & (1 << key) > 0);
                let mut wait = self.purgatory.wait(watched, duration(delay));
                if has_condition {
                    let gate = model.gate.clone();
                    wait = wait.when(move || gate.is_open());
                }
                Work::Wait(wait, model)
            }
            Job::WaitForValues(keys, ahead, needs_all, delay) => {
                let mut model = Waits::new(delay, &self.values);
                let chosen = (0..KEYS).filter(|key| (keys | 1) & (1 << key) > 0);
                let values = lock(&self.values);
                let thresholds = chosen.map(|key| (key, values[key as usize] + ahead));
                (model.thresholds, model.needs_all) = (thresholds.collect(), needs_all);
                let thresholds = model.thresholds.iter();
                let watches = thresholds.map(|&(key, least)| Condition::Threshold(key, least));
                let wait = if needs_all {
                    self.purgatory.wait(Watch::all(watches), duration(delay))
                } else {
                    self.purgatory.wait(Watch::any(watches), duration(delay))
                };
                let values = Arc::clone(&self.values);
                let has_reached = move |key: &u32, least| lock(&values)[*key as usize] >= least;
                Work::Wait(wait.when_reached(has_reached), model)
            }
        };
        state.tasks.push(Task {
            work: Some(work),
            waker: self.waker(number, 0),
            generation: 0,
            is_woken: true,
            is_registered: false,
            is_kept: false,
        });
    }

    /// Polls a task once, and checks the result.
    fn poll(&self, world: &World, state: &mut State, number: Number) -> Result<(), String> {
        let moment = Moment {
            now: world.now(),
            nanos: self.now(world),
            tick: self.books_of(&state.tasks[number]).now(world.now()),
            is_full: world.setup.max_pending.is_some_and(|max| state.sleeping() >= max),
            phase: state.phase_of(&state.tasks[number]),
            is_registered: state.tasks[number].is_registered,
        };
        let State { tasks, values, .. } = state;
        let task = &mut tasks[number];
        let waker = task.waker.clone();
        let mut cx = Context::from_waker(&waker);
        (task.is_registered, task.is_woken) = (false, false);
        let books = self.books_of(task);
        let polled = match task.work.as_mut() {
            None => return Ok(()),
            Some(work) => work.poll(world, values, &books, &mut cx, moment),
        };
        drop(books);
        let polled = polled.map_err(|fault| format!("task {number}: {fault}"))?;
        world.note((number, polled));
        task.is_kept &= matches!(polled, Polled::Pending);
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

    /// Makes a call that completes the waits that it satisfies.
    fn complete(
        &self,
        world: &World,
        state: &mut State,
        call: impl FnOnce() -> usize,
        satisfies: impl Fn(&Waits) -> bool,
    ) -> Result<(), String> {
        let mut ended = 0;
        for task in state.tasks.iter_mut().filter(|task| task.is_registered) {
            let Some(Work::Wait(_, wait)) = &mut task.work else { continue };
            wait.is_satisfied = satisfies(wait);
            ended += usize::from(wait.is_satisfied);
        }
        let completed = call();
        if completed != ended {
            return Err(format!("{completed} waits have ended, not {ended}"));
        }
        self.collect(world, state)?;
        let is_silent = |task: &Task| {
            task.is_registered
                && matches!(&task.work, Some(Work::Wait(_, wait)) if wait.is_satisfied)
        };
        match state.tasks.iter().position(is_silent) {
            Some(number) => Err(format!("wait {number} was not woken at its end")),
            None => Ok(()),
        }
    }

    /// Records the wake-ups since the last call, and checks that each has a reason.
    fn collect(&self, world: &World, state: &mut State) -> Result<(), String> {
        let wakes = std::mem::take(&mut *lock(&self.wakes));
        for (number, generation) in wakes {
            let phase = state.phase_of(&state.tasks[number]);
            let task = &mut state.tasks[number];
            let books = self.books_of(task);
            let tick = books.now(world.now());
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
            if due.is_some_and(|due| due > tick) && phase == Phase::Open {
                return Err(format!("task {number}, due at {due:?}, was woken at {tick}"));
            }
            task.is_woken = true;
        }
        Ok(())
    }

    /// Compares the model with the counts. If `is_swept`, every due task must have been woken.
    fn check_state(&self, world: &World, state: &mut State, is_swept: bool) -> Result<(), String> {
        let timer = lock(&self.timer).clone();
        self.collect(world, state)?;
        timer.check_invariants();
        self.queue.timer().check_invariants();
        self.purgatory.check_invariants();
        for (number, task) in state.tasks.iter().enumerate().filter(|_| is_swept) {
            let books = self.books_of(task);
            let tick = books.now(world.now());
            let due = task.due(|alarm| books.at_nanos(alarm.deadline.into()));
            if task.is_registered && due.is_some_and(|due| due <= tick) {
                return Err(format!("task {number}, due at {due:?}, sleeps at {tick}"));
            }
        }
        let tick = lock(&self.books).now(world.now());
        let receives =
            |task: &&Task| matches!(task.work, Some(Work::Receive(_) | Work::ReceiveOne(_)));
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
        let counts = (timer.stats().pending, self.queue.len(), self.purgatory.delayed());
        let expected = (state.sleeping(), values, delayed);
        if counts == expected {
            Ok(())
        } else {
            Err(format!("sleeps, values and waits: {counts:?}, not {expected:?}"))
        }
    }
}

fn timer(world: &World) -> Timer {
    let mut builder = world.set_up(true);
    if let Some(max) = world.setup.max_pending {
        builder = builder.max_pending(max);
    }
    let timer = builder.build().expect("the settings are in range");
    see(&timer);
    timer
}

/// Makes the timer of the sleeps exist, and read the clock.
fn see(timer: &Timer) {
    drop(timer.sleep(duration(Delay::Endless)));
}

fn books(world: &World) -> Books {
    Books::new(world.now(), world.setup.tick, None, THREADS)
}
