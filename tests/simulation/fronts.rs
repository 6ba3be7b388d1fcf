//! The timers of a world, each with its books, and the calls on them.

use std::{
    mem,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use delaywheel::{
    DelayQueue, TimeoutGuard, TimeoutHandle, TimeoutKey, Timer, TimerStats, ValueTimer,
};

use crate::{
    books::{Books, Due, Number, State},
    script::{Action, Delay, THREADS},
    world::{World, is_returning, lock, this_thread, while_returning},
};

/// The payload of the panics that are part of a script.
#[derive(Debug)]
pub(crate) struct Planned;

pub(crate) fn panic_as_planned() -> ! {
    resume_unwind(Box::new(Planned))
}

pub(crate) fn duration(delay: Delay) -> Duration {
    match delay {
        Delay::Nanos(nanos) => Duration::from_nanos(nanos),
        Delay::Endless => Duration::MAX,
    }
}

#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) timer: Facade,
    books: Mutex<Books>,
    /// By number; `None` for refused timeouts.
    pub(crate) handles: Mutex<Vec<Option<Arc<Handle>>>>,
}

#[derive(Debug)]
pub(crate) enum Facade {
    Closures(Timer),
    Values(ValueTimer<Token>),
    Queue(DelayQueue<Token>),
}

#[derive(Debug)]
pub(crate) enum Handle {
    Timeout(TimeoutHandle),
    Guard(TimeoutGuard),
    Key(TimeoutKey),
}

impl Handle {
    pub(crate) fn timeout(&self) -> Option<&TimeoutHandle> {
        match self {
            Self::Timeout(timeout) => Some(timeout),
            Self::Guard(guard) => Some(guard),
            Self::Key(_) => None,
        }
    }
}

/// The value of a timeout, or the capture of its closure.
#[derive(Debug)]
pub(crate) struct Token {
    world: Arc<World>,
    front: Arc<Front>,
    number: Number,
}

impl Token {
    pub(crate) fn run(self) {
        if is_returning() {
            self.front.note_returned(&self.world, self.number);
            return;
        }
        let Some(action) = self.begin() else { return };
        let own = (Arc::clone(&self.front), self.number);
        if self.world.act(action, Some(own)) {
            self.front.books().counts.panicked += 1;
            drop(self);
            panic_as_planned();
        }
    }

    /// Records that it has begun. Returns its action.
    fn begin(&self) -> Option<Action> {
        let turn = self.world.first_turn();
        let mut books = self.front.books();
        let action = books.entries[self.number].action;
        let result = books.run(self.number, self.world.now(), turn);
        drop(books);
        self.front.note(&self.world, self.number, State::Ran);
        self.world.demand(result).then_some(action)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.front.books().entries[self.number].is_dropped = true;
    }
}

