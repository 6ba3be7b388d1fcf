//! The order of live records by time: a table, a log, and the changes of the log in memory.
//!
//! A transaction copies each page that it touches, and random times touch a page for each record.
//! So a transaction appends its changes of the order to the log, and memory overlays the table with
//! them. Once the log has [`MAX_LOG`] changes, transactions also sweep through memory in the order
//! of times: they write the changes that come next to the table, many of each page at once. After a
//! sweep through all of memory, the older part of the log is no longer needed.
//!
//! Writing a change twice has no effect. So after a restart, memory has all changes of the log.

use std::{
    collections::{BTreeMap, btree_map},
    iter::Peekable,
};

use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::{Place, PlaceKey, after, read_place, stored_id};
use crate::record::TimeoutId;

/// Time of the next attempt and id, of records that are not dead. The log overlays it.
pub(super) const TIMES: TableDefinition<'static, PlaceKey, ()> = TableDefinition::new("times");

/// Changes of the order: time, id, and whether the record has this place after the change.
type Entry<'a> = Vec<(u64, &'a str, bool)>;

/// Changes of a transaction, by its number.
const LOG: TableDefinition<'static, u64, Entry<'static>> = TableDefinition::new("log");

/// Changes in the log above which transactions sweep. Tests sweep sooner.
const MAX_LOG: usize = if cfg!(test) { 40 } else { 1 << 17 };

/// Changes that a sweep writes to the table at once, at least.
const STRIDE: usize = if cfg!(test) { 6 } else { 1 << 10 };

/// The part of the order that the table may lack.
pub(super) struct Order {
    /// Whether a record has the place.
    recent: BTreeMap<Place, bool>,
    /// Number of the next entry of the log.
    next: u64,
    /// Changes in the log.
    logged: usize,
    /// Place from which the sweep continues.
    cursor: Place,
    /// Number of the first entry of the log that is newer than the sweep.
    began: u64,
    /// The table has all changes of entries with lower numbers.
    retired: u64,
    /// Changes that the sweep may write.
    credit: usize,
}

/// Changes of a transaction.
pub(super) struct Changes {
    new: Vec<(Place, bool)>,
    swept: Vec<(Place, bool)>,
    /// Changes that the transaction removes from the log.
    removed: usize,
    credit: usize,
}

impl Order {
    /// Creates the tables that are missing, and reads the log.
    pub(super) fn open(transaction: &WriteTransaction) -> Result<Self, redb::Error> {
        transaction.open_table(TIMES)?;
        let mut order = Self::empty();
        for entry in transaction.open_table(LOG)?.iter()? {
            let (number, changes) = entry?;
            order.next = number.value() + 1;
            for (time, id, is_kept) in changes.value() {
                order.logged += 1;
                order.recent.insert((time, stored_id(id)?), is_kept);
            }
        }
        // If the process restarts again and again, no sweep ends.
        if order.logged > MAX_LOG {
            write_places(transaction, order.recent.iter())?;
            transaction.delete_table(LOG)?;
            // The numbers go on: they tell whether a transaction was committed.
            transaction.open_table(LOG)?.insert(order.next - 1, Vec::new())?;
            order = Self { next: order.next, ..Self::empty() };
        }
        Ok(order)
    }

    fn empty() -> Self {
        Self {
            recent: BTreeMap::new(),
            next: 0,
            logged: 0,
            cursor: lowest(),
            began: 0,
            retired: 0,
            credit: 0,
        }
    }

    /// Returns the number of the next transaction that changes the order.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Writes changes to the log, and those of the sweep to the table.
    pub(super) fn write(
        &self,
        transaction: &WriteTransaction,
        new: Vec<(Place, bool)>,
    ) -> Result<Changes, redb::Error> {
        let mut log = transaction.open_table(LOG)?;
        let mut changes = Changes { swept: Vec::new(), removed: 0, credit: self.credit, new };
        // Deliveries only remove, and at the front of the order. They leave the sweep to
        // transactions that schedule, unless the log becomes much longer.
        if self.logged > 2 * MAX_LOG {
            changes.credit += 2 * changes.new.len();
        } else if self.logged > MAX_LOG {
            changes.credit += 2 * changes.new.iter().filter(|change| change.1).count();
        }
        if changes.credit >= STRIDE {
            let swept = self.recent.range(self.cursor.clone()..).take(changes.credit);
            write_places(transaction, swept.clone())?;
            changes.swept = swept.map(|(place, is_kept)| (place.clone(), *is_kept)).collect();
            while changes.removed < changes.credit {
                match log.first()? {
                    Some((number, entry)) if number.value() < self.retired => {
                        changes.removed += entry.value().len();
                    }
                    _ => break,
                }
                log.pop_first()?;
            }
        }
        let entry = changes.new.iter().map(|((time, id), is_kept)| (*time, id.as_str(), *is_kept));
        log.insert(self.next, entry.collect::<Entry<'_>>())?;
        Ok(changes)
    }

    /// The transaction has committed.
    pub(super) fn take_effect(&mut self, changes: Changes) {
        self.credit = changes.credit;
        if self.credit >= STRIDE {
            if self.cursor == lowest() {
                self.began = self.next;
            }
            for (place, _) in &changes.swept {
                self.recent.remove(place);
            }
            match changes.swept.last() {
                Some((place, _)) if changes.swept.len() == self.credit => {
                    self.cursor = after(place);
                }
                _ => (self.cursor, self.retired) = (lowest(), self.began),
            }
            self.credit = 0;
        }
        self.logged = self.logged - changes.removed + changes.new.len();
        self.recent.extend(changes.new);
        self.next += 1;
    }

    /// Returns the places of all live records from one on.
    pub(super) fn places<'o>(
        &'o self,
        transaction: &ReadTransaction,
        start: Place,
    ) -> Result<Places<'o>, redb::Error> {
        let table = transaction.open_table(TIMES)?;
        let rest = table.range((start.0, start.1.as_str())..)?;
        Ok(Places { rest, head: None, recent: self.recent.range(start..).peekable() })
    }
}

