//! Group commit: one transaction for all the commands that wait.
//!
//! Callers put commands into a queue, and one thread takes all that wait, writes them in one
//! transaction, and answers each caller. During a transaction, the next group collects. So one sync
//! serves all waiting callers, and no caller waits for more than two syncs.
//!
//! If the store can write two groups at once, a second thread takes one when many callers wait.
//! The commands of an id keep their order: a group ends before a command whose id is in the other
//! group.
//!
//! A group that fails because of one command is split. A command whose record another transaction
//! has locked is set aside, with later ones of the same id, for another thread, which tries each
//! alone. After a few such commands, the rest of the group is set aside as well: each may take as
//! long as a wait.
//!
//! A settlement that could not be written is tried again until the store answers, and set aside if
//! its own record may be the reason. If the first try took effect after all, its claim is void and
//! the second one changes nothing.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashSet;

use super::{
    executor::{contain, run_contained},
    stats::Counters,
};
use crate::{
    error::{StoreError, StoreErrorReason, StoreResult},
    record::{MAX_PAYLOAD, Name, TimeoutId},
    store::{Answer, Command, Settlement, Store},
    time::WallTime,
};

/// Most commands of one transaction, except for a single larger batch.
const MAX_COMMANDS: usize = 8_192;

/// Commands of callers that wait when a second group is written.
const MANY: usize = 16;

/// Most bytes of payload of one transaction, except for a single larger batch.
const MAX_BYTES: usize = 16 * MAX_PAYLOAD;

/// Time until the next try of a group. That of a job that was set aside doubles with each try that
/// fails, up to [`MOST_DOUBLINGS`] times.
const RETRY: Duration = Duration::from_millis(200);

const MOST_DOUBLINGS: u32 = 3;

/// Most locked records of a group for which the thread of all commits waits.
const MAX_LOCKED: usize = 4;

/// Most jobs that the thread of locked records tries before it looks again whose time is over.
const TRIES: usize = 16;

/// Time for which a caller waits for a locked record, after its command was set aside.
pub(crate) const LOCKED: Duration = Duration::from_secs(10);

pub(super) struct Job {
    pub(super) commands: Vec<Command>,
    pub(super) reply: Reply,
    /// Until when a caller waits for a locked record; `None` until the job is set aside.
    limit: Option<Instant>,
    /// When it is tried again.
    turn: Instant,
    /// Tries that failed.
    failed: u32,
}

impl Job {
    pub(super) fn new(commands: Vec<Command>, reply: Reply) -> Self {
        Self { commands, reply, limit: None, turn: Instant::now(), failed: 0 }
    }

    fn ids(&self) -> impl Iterator<Item = &TimeoutId> {
        self.commands.iter().map(Command::id)
    }

    /// Returns whether one of its records is among these.
    fn is_of(&self, ids: &FxHashSet<TimeoutId>) -> bool {
        !ids.is_empty() && self.ids().any(|id| ids.contains(id))
    }

    pub(super) fn shares_id(&self, other: &Self) -> bool {
        self.ids().any(|id| other.ids().any(|other| id == other))
    }

    pub(super) fn is_settlement(&self) -> bool {
        matches!(self.reply, Reply::Settled(..))
    }

    /// Sets the next turn after a try that failed.
    fn rest(&mut self) {
        self.turn = Instant::now() + RETRY * (1 << self.failed.min(MOST_DOUBLINGS));
        self.failed += 1;
    }

    fn asked(&self) -> usize {
        if matches!(self.reply, Reply::Caller(_)) { self.commands.len() } else { 0 }
    }
}

/// Takes the answers for a caller. If it is dropped, the caller sees that the timer has ended.
pub(super) type Caller = Box<dyn FnOnce(StoreResult<&[Answer]>) + Send>;

pub(super) enum Reply {
    Caller(Caller),
    /// The driver, which learns that the record with this token is settled, and whether a policy
    /// skipped it.
    Settled(u64, bool),
    /// A caller that pauses a queue or resumes it. There are no commands.
    Paused(Name, bool, Caller),
}

#[derive(Default)]
pub(super) struct CommitQueue {
    state: Mutex<Waiting>,
    changed: [Condvar; 2],
    set_aside: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Number of their commands for which callers wait.
    asked: usize,
    aside: Aside,
    /// Ids of the commands that each thread is writing.
    under_way: [FxHashSet<TimeoutId>; 2],
    is_pausing: bool,
    is_closed: bool,
}