impl Front {
    pub(crate) fn new(world: &World, timer: Facade) -> Arc<Self> {
        let setup = &world.setup;
        let mut books = Books::new(&world.clock, setup.tick, setup.max_pending, THREADS);
        books.is_exact = world.clock.is_exact() && !matches!(timer, Facade::Queue(_));
        Arc::new(Self { timer, books: Mutex::new(books), handles: Mutex::default() })
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stats(&self) -> TimerStats {
        match &self.timer {
            Facade::Closures(timer) => timer.stats(),
            Facade::Values(timer) => timer.stats(),
            Facade::Queue(queue) => queue.timer().stats(),
        }
    }

    fn is_queue(&self) -> bool {
        matches!(self.timer, Facade::Queue(_))
    }

    pub(crate) fn handle(&self, number: Number) -> Option<Arc<Handle>> {
        lock(&self.handles).get(number).cloned().flatten()
    }

    pub(crate) fn enter(
        self: &Arc<Self>,
        world: &Arc<World>,
        due: Due,
        action: Action,
    ) -> (Number, Token) {
        let number = self.books().enter(due, world.now(), action, world.turn(), this_thread());
        lock(&self.handles).push(None);
        (number, Token { world: Arc::clone(world), front: Arc::clone(self), number })
    }

    pub(crate) fn shrink(&self) {
        match &self.timer {
            Facade::Closures(timer) => timer.shrink(),
            Facade::Values(timer) => timer.shrink(),
            Facade::Queue(_) => {}
        }
    }

    /// Receives up to `count` due values of a queue.
    pub(crate) fn receive(&self, world: &World, count: u32) {
        let Facade::Queue(queue) = &self.timer else { return };
        for _ in 0..count {
            let Ok(token) = queue.try_recv() else { break };
            let _ = token.begin();
        }
        let held = {
            let books = self.books();
            books.pending.len() as u64 + books.handed_off
        };
        if !world.is_in_turn() && queue.len() as u64 != held {
            world.fault(format!("the queue has {} values, not {held}", queue.len()));
        }
    }

    pub(crate) fn shut_down(&self, world: &World) {
        let before = self.stats().returned;
        match &self.timer {
            Facade::Closures(timer) => {
                let tasks = timer.shutdown();
                while_returning(|| tasks.into_iter().for_each(delaywheel::Task::run));
            }
            Facade::Values(timer) => self.take_back(world, timer.shutdown()),
            Facade::Queue(queue) => {
                // The pending values come first, and then the due ones.
                let mut tokens = queue.shutdown();
                let pending = usize::try_from(self.stats().returned - before).unwrap_or(0);
                let due = tokens.split_off(pending.min(tokens.len()));
                self.take_back(world, tokens);
                for token in due {
                    let _ = token.begin();
                }
            }
        }
        self.note_end(world);
    }

    pub(crate) fn drain(&self, world: &World, patience: u64) {
        self.books().is_draining = true;
        let patience = Duration::from_nanos(patience);
        world.in_turn(|| {
            match &self.timer {
                Facade::Closures(timer) => {
                    let tasks = timer.finish(patience);
                    while_returning(|| tasks.into_iter().for_each(delaywheel::Task::run));
                }
                Facade::Values(timer) => self.take_back(world, timer.finish(patience)),
                Facade::Queue(queue) => self.take_back(world, queue.timer().finish(patience)),
            }
            self.note_end(world);
        });
    }

    /// Records the end of a timeout, for comparison with another run.
    pub(crate) fn note(&self, world: &World, number: Number, end: State) {
        world.note((mem::discriminant(&self.timer), number, end));
    }

    fn take_back(&self, world: &World, tokens: Vec<Token>) {
        for token in tokens {
            self.note_returned(world, token.number);
        }
    }

    fn note_returned(&self, world: &World, number: Number) {
        self.note(world, number, State::Returned);
        let mut books = self.books();
        let state = books.entries[number].state;
        if state == State::Pending {
            books.leave(number, State::Returned);
        } else {
            world.fault(format!("timeout {number} was returned though it was {state:?}"));
        }
    }

    /// Records the end of the timer. A timeout that was not returned must be due, and on its way to
    /// its callback.
    fn note_end(&self, world: &World) {
        let mut books = self.books();
        books.is_shut_down = true;
        let left: Vec<_> = books.pending.iter().copied().collect();
        for number in left {
            if books.expectation(number, world.now(), world.is_in_turn()).is_some() {
                world.fault(format!("timeout {number} is lost: {:?}", books.entries[number]));
            }
            books.hand_off(number, world.first_turn());
        }
    }

    /// Checks, after a turn, that due timeouts scheduled before the turn were handed off.
    pub(crate) fn check_held(&self, world: &World, turn: u64) {
        let (now, books) = (world.now(), self.books());
        for number in books.overdue(now).into_iter().filter(|_| !self.is_queue()) {
            let entry = &books.entries[number];
            if entry.since <= turn {
                world.fault(format!("timeout {number} is held: {entry:?} at {}", books.now(now)));
            }
        }
    }

    /// Returns whether a turn would hand off a timeout.
    pub(crate) fn is_behind(&self, world: &World) -> bool {
        let mut books = self.books();
        books.see(world.now());
        let mut overdue = books.overdue(world.now()).into_iter();
        // A queue does not report its hand-offs. It has handed off all due values, except those
        // inserted in the last turn.
        let is_new = |number: Number| books.entries[number].since >= world.turn();
        overdue.any(|number| !self.is_queue() || is_new(number))
    }

    /// Checks, after the last turn, that all due timeouts were handed off.
    pub(crate) fn settle(&self, world: &World) {
        let now = world.now();
        let turn = world.first_turn();
        let mut books = self.books();
        books.see(now);
        for number in books.overdue(now) {
            if !self.is_queue() {
                let tick = books.now(now);
                world.fault(format!("held at {tick}: {number} {:?}", books.entries[number]));
            }
            books.hand_off(number, turn);
        }
    }

    pub(crate) fn check_invariants(&self) {
        match &self.timer {
            Facade::Closures(timer) => timer.check_invariants(),
            Facade::Values(timer) => timer.check_invariants(),
            Facade::Queue(queue) => queue.timer().check_invariants(),
        }
    }

    pub(crate) fn compare(&self, world: &World) {
        let stats = self.stats();
        world.demand(self.books().compare(&stats));
        let books = self.books();
        if !self.is_queue() && books.handed_off > 0 {
            world.fault(format!("{} were handed off and did not run", books.handed_off));
        }
        for number in &books.pending {
            if books.entries[*number].is_dropped {
                world.fault(format!("timeout {number} is pending, and was dropped"));
            }
        }
    }

    /// Checks, at the end of the world, that every closure and value has been dropped.
    pub(crate) fn check_dropped(&self, world: &World) {
        let books = self.books();
        let kept = books.entries.iter().position(|entry| !entry.is_dropped);
        if let Some(number) = kept {
            world.fault(format!("timeout {number} was never dropped: {:?}", books.entries[number]));
        }
    }
}