/// Places in order: those of the table, overlaid by those of the log.
pub(super) struct Places<'o> {
    rest: redb::Range<'static, PlaceKey, ()>,
    /// First place of the rest of the table.
    head: Option<Place>,
    recent: Peekable<btree_map::Range<'o, Place, bool>>,
}

impl Places<'_> {
    pub(super) fn next(&mut self) -> Result<Option<Place>, redb::Error> {
        loop {
            if self.head.is_none()
                && let Some(row) = self.rest.next()
            {
                self.head = Some(read_place(row?.0.value())?);
            }
            let head = self.head.as_ref();
            match self.recent.next_if(|(place, _)| head.is_none_or(|head| *place <= head)) {
                None => return Ok(self.head.take()),
                Some((place, is_kept)) => {
                    self.head = self.head.take().filter(|head| head != place);
                    if *is_kept {
                        return Ok(Some(place.clone()));
                    }
                }
            }
        }
    }
}

fn write_places<'o>(
    transaction: &WriteTransaction,
    places: impl Iterator<Item = (&'o Place, &'o bool)>,
) -> Result<(), redb::Error> {
    let mut times = transaction.open_table(TIMES)?;
    for ((time, id), is_kept) in places {
        let place = (*time, id.as_str());
        if *is_kept {
            times.insert(place, ())?;
        } else {
            times.remove(place)?;
        }
    }
    Ok(())
}

/// Returns the least place of all, which no record has.
pub(super) fn lowest() -> Place {
    (0, TimeoutId::lowest())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fastrand::Rng;
    use redb::{Database, ReadableDatabase, ReadableTableMetadata, backends::InMemoryBackend};

    use super::*;

    /// Each restart is one after a crash: only the tables are left.
    #[test]
    fn sweeps_and_restarts_change_no_place_and_keep_the_log_short() {
        let database = Database::builder().create_with_backend(InMemoryBackend::new());
        let database = database.expect("create");
        let write = |change: &dyn Fn(&WriteTransaction) -> Changes| {
            let transaction = database.begin_write().expect("begin");
            let changes = change(&transaction);
            transaction.commit().expect("commit");
            changes
        };
        let open = || {
            let transaction = database.begin_write().expect("begin");
            let order = Order::open(&transaction).expect("open");
            transaction.commit().expect("commit");
            order
        };
        let (mut rng, mut order, mut expected) = (Rng::with_seed(1), open(), BTreeSet::new());
        let (mut most, mut in_table) = (0, 0);
        for step in 0..1_500 {
            let times = if step < 1_000 { 200 } else { 2 };
            let new = (0..rng.usize(1..5)).map(|_| {
                let id = TimeoutId::new(rng.alphabetic().to_string()).expect("valid");
                ((rng.u64(..times), id), rng.bool())
            });
            let new: Vec<_> = new.collect();
            for (place, is_kept) in &new {
                if *is_kept {
                    expected.insert(place.clone());
                } else {
                    expected.remove(place);
                }
            }
            let changes =
                write(&|transaction| order.write(transaction, new.clone()).expect("write"));
            order.take_effect(changes);
            // No sweep ends between the first restarts.
            if rng.u8(..if step < 400 { 8 } else { 60 }) == 0 {
                order = open();
            }
            most = most.max(order.logged);
            let transaction = database.begin_read().expect("begin");
            in_table =
                transaction.open_table(TIMES).expect("table").len().expect("length").max(in_table);
            let start = (rng.u64(..times), TimeoutId::lowest());
            let mut places = order.places(&transaction, start.clone()).expect("places");
            for place in expected.range(start..) {
                assert_eq!(places.next().expect("read").as_ref(), Some(place));
            }
            assert_eq!(places.next().expect("read"), None);
        }
        assert!(in_table > 100, "{in_table} places were swept at most");
        assert!(most < 4 * MAX_LOG, "the log had {most} changes");
    }
}
