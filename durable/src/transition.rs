//! How a command changes a record: the one place for stores that keep records in this process.

use crate::{
    record::{Record, State, is_moved},
    store::{Answer, Cancelled, Command, Conflict, NewTimeout, Rescheduled, Scheduled, Settlement},
    time::WallTime,
};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// Writes it. No worker holds it.
    Put(Record),
    Remove,
}

/// Applies a command to the record of its id. `token` is a token that was never used.
pub(crate) fn apply(old: Option<Record>, command: &Command, token: u64) -> (Change, Answer) {
    match command {
        Command::Schedule(new) => {
            let (change, answer) = schedule(old.as_ref(), new, token);
            (change, Answer::Scheduled(answer))
        }
        Command::Cancel(_) => {
            let (change, answer) = match old {
                None => (Change::Nothing, Cancelled::NotFound),
                Some(old) if old.state == State::Delivering => {
                    (Change::Remove, Cancelled::Delivering)
                }
                Some(_) => (Change::Remove, Cancelled::Cancelled),
            };
            (change, Answer::Cancelled(answer))
        }
        Command::Reschedule(_, due) => {
            let (change, answer) = reschedule(old, *due, token);
            (change, Answer::Rescheduled(answer))
        }
        Command::Requeue(_, due) => match old {
            Some(old) if old.state == State::Dead && !is_moved(&old) => {
                let record = Record { attempt: 0, next: *due, ..pending(old, token) };
                (Change::Put(record), Answer::Requeued(true))
            }
            _ => (Change::Nothing, Answer::Requeued(false)),
        },
        Command::Purge(_) => match old {
            Some(old) if old.state == State::Dead && !is_moved(&old) => {
                (Change::Remove, Answer::Cancelled(Cancelled::Cancelled))
            }
            _ => (Change::Nothing, Answer::Cancelled(Cancelled::NotFound)),
        },
        Command::Settle(claim, settlement) => {
            let held = |old: &Record| {
                old.token == claim.token && matches!(old.state, State::Claimed | State::Delivering)
            };
            match old.filter(held) {
                None => (Change::Nothing, Answer::Settled(false)),
                Some(old) => (settle(old, settlement, token), Answer::Settled(true)),
            }
        }
    }
}

fn schedule(old: Option<&Record>, new: &NewTimeout, token: u64) -> (Change, Scheduled) {
    let keeps = |old: &Record| match new.conflict {
        Conflict::Replace => false,
        Conflict::Refuse | Conflict::Keep => true,
        Conflict::ReplaceChanged => old.state == State::Dead || is_same(old, new),
    };
    let answer = match old.map(|old| (keeps(old), old.state)) {
        None => Scheduled::Created,
        Some((true, State::Dead)) => return (Change::Nothing, Scheduled::KeptDead),
        Some((true, _)) => return (Change::Nothing, Scheduled::Kept),
        Some((_, State::Delivering)) => Scheduled::ReplacedDelivering,
        Some(_) => Scheduled::Replaced,
    };
    (Change::Put(pending_record(new, token)), answer)
}

/// Returns whether a record differs from a new timeout at most in its time.
fn is_same(old: &Record, new: &NewTimeout) -> bool {
    let part = (&new.repeat, &new.payload, &new.queue, new.priority, &new.key);
    (&old.repeat, &old.payload, &old.queue, old.priority, &old.key) == part
}

pub(crate) fn pending_record(new: &NewTimeout, token: u64) -> Record {
    Record {
        id: new.id.clone(),
        due: new.due,
        next: new.due,
        payload: new.payload.clone(),
        repeat: new.repeat.clone(),
        queue: new.queue.clone(),
        priority: new.priority,
        key: new.key.clone(),
        attempt: 0,
        state: State::Pending,
        token,
        error: None,
    }
}

fn reschedule(old: Option<Record>, due: WallTime, token: u64) -> (Change, Rescheduled) {
    match old.filter(|old| old.state != State::Dead) {
        None => (Change::Nothing, Rescheduled::NotFound),
        Some(old) if old.state == State::Delivering => (Change::Nothing, Rescheduled::Delivering),
        Some(old) => {
            let record = Record { due, next: due, attempt: 0, ..pending(old, token) };
            (Change::Put(record), Rescheduled::Rescheduled)
        }
    }
}

fn settle(old: Record, settlement: &Settlement, token: u64) -> Change {
    // If the delivery had begun, no handler has seen it.
    let unseen = old.attempt - u32::from(old.state == State::Delivering);
    let old = pending(old, token);
    let failed = |error: &String| Record { error: Some(error.clone()), ..old.clone() };
    // If the clock has stepped back, `at` may be before the due time. So may the time of a requeue.
    let later = |at: WallTime| at.max(old.due.min(old.next));
    Change::Put(match settlement {
        Settlement::Done => return Change::Remove,
        Settlement::Retry { at, error } => Record { next: later(*at), ..failed(error) },
        Settlement::Dead { error } => Record { state: State::Dead, ..failed(error) },
        Settlement::Again(due) => Record { due: *due, next: *due, attempt: 0, error: None, ..old },
        Settlement::Release => Record { attempt: unseen, ..old },
        Settlement::Leave { at, error } => {
            Record { attempt: unseen, next: later(*at), ..failed(error) }
        }
    })
}

fn pending(old: Record, token: u64) -> Record {
    Record { state: State::Pending, token, ..old }
}