/// Jobs whose records are locked, in their order.
#[derive(Default)]
struct Aside {
    jobs: Vec<Job>,
    /// Ids of these jobs, and of those that are being tried.
    ids: FxHashSet<TimeoutId>,
}

impl Aside {
    fn add(&mut self, mut job: Job) {
        if matches!(job.reply, Reply::Caller(_)) {
            job.limit.get_or_insert_with(|| Instant::now() + LOCKED);
        }
        self.ids.extend(job.ids().cloned());
        self.jobs.push(job);
    }
}

impl Waiting {
    /// Takes a group: all jobs that wait, up to one whose id the other thread is writing.
    fn take(&mut self, thread: usize) -> Vec<Job> {
        let (mut group, mut commands, mut bytes) = (Vec::new(), 0, 0);
        while let Some(job) = self.jobs.pop_front() {
            // A pause waits for the groups under way, and is alone.
            if let Reply::Paused(..) = job.reply {
                let is_alone = group.is_empty();
                self.is_pausing = is_alone && self.under_way.iter().all(FxHashSet::is_empty);
                if self.is_pausing {
                    group.push(job);
                } else {
                    self.jobs.push_front(job);
                }
                break;
            }
            commands += job.commands.len();
            bytes += job.commands.iter().map(Command::payload_bytes).sum::<usize>();
            let is_full = !group.is_empty() && (commands > MAX_COMMANDS || bytes > MAX_BYTES);
            let is_held = job.is_of(&self.aside.ids);
            // A command of the group that fails must not come behind a later one of its id.
            let is_behind = is_held && job.is_of(&self.under_way[thread]);
            if is_full || is_behind || job.is_of(&self.under_way[1 - thread]) {
                self.jobs.push_front(job);
                break;
            }
            self.asked -= job.asked();
            if is_held {
                self.aside.add(job);
            } else {
                self.under_way[thread].extend(job.ids().cloned());
                group.push(job);
            }
        }
        group
    }
}

impl CommitQueue {
    /// Adds a job. If the queue is closed, the job is dropped, and its caller sees that.
    pub(super) fn push(&self, job: Job) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.asked += job.asked();
            state.jobs.push_back(job);
            self.changed[0].notify_one();
            if state.asked >= MANY {
                self.changed[1].notify_one();
            }
        }
    }

    /// Takes no more jobs. Those that wait are still written.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        for changed in self.changed.iter().chain([&self.set_aside]) {
            changed.notify_all();
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        let is_written = state.under_way.iter().all(FxHashSet::is_empty);
        state.jobs.is_empty() && state.aside.ids.is_empty() && is_written && !state.is_pausing
    }

    /// Waits for jobs, and takes a group; `None` once the queue is closed and empty. The second
    /// thread waits for many.
    fn take(&self, thread: usize) -> Option<Vec<Job>> {
        let mut state = self.state.lock();
        loop {
            let may_take = thread == 0 || state.asked >= MANY && !state.under_way[0].is_empty();
            let group = if may_take { state.take(thread) } else { Vec::new() };
            if !group.is_empty() {
                if state.asked >= MANY {
                    self.changed[1 - thread].notify_one();
                }
                return Some(group);
            }
            // Jobs of the other thread may have to be tried again.
            let is_last = state.jobs.is_empty() && state.under_way[1].is_empty();
            if state.is_closed && (is_last || !may_take) {
                return None;
            }
            self.changed[thread].wait(&mut state);
        }
    }

    /// Writes groups until the queue is closed. Runs on a thread, and on a second one if the store
    /// can write two groups at once.
    pub(super) fn run(&self, thread: usize, write: impl Fn(Vec<Job>) -> Failed) {
        while let Some(group) = self.take(thread) {
            let Failed { jobs, has_locked, .. } = write(group);
            let mut state = self.state.lock();
            // After the end, they are dropped with those that were set aside.
            if has_locked || state.is_closed {
                for job in jobs {
                    state.aside.add(job);
                }
                self.set_aside.notify_one();
            } else if !jobs.is_empty() {
                self.changed[thread].wait_for(&mut state, RETRY);
                // A pause that waits gets its own answer.
                let is_pause = |job: &&Job| matches!(job.reply, Reply::Paused(..));
                let pauses = state.jobs.iter().take_while(is_pause).count();
                for job in jobs.into_iter().rev() {
                    state.asked += job.asked();
                    state.jobs.insert(pauses, job);
                }
            }
            state.under_way[thread].clear();
            state.is_pausing = false;
            if state.is_closed || !state.jobs.is_empty() {
                self.changed[1 - thread].notify_one();
            }
        }
        self.drop_aside();
    }

    /// Drops jobs that nobody tries again, so that their callers see a closed channel. Each thread
    /// calls this at its end. The ids stay: one may be under way still, and later commands of it
    /// must not pass.
    fn drop_aside(&self) {
        let jobs = mem::take(&mut self.state.lock().aside.jobs);
        // Without the lock: this wakes callers.
        drop_jobs(jobs);
    }

    /// Tries the jobs that were set aside, until the queue is closed. Runs on a thread.
    pub(super) fn run_aside(
        &self,
        write: impl Fn(Vec<Job>) -> Failed,
        locked: impl Fn(&[&TimeoutId]) -> FxHashSet<TimeoutId>,
    ) {
        let mut state = self.state.lock();
        while !state.is_closed {
            let jobs = mem::take(&mut state.aside.jobs);
            drop(state);
            let (left, is_down) = try_some(jobs, &write, &locked);
            // Then settlements do not cause a call each.
            let earliest = Instant::now() + if is_down { RETRY } else { Duration::ZERO };
            state = self.state.lock();
            let later = mem::replace(&mut state.aside.jobs, left);
            state.aside.jobs.extend(later);
            let (ids, turns) = turns(&state.aside.jobs);
            state.aside.ids = ids;
            let limits = state.aside.jobs.iter().filter_map(|job| job.limit);
            let next = turns.into_iter().map(|(turn, _)| turn).chain(limits).min();
            match next {
                _ if state.is_closed => {}
                Some(next) => drop(self.set_aside.wait_until(&mut state, next.max(earliest))),
                None => self.set_aside.wait(&mut state),
            }
        }
        drop(state);
        self.drop_aside();
    }
}

