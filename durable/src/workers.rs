//! Workers and their leases: the one place for stores that keep claims in this process.

use std::{collections::BTreeMap, mem, time::Duration};

use crate::{store::WorkerId, time::WallTime};

#[derive(Default)]
pub(crate) struct Workers {
    leases: BTreeMap<WorkerId, WallTime>,
    names: BTreeMap<String, WorkerId>,
    last: u64,
}

impl Workers {
    /// Adds a worker. Returns also the earlier one of its name, whose records it takes.
    pub(crate) fn enter(
        &mut self,
        until: WallTime,
        name: Option<&str>,
    ) -> (WorkerId, Option<WorkerId>) {
        self.last += 1;
        let worker = WorkerId(self.last);
        self.leases.insert(worker, until);
        (worker, name.and_then(|name| self.names.insert(name.to_owned(), worker)))
    }

    pub(crate) fn remove(&mut self, worker: WorkerId) {
        self.leases.remove(&worker);
    }

    pub(crate) fn is_known(&self, worker: WorkerId) -> bool {
        self.leases.contains_key(&worker)
    }

    /// Extends a lease. Returns whether there was one, and removes the workers without one.
    pub(crate) fn renew(
        &mut self,
        worker: WorkerId,
        now: WallTime,
        lease: Duration,
    ) -> (bool, Vec<WorkerId>) {
        let known = self.leases.get_mut(&worker);
        let is_known = known.map(|old| *old = now.saturating_add(lease).max(*old)).is_some();
        let all = mem::take(&mut self.leases);
        let (lapsed, kept) = all.into_iter().partition(|&(_, until)| until < now);
        self.leases = kept;
        (is_known, BTreeMap::into_keys(lapsed).collect())
    }

    /// Returns each worker with the end of its lease and its name.
    pub(crate) fn leases(
        &self,
    ) -> impl Iterator<Item = (WorkerId, WallTime, Option<String>)> + use<'_> {
        let name = |id| self.names.iter().find(|&(_, named)| *named == id).map(|(name, _)| name);
        self.leases.iter().map(move |(&id, &until)| (id, until, name(id).cloned()))
    }

    /// Returns when the first lease ends of these workers, but for one of them.
    pub(crate) fn lapse(
        &self,
        holders: impl Iterator<Item = WorkerId>,
        except: WorkerId,
    ) -> Option<WallTime> {
        if self.leases.len() < 2 {
            return None;
        }
        let others = holders.filter(|&holder| holder != except);
        others.filter_map(|holder| self.leases.get(&holder).copied()).min()
    }
}
