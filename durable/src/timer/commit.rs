//! Group commit: one transaction for all the commands that wait.
//!
//! Callers put commands into a queue, and one thread takes all that wait, writes them in one
//! transaction, and answers each caller. During a transaction, the next group collects. So one sync
//! serves all waiting callers, and no caller waits for more than two syncs.
//!
//! A settlement that could not be written is tried again until the store answers. If the first try
//! took effect after all, its claim is void and the second one changes nothing.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{executor::contain, stats::Counters};
use crate::{
    error::{StoreError, StoreErrorReason},
    record::MAX_PAYLOAD,
    store::{Answer, Command, Store},
    time::WallTime,
};

/// Most commands of one transaction, except for a single larger batch.
const MAX_COMMANDS: usize = 8_192;

/// Most bytes of payload of one transaction, except for a single larger batch.
const MAX_BYTES: usize = 16 * MAX_PAYLOAD;

/// Time between tries of settlements.
const RETRY: Duration = Duration::from_millis(200);

/// Commands that are written in one transaction, and who waits for the answers.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) commands: Vec<Command>,
    pub(super) reply: Reply,
}

/// Who waits for the answers.
#[derive(Debug)]
pub(super) enum Reply {
    /// A caller.
    Caller(oneshot::Sender<Result<Vec<Answer>, StoreError>>),
    /// The driver, which learns that the delivery with this token is settled, and how to count it.
    Settled(u64, Counted),
    /// No caller.
    None,
}

/// How a settlement counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    Acknowledged,
    Retried,
    Dead,
    /// Not at all: the record is as it was before the claim.
    Released,
}

/// The effects of a transaction on the driver.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Tokens of deliveries that have ended.
    pub(super) ended: Vec<u64>,
    /// Earliest time at which a record became due.
    pub(super) due: Option<WallTime>,
}

/// Jobs that wait for a transaction.
#[derive(Debug, Default)]
pub(super) struct CommitQueue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl CommitQueue {
    /// Adds a job. Hands it back if the queue is closed.
    pub(super) fn push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes no more jobs. Those that wait are still written.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for jobs, and takes a group; `None` once the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Job>> {
        let mut state = self.state.lock();
        while state.jobs.is_empty() {
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
        let (mut group, mut commands, mut bytes) = (Vec::new(), 0, 0);
        while let Some(job) = state.jobs.pop_front() {
            commands += job.commands.len();
            bytes += job.commands.iter().map(payload).sum::<usize>();
            if !group.is_empty() && (commands > MAX_COMMANDS || bytes > MAX_BYTES) {
                state.jobs.push_front(job);
                break;
            }
            group.push(job);
        }
        Some(group)
    }

    /// Waits before the next try, or until the queue is closed.
    fn pause(&self) {
        let mut state = self.state.lock();
        if !state.is_closed {
            self.changed.wait_for(&mut state, RETRY);
        }
    }

    /// Puts settlements back that could not be written. After the end of the timer it drops them,
    /// and a later timer delivers their records again.
    pub(super) fn retry(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        self.pause();
        let mut state = self.state.lock();
        if !state.is_closed {
            for job in jobs.into_iter().rev() {
                state.jobs.push_front(job);
            }
        }
    }
}

/// Writes a group in one transaction and answers the callers. Returns the settlements that have to
/// be tried again.
pub(super) fn write_group(
    store: &dyn Store,
    now: WallTime,
    mut group: Vec<Job>,
    counters: &Counters,
) -> (Outcome, Vec<Job>) {
    let mut commands = Vec::with_capacity(group.iter().map(|job| job.commands.len()).sum());
    let counts: Vec<_> = group.iter().map(|job| job.commands.len()).collect();
    for job in &mut group {
        commands.append(&mut job.commands);
    }
    let start = Instant::now();
    let result = contain(|| store.write(now, &commands));
    counters.store_latency.record(start.elapsed());
    let mut outcome = Outcome::default();
    match result {
        Ok(answers) => {
            counters.commits.add(1);
            counters.commands.add(commands.len());
            outcome.due = commands.iter().filter_map(Command::due).min();
            let mut answers = answers.into_iter();
            for (job, count) in group.into_iter().zip(counts) {
                let answers: Vec<_> = answers.by_ref().take(count).collect();
                reply(job.reply, answers, &mut outcome, counters);
            }
            (outcome, Vec::new())
        }
        Err(error) => {
            counters.store_errors.add(1);
            #[cfg(feature = "tracing")]
            tracing::warn!(error = &error as &dyn std::error::Error, "commit failed");
            let mut commands = commands.into_iter();
            let mut again = Vec::new();
            for (mut job, count) in group.into_iter().zip(counts) {
                job.commands.extend(commands.by_ref().take(count));
                match job.reply {
                    // The caller may have gone.
                    Reply::Caller(sender) => drop(sender.send(Err(error.clone()))),
                    Reply::Settled(..) | Reply::None => again.push(job),
                }
            }
            if error.reason() == StoreErrorReason::Closed {
                again.clear();
            }
            (outcome, again)
        }
    }
}

fn reply(reply: Reply, answers: Vec<Answer>, outcome: &mut Outcome, counters: &Counters) {
    match reply {
        // The caller may have gone.
        Reply::Caller(sender) => drop(sender.send(Ok(answers))),
        Reply::None => (),
        Reply::Settled(token, counted) => {
            outcome.ended.push(token);
            let total = match counted {
                _ if answers.contains(&Answer::Settled(false)) => &counters.fenced,
                Counted::Acknowledged => &counters.acknowledged,
                Counted::Retried => &counters.retries,
                Counted::Dead => &counters.dead,
                Counted::Released => return,
            };
            total.add(1);
        }
    }
}

fn payload(command: &Command) -> usize {
    match command {
        Command::Schedule(new) => new.payload.len(),
        _ => 0,
    }
}