/// Tries some of the jobs that were set aside: those that have waited for their turn for the
/// longest time. Answers callers whose time is over, without a try. Returns the jobs that are left,
/// in their order, and whether the store seems to be down.
fn try_some(
    jobs: Vec<Job>,
    write: &impl Fn(Vec<Job>) -> Failed,
    locked: &impl Fn(&[&TimeoutId]) -> FxHashSet<TimeoutId>,
) -> (Vec<Job>, bool) {
    let (now, mut left) = (Instant::now(), Vec::new());
    for job in jobs {
        match job {
            Job { reply: Reply::Caller(caller), limit: Some(limit), .. } if limit <= now => {
                tell(caller, Err(StoreError::new(StoreErrorReason::Locked)));
            }
            job => left.push(job),
        }
    }
    let (_, mut turns) = turns(&left);
    turns.retain(|(turn, _)| *turn <= now);
    turns.sort_unstable();
    turns.truncate(TRIES);
    let ids: Vec<_> = turns.iter().flat_map(|(_, place)| left[*place].ids()).collect();
    let locked = if ids.is_empty() { FxHashSet::default() } else { locked(&ids) };
    let mut left: Vec<_> = left.into_iter().map(Some).collect();
    for (_, place) in turns {
        if let Some(job) = left[place].as_mut().filter(|job| job.is_of(&locked)) {
            job.turn = Instant::now() + RETRY;
        } else {
            let mut failed = write(left[place].take().into_iter().collect());
            left[place] = failed.jobs.pop();
            if failed.is_down {
                return (left.into_iter().flatten().collect(), true);
            }
        }
    }
    (left.into_iter().flatten().collect(), false)
}

/// Returns the ids of jobs, and the turn and the place of each one that is behind no other of its
/// id.
fn turns(jobs: &[Job]) -> (FxHashSet<TimeoutId>, Vec<(Instant, usize)>) {
    let (mut ids, mut turns) = (FxHashSet::default(), Vec::new());
    for (place, job) in jobs.iter().enumerate() {
        if !job.is_of(&ids) {
            turns.push((job.turn, place));
        }
        ids.extend(job.ids().cloned());
    }
    (ids, turns)
}

