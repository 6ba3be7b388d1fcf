//! An async task of a world, its wake-ups, and the state of all tasks.

use std::{
    sync::{Arc, Mutex},
    task::{Wake, Waker},
};

use crate::{
    books::Tick,
    futures::{Alarm, Phase, Work},
    script::Back,
    world::lock,
};

/// A task, by its index.
pub(super) type Number = usize;

/// The wake-ups since the last check: a task, and the generation of the waker.
pub(super) type Wakes = Arc<Mutex<Vec<(Number, u64)>>>;

#[derive(Default)]
pub(super) struct State {
    pub(super) tasks: Vec<Task>,
    /// The deadline of each value of the queue; `None` once it was received.
    pub(super) values: Vec<Option<Tick>>,
    pub(super) is_shut_down: bool,
    pub(super) phase: Phase,
}

pub(super) struct Task {
    /// `None` after its end.
    pub(super) work: Option<Work>,
    pub(super) waker: Waker,
    /// Number of the waker.
    pub(super) generation: u64,
    /// Whether the task must be polled.
    pub(super) is_woken: bool,
    /// Whether the last poll was pending, and nothing has woken the task since.
    pub(super) is_registered: bool,
    /// Whether it was registered when a finish began. Then its polls may be pending until the end.
    pub(super) is_kept: bool,
}

/// Records wake-ups.
pub(super) struct Signal {
    pub(super) wakes: Wakes,
    pub(super) task: Number,
    pub(super) generation: u64,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.wakes).push((self.task, self.generation));
    }
}

impl State {
    pub(super) fn numbers(
        &self,
        is_one: impl Fn(&Task) -> bool,
    ) -> impl DoubleEndedIterator<Item = Number> {
        let all = self.tasks.iter().enumerate();
        let found = all.filter(|(_, task)| task.work.is_some() && is_one(task));
        found.map(|(number, _)| number).collect::<Vec<_>>().into_iter()
    }

    pub(super) fn pick(&self, back: Back) -> Option<Number> {
        self.numbers(|_| true).rev().nth(back)
    }

    /// Returns the number of sleeps in the wheel.
    pub(super) fn sleeping(&self) -> u64 {
        self.tasks.iter().filter(|task| task.is_registered && task.sleeps()).count() as u64
    }

    /// Returns the phase of the timer, queue or purgatory of a task.
    pub(super) fn phase_of(&self, task: &Task) -> Phase {
        match self.phase {
            _ if self.is_shut_down => Phase::Ended,
            Phase::Finishing if task.sleeps() && task.is_kept => Phase::Finishing,
            Phase::Finishing | Phase::Ended if task.sleeps() => Phase::Ended,
            _ => Phase::Open,
        }
    }
}

impl Task {
    /// Returns the tick at which it is due; `None` if it does not wait for a time.
    pub(super) fn due(&self, due: impl Fn(&Alarm) -> Tick) -> Option<Tick> {
        self.work.as_ref()?.due(due)
    }

    pub(super) fn sleeps(&self) -> bool {
        self.work.as_ref().is_some_and(Work::sleeps)
    }

    /// Drops the future.
    pub(super) fn end(&mut self) {
        self.work = None;
        (self.is_registered, self.is_woken, self.is_kept) = (false, false, false);
    }
}
