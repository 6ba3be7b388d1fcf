//! The steps of async tasks, drawn from the seed of a script.

use delaywheel::MissedTicks;

use crate::script::{Back, Delay, Dice, Nanos, Script, Step};

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
    /// The value of a key grows.
    Advance(u32, u64),
    /// A finish of the timer, in which some woken tasks are polled, as in `Run`.
    Finish(usize, u64),
}

/// What an async task does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Job {
    Sleep(Delay),
    Timeout(Delay),
    Interval(Nanos, MissedTicks),
    /// Receives values with a stream.
    Receive,
    /// Receives one value with `recv_async`.
    ReceiveOne,
    /// Bits: keys whose events it awaits; and whether it has a condition.
    Wait(u32, bool, Delay),
    /// Bits: keys with a threshold; how far these are ahead; and whether all must be reached.
    WaitForValues(u32, u64, bool, Delay),
}

impl Dice<'_> {
    fn task_step(&mut self) -> TaskStep {
        let (back, delay) = (self.back(), self.delay());
        match self.0.u32(0..43) {
            0..13 => TaskStep::Spawn(self.job(delay)),
            13..22 => TaskStep::Run(self.0.usize(1..8), self.0.u64(0..u64::MAX)),
            22..27 => TaskStep::Poll(back, self.one_in(2)),
            27..31 => TaskStep::Reset(back, delay),
            31..34 => TaskStep::Drop(back),
            34..36 => TaskStep::Open(back),
            36..38 => TaskStep::Insert(Delay::Nanos(self.skewed(40))),
            38..40 => TaskStep::Announce(self.key()),
            40..42 => TaskStep::Advance(self.key(), self.growth()),
            _ => TaskStep::Finish(self.0.usize(0..4), self.0.u64(0..u64::MAX)),
        }
    }

    fn job(&mut self, delay: Delay) -> Job {
        let missed = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip];
        match self.0.u32(0..12) {
            0..3 => Job::Sleep(delay),
            3 => Job::Timeout(delay),
            4 => Job::Interval(self.skewed(55), self.pick(&missed)),
            5..7 => Job::Receive,
            7 => Job::ReceiveOne,
            8..10 => Job::Wait(self.keys(), self.one_in(2), delay),
            _ => Job::WaitForValues(self.keys(), self.growth() - 1, self.one_in(2), delay),
        }
    }
}