/// Jobs to be tried again, in their order.
#[derive(Default)]
pub(super) struct Failed {
    pub(super) jobs: Vec<Job>,
    /// Apart from others: the record of one is locked, or that of a settlement may be damaged.
    pub(super) has_locked: bool,
    /// An error had nothing to do with a record.
    pub(super) is_down: bool,
}

/// Jobs with their places in a group.
type Part = Vec<(usize, Job)>;

/// Writes a group in one transaction, or in several if a command fails because of its own record,
/// and answers the callers. Adds the tokens of deliveries that have ended.
pub(super) fn write_group(
    store: &dyn Store,
    now: WallTime,
    group: Vec<Job>,
    counters: &Counters,
    ended: &mut Vec<u64>,
) -> Failed {
    // The last one is next. One without a try is set aside.
    let mut parts = vec![(group.into_iter().enumerate().collect::<Part>(), true)];
    let (mut failed, mut has_locked, mut tries_apart) = (Part::new(), false, 0);
    let mut is_down = false;
    // Ids of failed jobs. Later commands of these wait as well.
    let mut behind = FxHashSet::default();
    while let Some((part, is_tried)) = parts.pop() {
        let (late, mut part) = split_behind(part, &mut behind);
        failed.extend(late);
        let mut is_apart = true;
        if !part.is_empty() && is_tried && tries_apart < MAX_LOCKED {
            let Err(error) = write_part(store, now, &mut part, counters, ended) else { continue };
            let reason = error.reason();
            is_apart = is_of_one(&part, reason);
            is_down |= !is_apart;
            if is_apart && part.len() > 1 {
                parts.extend(split(store, part, reason));
                continue;
            }
            if reason != StoreErrorReason::Locked {
                counters.store_errors.add(1);
                emit!(warn, error = &error as &dyn std::error::Error, "commit failed");
                let fail = |(place, job)| Some((place, fail(job, &error, ended)?));
                part = part.into_iter().filter_map(fail).collect();
            }
            for (_, job) in &mut part {
                job.rest();
            }
            tries_apart += usize::from(is_apart && !part.is_empty());
        }
        has_locked |= is_apart && !part.is_empty();
        behind.extend(ids(&part).cloned());
        failed.append(&mut part);
    }
    failed.sort_unstable_by_key(|(place, _)| *place);
    Failed { jobs: failed.into_iter().map(|(_, job)| job).collect(), has_locked, is_down }
}

/// Writes jobs in one transaction, and answers their callers. After an error they stay.
fn write_part(
    store: &dyn Store,
    now: WallTime,
    part: &mut Part,
    counters: &Counters,
    ended: &mut Vec<u64>,
) -> StoreResult<()> {
    let commands: Vec<_> = part.iter().flat_map(|(_, job)| &job.commands).cloned().collect();
    let start = Instant::now();
    let result = contain(|| store.write(now, &commands));
    counters.store_latency.record(start.elapsed());
    let answers = result?;
    let mut rest = &answers[..];
    counters.commits.add(1);
    counters.commands.add(commands.len());
    for (_, job) in part.drain(..) {
        // A store may give too few.
        let (given, others) = rest.split_at(job.commands.len().min(rest.len()));
        reply(job, given, ended, counters);
        rest = others;
    }
    Ok(())
}

/// Returns whether the record of one command may be the reason of an error.
fn is_of_one(part: &Part, reason: StoreErrorReason) -> bool {
    match reason {
        StoreErrorReason::Locked | StoreErrorReason::Refused | StoreErrorReason::Corrupt => true,
        StoreErrorReason::Other => part.iter().any(|(_, job)| job.is_settlement()),
        _ => false,
    }
}

/// Splits jobs after one of them made all of them fail. The caller of this function writes the
/// second part first.
fn split(store: &dyn Store, part: Part, reason: StoreErrorReason) -> [(Part, bool); 2] {
    let mut apart = FxHashSet::default();
    if reason == StoreErrorReason::Locked {
        apart = locked(store, &ids(&part).collect::<Vec<_>>());
    } else if reason == StoreErrorReason::Other {
        // The record of a settlement may be the reason, and must not fail callers.
        let settlements = part.iter().filter(|(_, job)| job.is_settlement());
        apart.extend(settlements.flat_map(|(_, job)| job.ids()).cloned());
    }
    let (mut second, mut first) = split_behind(part, &mut apart);
    let is_tried = reason != StoreErrorReason::Locked || second.is_empty();
    if is_tried && (first.is_empty() || second.is_empty()) {
        first.append(&mut second);
        second = first.split_off(first.len() / 2);
    }
    [(second, is_tried), (first, true)]
}

