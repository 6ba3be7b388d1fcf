//! Workers with their leases, and queues: the one place for stores that keep them in this process.

use std::{collections::BTreeMap, mem, num::NonZeroU32, time::Duration};

use crate::{
    record::Name,
    store::{QueueState, WorkerId, WorkerLease},
    time::WallTime,
};

/// A lease that is longer by this is from before a step back of the clock.
const STEP: Duration = Duration::from_secs(60);

/// Most by which the clocks of workers differ.
const SKEW: Duration = Duration::from_secs(1);

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

    /// Extends a lease. Returns whether there was one, and removes the workers without one, unless
    /// this call is late.
    pub(crate) fn renew(
        &mut self,
        worker: WorkerId,
        now: WallTime,
        lease: Duration,
    ) -> (bool, Vec<WorkerId>) {
        let until = now.saturating_add(lease);
        let known = self.leases.get_mut(&worker);
        let is_in_time = known.as_deref().is_some_and(|old| *old >= now.saturating_add(lease / 2));
        // A late call shortens no lease. A much longer one is from before a step of the clock.
        let has_stepped = |old| old > until.saturating_add(STEP);
        let longer = |old| if has_stepped(old) { until } else { until.max(old) };
        let is_known = known.map(|old| *old = longer(*old)).is_some();
        let all = mem::take(&mut self.leases);
        let (lapsed, kept) = all.into_iter().partition(|&(_, until)| is_in_time && until < now);
        self.leases = kept;
        (is_known, BTreeMap::into_keys(lapsed).collect())
    }

    /// Returns the first workers. `holds` has the worker of each record, and whether its delivery
    /// is under way.
    pub(crate) fn leases(
        &self,
        limit: usize,
        holds: &(impl Iterator<Item = (Option<WorkerId>, bool)> + Clone),
    ) -> Vec<WorkerLease> {
        let lease = |(&worker, &until): (&WorkerId, &WallTime)| {
            let name = self.names.iter().find(|&(_, named)| *named == worker);
            let name = name.map(|(name, _)| name.clone());
            let mut lease = WorkerLease { worker, name, until, held: 0, delivering: 0 };
            for (_, is_begun) in holds.clone().filter(|&(holder, _)| holder == Some(worker)) {
                lease.held += 1;
                lease.delivering += u64::from(is_begun);
            }
            lease
        };
        self.leases.iter().take(limit).map(lease).collect()
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

/// The queues of a store, with whether each is paused, and the time up to which its permits are
/// given out.
pub(crate) struct Queues(BTreeMap<Name, (bool, WallTime)>);

impl Default for Queues {
    fn default() -> Self {
        Self(BTreeMap::from([<_>::default()]))
    }
}

impl Queues {
    pub(crate) fn add(&mut self, name: &Name) {
        if !self.is_known(name) {
            self.0.insert(name.clone(), <_>::default());
        }
    }

    pub(crate) fn is_known(&self, name: &Name) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn pause(&mut self, name: &Name, is_paused: bool) {
        self.0.entry(name.clone()).or_default().0 = is_paused;
    }

    pub(crate) fn is_paused(&self, name: &Name) -> bool {
        self.0.get(name).is_some_and(|&(is_paused, _)| is_paused)
    }

    pub(crate) fn list(&self) -> Vec<QueueState> {
        let state =
            |(name, &(is_paused, _)): (&Name, &_)| QueueState { name: name.clone(), is_paused };
        self.0.iter().map(state).collect()
    }

    pub(crate) fn permits(
        &mut self,
        name: &Name,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> (usize, WallTime) {
        let (interval, burst) = interval(rate);
        let (_, given) = self.0.entry(name.clone()).or_default();
        // The clock may have stepped back. That of another worker may be a little ahead.
        let has_stepped = *given > now.saturating_add(SKEW);
        let start = if has_stepped { now } else { *given };
        let start = start.max(now.saturating_sub(interval * burst));
        let free = now.since(start).as_micros() / interval.as_micros();
        let count = u32::try_from(free).unwrap_or(u32::MAX);
        let count = count.min(u32::try_from(most).unwrap_or(u32::MAX));
        *given = start.saturating_add(interval * count);
        (count as usize, given.saturating_add(interval))
    }
}

/// Returns the time between permits, and how many are kept.
pub(crate) fn interval(rate: NonZeroU32) -> (Duration, u32) {
    let micros = (1_000_000 / u64::from(rate.get())).max(1);
    (Duration::from_micros(micros), (rate.get() / 10).max(1))
}
