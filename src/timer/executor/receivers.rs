//! Tasks that wait for values of a queue, in the order in which they began to wait.
//!
//! # Protocol
//!
//! - A poll takes a value, or leaves its waker under its ticket, in one hold of the backlog's lock.
//! - Each put removes the wakers with the least tickets, at most one for each value in the backlog,
//!   and wakes them. A close removes all.
//! - A woken task finds no value if another receiver was faster. It waits again with the same
//!   ticket, so it stays ahead of tasks that began later.
//! - A woken task that drops its receiver wakes the next task, if there is a value.
//!
//! A waiting task takes one entry of a `BTreeMap`. So it allocates only if the map needs a further
//! node, which has room for 11 entries.
//!
//! *Invariant*: while a value is in the backlog and a waker under a ticket, a woken task has not
//! polled yet. That task takes the value, or passes the wake-up to the next task.

use std::{collections::BTreeMap, task::Waker, vec::Vec};

use super::handler::contain;

/// The number of a waiting task, in the order of arrival; `None` if the task does not wait.
pub(super) type Ticket = Option<u64>;

/// The wakers of the waiting tasks, by ticket.
pub(super) struct Receivers {
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

impl Receivers {
    pub(super) const fn new() -> Self {
        Self { waiting: BTreeMap::new(), next_ticket: 0 }
    }

    /// Returns whether the waker under a ticket wakes the same task.
    pub(super) fn will_wake(&self, ticket: Ticket, waker: &Waker) -> bool {
        let held = ticket.and_then(|ticket| self.waiting.get(&ticket));
        held.is_some_and(|held| held.will_wake(waker))
    }

    /// Adds a waker under a ticket, which may be a new one. Returns the replaced waker.
    pub(super) fn insert(&mut self, ticket: &mut Ticket, waker: Waker) -> Option<Waker> {
        let ticket = *ticket.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        debug_assert!(ticket <= self.next_ticket, "ticket {ticket} was not given out");
        self.waiting.insert(ticket, waker)
    }

    /// Clears a ticket. Returns its waker, or `None` if a put or a close has removed it.
    pub(super) fn remove(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        self.waiting.remove(&ticket.take()?)
    }

    /// Removes the waker that has waited longest.
    pub(super) fn pop_first(&mut self) -> Option<Waker> {
        self.waiting.pop_first().map(|(_, waker)| waker)
    }

    /// Removes up to `count` wakers, longest waiting first.
    pub(super) fn pop_up_to(&mut self, count: usize) -> Vec<Waker> {
        (0..count).map_while(|_| self.pop_first()).collect()
    }
}

/// Wakes tasks. A waker that panics does not stop the others, and is not counted.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| contain(|| waker.wake()));
}