/// Tells the caller of a job that the store returned an error. Returns the job if it is a
/// settlement that the thread tries again.
fn fail(mut job: Job, error: &StoreError, ended: &mut Vec<u64>) -> Option<Job> {
    // Only the text of a settlement can be refused. Without it, it must not be lost.
    let is_refused = error.reason() == StoreErrorReason::Refused && !forget_texts(&mut job);
    let is_over = is_refused || error.reason() == StoreErrorReason::Closed;
    match job.reply {
        Reply::Caller(caller) => tell(caller, Err(error.clone())),
        Reply::Settled(token, _) if is_over => ended.push(token),
        Reply::Settled(..) => return Some(job),
        Reply::Paused(..) => (),
    }
    None
}

fn ids(part: &Part) -> impl Iterator<Item = &TimeoutId> {
    part.iter().flat_map(|(_, job)| job.ids())
}

/// Returns which records are locked, as far as the store can tell.
pub(super) fn locked(store: &dyn Store, ids: &[&TimeoutId]) -> FxHashSet<TimeoutId> {
    contain(|| store.locked(ids)).unwrap_or_default().into_iter().collect()
}

/// Splits off the jobs of some records, and later ones of the same ids, which it adds.
fn split_behind(part: Part, ids: &mut FxHashSet<TimeoutId>) -> (Part, Part) {
    part.into_iter().partition(|(_, job)| {
        let is_behind = job.is_of(ids);
        ids.extend(job.ids().filter(|_| is_behind).cloned());
        is_behind
    })
}

/// Replaces the texts of errors in settlements. Returns whether there was another one.
fn forget_texts(job: &mut Job) -> bool {
    const REFUSED: &str = "the store refused the text of the error";
    let mut has_changed = false;
    for command in &mut job.commands {
        if let Command::Settle(
            _,
            Settlement::Retry { error, .. }
            | Settlement::Dead { error }
            | Settlement::Leave { error, .. },
        ) = command
            && error != REFUSED
        {
            REFUSED.clone_into(error);
            has_changed = true;
        }
    }
    has_changed
}

/// Answers a caller. Its waker may panic.
pub(super) fn tell(caller: Caller, answers: StoreResult<&[Answer]>) {
    run_contained(|| caller(answers));
}

/// Drops jobs, whose callers then see that the timer has ended. Their wakers may panic.
pub(super) fn drop_jobs(jobs: impl IntoIterator<Item = Job>) {
    jobs.into_iter().for_each(|job| run_contained(|| drop(job)));
}

fn reply(job: Job, answers: &[Answer], ended: &mut Vec<u64>, counters: &Counters) {
    match job.reply {
        Reply::Caller(caller) => tell(caller, Ok(answers)),
        Reply::Settled(token, is_skipped) => {
            ended.push(token);
            let [Command::Settle(_, settlement)] = &job.commands[..] else { return };
            let total = match settlement {
                // One that is refused ends no delivery.
                Settlement::Release | Settlement::Leave { .. } => return,
                _ if answers.contains(&Answer::Settled(false)) => &counters.fenced,
                _ if is_skipped => &counters.skipped,
                Settlement::Done | Settlement::Again(_) => &counters.acknowledged,
                Settlement::Retry { .. } => &counters.retries,
                Settlement::Dead { .. } => &counters.dead,
            };
            total.add(1);
        }
        Reply::Paused(..) => (),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap, sync::mpsc, thread};

    use fastrand::Rng;

    use super::{super::executor::tests::PanicsAtDrop, *};

    /// Returns a job that requeues some ids, each at the time that is the number of the job. No
    /// caller waits for the answers.
    fn job(number: u64, ids: impl IntoIterator<Item = u64>) -> Job {
        let at = WallTime::from_micros(number).expect("in range");
        let command =
            |id: u64| Command::Requeue(TimeoutId::new(id.to_string()).expect("valid"), at);
        Job::new(ids.into_iter().map(command).collect(), Reply::Caller(Box::new(|_| ())))
    }

    fn commands(jobs: &[Job]) -> Vec<Command> {
        jobs.iter().flat_map(|job| job.commands.clone()).collect()
    }

    /// As during a lock of the table, when each try takes a while and more commands come than go.
    #[test]
    fn callers_whose_time_is_over_are_answered_without_a_try() {
        let (sender, answers) = mpsc::channel();
        let over = |number| {
            let sender = sender.clone();
            let tell = move |answers: StoreResult<&[Answer]>| {
                sender.send(answers.expect_err("it is over").reason()).expect("the test waits");
            };
            let reply = Reply::Caller(Box::new(tell));
            Job { reply, limit: Some(Instant::now()), ..job(number, [number]) }
        };
        let jobs = (0..9).map(over).collect();
        let (left, _) = try_some(jobs, &|_| panic!("a try"), &|_| FxHashSet::default());
        let answers: Vec<_> = answers.try_iter().collect();
        assert_eq!((left.len(), answers), (0, vec![StoreErrorReason::Locked; 9]));
    }

    /// So callers whose time is over wait for few tries, and a failing job stops no other, however
    /// long a try takes.
    #[test]
    fn a_round_tries_few_jobs_and_first_those_that_have_waited_for_the_longest_time() {
        let (most, tried) = (TRIES as u64, Mutex::new(Vec::new()));
        let write = |mut jobs: Vec<Job>| {
            tried.lock().extend(commands(&jobs));
            jobs.iter_mut().for_each(Job::rest);
            Failed { jobs, has_locked: true, is_down: false }
        };
        let mut left: Vec<_> = (0..most + 4).map(|number| job(number, [number])).collect();
        let all = commands(&left);
        let second: Vec<_> = (most..most + 4).chain(0..most - 4).collect();
        for expected in [(0..most).collect(), second] {
            left = try_some(left, &write, &|_| FxHashSet::default()).0;
            let expected = expected.into_iter().flat_map(|number| job(number, [number]).commands);
            assert_eq!(mem::take(&mut *tried.lock()), expected.collect::<Vec<_>>());
            assert_eq!(commands(&left), all);
            // All rests are over.
            for job in &mut left {
                job.turn -= LOCKED;
            }
        }
    }

    /// So callers wait for one call that has no answer, and settlements cause no call each.
    #[test]
    fn a_round_ends_if_the_store_is_down() {
        let tries = Cell::new(0);
        let down = |_| {
            tries.set(tries.get() + 1);
            Failed { is_down: true, ..Failed::default() }
        };
        let jobs = (0..9).map(|number| job(number, [number])).collect();
        let (left, is_down) = try_some(jobs, &down, &|_| FxHashSet::default());
        assert_eq!((left.len(), tries.get(), is_down), (8, 1, true));
    }

    /// Otherwise callers of free records would wait for it, and those of its record for each other.
    #[test]
    fn a_locked_record_takes_no_tries_of_others_and_then_its_jobs_do_not_rest() {
        let mut left: Vec<_> = (0..9).map(|number| job(number, [0])).collect();
        left.push(job(9, [1]));
        let locked: FxHashSet<_> = left[0].ids().cloned().collect();
        let tries = Cell::new(0);
        let write = |_| {
            tries.set(tries.get() + 1);
            Failed::default()
        };
        left = try_some(left, &write, &|_| locked.clone()).0;
        assert_eq!((left.len(), tries.get()), (9, 1));
        left = try_some(left, &write, &|ids| panic!("it asks for {ids:?}")).0;
        left[0].turn -= LOCKED;
        for rest in (0..9).rev() {
            left = try_some(left, &write, &|_| FxHashSet::default()).0;
            assert_eq!(left.len(), rest);
        }
    }

    /// A command waits for a group, and an earlier one of its id is being tried, when the queue is
    /// closed. The second thread ends first.
    #[test]
    fn a_command_does_not_pass_an_earlier_one_of_its_id_when_its_queue_is_closed() {
        let queue = &CommitQueue::default();
        let (sender, tries) = mpsc::channel();
        let write = |group: Vec<Job>| {
            let (end, ended) = mpsc::channel::<()>();
            sender.send((group[0].commands.clone(), end)).expect("no more groups");
            let _ = ended.recv();
            Failed::default()
        };
        let id = |number| job(number, [number]).commands;
        thread::scope(|scope| {
            queue.state.lock().aside.add(job(1, [1]));
            scope.spawn(|| queue.run_aside(write, |_| FxHashSet::default()));
            let (first, end_first) = tries.recv().expect("a try");
            queue.push(job(2, [2]));
            scope.spawn(|| queue.run(0, write));
            let (second, end_second) = tries.recv().expect("a group");
            assert_eq!((first, second), (id(1), id(2)));
            queue.push(job(1, [1]));
            queue.close();
            scope.spawn(|| queue.run(1, write)).join().expect("it ends");
            drop(tries);
            drop(end_second);
            // The thread of the group has looked at the other command.
            while !queue.state.lock().jobs.is_empty() {
                thread::yield_now();
            }
            drop(end_first);
        });
    }

    /// The first may fail, and is set aside behind those that are set aside before.
    #[test]
    fn a_batch_behind_a_locked_record_waits_for_its_commands_in_the_group() {
        let mut waiting = Waiting::default();
        waiting.aside.add(job(0, [1]));
        waiting.jobs.extend([job(1, [2]), job(2, [1, 2]), job(3, [1])]);
        waiting.asked = 4;
        let ids = |jobs: &[Job]| jobs.iter().map(|job| job.commands.len()).collect::<Vec<_>>();
        assert_eq!(ids(&waiting.take(0)), [1]);
        assert_eq!((waiting.jobs.len(), waiting.aside.jobs.len()), (2, 1));
        waiting.under_way[0].clear();
        assert!(waiting.take(0).is_empty());
        assert_eq!((waiting.jobs.len(), waiting.aside.jobs.len()), (0, 3));
        // In a group that fails, a command behind the batch waits as well.
        let mut ids = waiting.aside.jobs[0].ids().cloned().collect();
        let group = [job(0, [1, 2]), job(1, [2]), job(2, [3])].into_iter().enumerate().collect();
        let (behind, others) = split_behind(group, &mut ids);
        assert_eq!((behind.len(), others.len()), (2, 1));
    }

    /// The first one may have to try jobs of the second one again.
    #[test]
    fn both_threads_end_when_the_second_is_the_last_to_write() {
        let queue = &CommitQueue::default();
        let (sender, groups) = mpsc::channel();
        let write = |_| {
            let (end, ended) = mpsc::channel::<()>();
            sender.send(end).expect("the test waits");
            let _ = ended.recv();
            Failed::default()
        };
        thread::scope(|scope| {
            queue.push(job(0, [0]));
            scope.spawn(|| queue.run(0, write));
            let first = groups.recv().expect("a group");
            queue.push(job(1, 1..=MANY as u64));
            scope.spawn(|| queue.run(1, write));
            let second = groups.recv().expect("a group beside it");
            queue.close();
            drop(first);
            while !queue.state.lock().under_way[0].is_empty() {
                thread::yield_now();
            }
            drop(second);
        });
        assert!(queue.is_idle());
    }

    fn pause() -> Job {
        Job::new(Vec::new(), Reply::Paused(Name::default(), true, Box::new(|_| ())))
    }

    #[test]
    fn a_pause_waits_for_the_group_of_the_other_thread_and_the_queue_is_idle_after_it() {
        let queue = CommitQueue::default();
        queue.push(job(0, [1]));
        assert_eq!(queue.state.lock().take(1).len(), 1);
        queue.push(pause());
        assert!(queue.state.lock().take(0).is_empty());
        queue.state.lock().under_way[1].clear();
        assert_eq!(queue.state.lock().take(0).len(), 1);
        assert!(!queue.is_idle(), "a pause is under way");
        queue.state.lock().is_pausing = false;
        assert!(queue.is_idle());
        queue.state.lock().aside.add(job(0, [1]));
        assert!(!queue.is_idle(), "a command waits for a locked record");
    }

    /// As those of a store that is down.
    #[test]
    fn a_pause_does_not_wait_for_jobs_that_are_tried_again() {
        let (queue, groups) = (CommitQueue::default(), Cell::new(Vec::new()));
        queue.push(job(0, [1]));
        queue.run(0, |jobs| {
            let mut seen = groups.take();
            seen.push(jobs[0].commands.len());
            let count = seen.len();
            groups.set(seen);
            if count > 1 {
                queue.close();
                return Failed::default();
            }
            queue.push(pause());
            Failed { jobs, is_down: true, ..Failed::default() }
        });
        assert_eq!(groups.take(), [1, 0, 1]);
    }

    /// Otherwise the thread of commits sleeps beside it, and `finish` waits for the pause.
    #[test]
    fn a_pause_does_not_stay_behind_a_command_that_is_set_aside() {
        let mut waiting = Waiting::default();
        waiting.aside.add(job(0, [1]));
        waiting.jobs.extend([job(1, [1]), pause()]);
        waiting.asked = 1;
        assert_eq!(waiting.take(0).len(), 1);
        assert_eq!((waiting.jobs.len(), waiting.aside.jobs.len()), (0, 2));
    }

    #[test]
    fn a_command_that_is_set_aside_during_a_try_of_another_one_is_tried() {
        let (queue, tried) = (CommitQueue::default(), Cell::new(0));
        queue.state.lock().aside.add(job(0, [0]));
        let write = |_| {
            match tried.replace(tried.get() + 1) {
                0 => queue.state.lock().aside.add(job(1, [1])),
                _ => queue.close(),
            }
            Failed::default()
        };
        queue.run_aside(write, |_| FxHashSet::default());
        assert_eq!(tried.get(), 2);
    }

    /// A command waits behind a settlement that cannot be written now.
    #[test]
    fn a_queue_that_is_closed_contains_the_panic_of_a_caller() {
        let (queue, waker) = (CommitQueue::default(), PanicsAtDrop);
        let reply = Reply::Caller(Box::new(move |_| drop(waker)));
        queue.push(Job { reply, ..job(0, [0]) });
        queue.run(0, |jobs| {
            queue.close();
            Failed { jobs, is_down: true, ..Failed::default() }
        });
    }

    /// Some records are locked, and the store fails sometimes.
    #[test]
    fn commands_of_an_id_are_written_in_their_order_and_by_one_thread_at_a_time() {
        let queue = &CommitQueue::default();
        let (active, written) = (&Mutex::new(FxHashSet::default()), &Mutex::new(BTreeMap::new()));
        let (rng, mut count) = (&Mutex::new(Rng::with_seed(1)), 0);
        let clashes = &Mutex::new(Vec::new());
        let write = |group: Vec<Job>| {
            let ids: FxHashSet<_> = group.iter().flat_map(Job::ids).cloned().collect();
            for id in &ids {
                if !active.lock().insert(id.clone()) {
                    clashes.lock().push(id.clone());
                }
            }
            let [yields, down, lock] = [20, 100, 20].map(|most| rng.lock().u8(..most));
            (0..yields).for_each(|_| thread::yield_now());
            let mut locked = ids.clone();
            if down > 0 {
                let one = rng.lock().choice(&ids).filter(|_| lock == 0).cloned();
                locked = one.into_iter().collect();
            }
            let group = group.into_iter().enumerate().collect();
            let (failed, group) = split_behind(group, &mut locked);
            for command in group.iter().flat_map(|(_, job)| &job.commands) {
                let Command::Requeue(id, at) = command else { unreachable!("no other kind") };
                written.lock().entry(id.clone()).or_insert_with(Vec::new).push(*at);
            }
            active.lock().retain(|id| !ids.contains(id));
            let jobs = failed.into_iter().map(|(_, job)| job).collect();
            Failed { jobs, has_locked: lock == 0, is_down: down == 0 }
        };
        thread::scope(|scope| {
            scope.spawn(|| queue.run(0, write));
            scope.spawn(|| queue.run(1, write));
            scope.spawn(|| queue.run_aside(write, |_| FxHashSet::default()));
            let mut rng = Rng::with_seed(2);
            for number in 0..3_000 {
                let ids: FxHashSet<_> = (0..rng.u64(1..12)).map(|_| rng.u64(..200)).collect();
                count += ids.len();
                // Many may be set aside, and wait for longer than a caller does.
                let limit = Some(Instant::now() + 60 * LOCKED);
                queue.push(Job { limit, ..job(number, ids) });
            }
            while !queue.is_idle() {
                thread::yield_now();
            }
            queue.close();
        });
        assert_eq!(*clashes.lock(), [], "two threads wrote these ids");
        let written = written.lock();
        assert!(written.values().all(|times| times.is_sorted()));
        assert_eq!(written.values().map(Vec::len).sum::<usize>(), count);
    }
}
