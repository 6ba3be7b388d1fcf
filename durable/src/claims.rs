//! What a store of one process keeps in memory: workers with their leases, claims, and queues.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    record::{Claim, Name, Priority, Record, State, TimeoutId},
    store::{Begun, WorkerId, WorkerLease, interval},
    time::WallTime,
};

/// A lease that ends later than a new one would, by more than this, began before a step back of
/// the clock.
const STEP: Duration = Duration::from_secs(60);

/// Most by which the clocks of workers differ.
const SKEW: Duration = Duration::from_secs(1);

/// Records are kept as pending or dead. What differs while a worker holds them is here.
#[derive(Default)]
pub(crate) struct Claims {
    /// A change of a record removes its hold.
    pub(crate) holds: Holds,
    pub(crate) queues: BTreeMap<Name, Queue>,
    pub(crate) last_token: u64,
    /// Records are pending again, and their timers have to be told.
    pub(crate) has_voided: bool,
    /// When the lease of each worker ends, and the name that it may have.
    leases: BTreeMap<WorkerId, (WallTime, Option<String>)>,
    last_worker: u64,
    /// Records that another transaction has locked.
    #[cfg(test)]
    pub(crate) locked: Vec<TimeoutId>,
}

pub(crate) type Holds = FxHashMap<TimeoutId, Hold>;

#[derive(Clone)]
pub(crate) struct Hold {
    /// `None` after the worker lost its lease; then only the number of attempts counts.
    pub(crate) worker: Option<WorkerId>,
    pub(crate) token: u64,
    pub(crate) next: WallTime,
    pub(crate) begun: bool,
    pub(crate) attempt: u32,
    pub(crate) queue: Name,
    pub(crate) priority: Priority,
    key: Option<Name>,
}

impl Hold {
    pub(crate) fn is_of(&self, claim: &Claim) -> bool {
        self.worker.is_some() && self.token == claim.token
    }

    pub(crate) fn is_delivering(&self) -> bool {
        self.begun && self.worker.is_some()
    }
}

impl Claims {
    /// Adds a worker, which takes the records of an earlier one of its name.
    pub(crate) fn enter(&mut self, until: WallTime, name: Option<&str>) -> WorkerId {
        let mut names = self.leases.iter().map(|(&old, (_, name))| (old, name.as_deref()));
        if let Some((old, _)) = names.find(|(_, old)| old.is_some() && *old == name) {
            self.take_from(old);
        }
        self.last_worker += 1;
        let worker = WorkerId(self.last_worker);
        self.leases.insert(worker, (until, name.map(str::to_owned)));
        worker
    }

    pub(crate) fn is_known(&self, worker: WorkerId) -> bool {
        self.leases.contains_key(&worker)
    }

    /// Extends a lease, and takes the records of workers without one, unless this call is late.
    /// Returns whether there was a lease.
    pub(crate) fn renew(&mut self, worker: WorkerId, now: WallTime, lease: Duration) -> bool {
        let until = now.saturating_add(lease);
        let known = self.leases.get_mut(&worker).map(|(until, _)| until);
        let is_in_time = known.as_deref().is_some_and(|old| *old >= now.saturating_add(lease / 2));
        // A late call shortens no lease. A much longer one is from before a step of the clock.
        let has_stepped = |old| old > until.saturating_add(STEP);
        let longer = |old| if has_stepped(old) { until } else { until.max(old) };
        let is_known = known.map(|old| *old = longer(*old)).is_some();
        let lapsed = self.leases.iter().filter(|(_, (until, _))| is_in_time && *until < now);
        for worker in lapsed.map(|(&worker, _)| worker).collect::<Vec<_>>() {
            self.take_from(worker);
        }
        is_known
    }

    /// Removes a worker, and voids its claims.
    pub(crate) fn take_from(&mut self, worker: WorkerId) {
        self.leases.remove(&worker);
        self.keep_only(worker, &[]);
        self.has_voided = true;
    }

    /// Voids the claims of a worker but for some, and returns their number.
    pub(crate) fn keep_only(&mut self, worker: WorkerId, tokens: &[u64]) -> u64 {
        let (tokens, mut taken) = (tokens.iter().collect::<FxHashSet<_>>(), 0);
        self.holds.retain(|_, hold| {
            if hold.worker == Some(worker) && !tokens.contains(&hold.token) {
                (hold.worker, taken) = (None, taken + 1);
            }
            hold.worker.is_some() || hold.attempt > 0
        });
        self.has_voided |= taken > 0;
        taken
    }

    pub(crate) fn leases(&self, limit: usize) -> Vec<WorkerLease> {
        let lease = |(&worker, (until, name)): (&WorkerId, &(WallTime, Option<String>))| {
            let (until, name) = (*until, name.clone());
            let holds = self.holds.values().filter(|hold| hold.worker == Some(worker));
            let delivering = holds.clone().filter(|hold| hold.begun).count() as u64;
            WorkerLease { worker, name, until, held: holds.count() as u64, delivering }
        };
        self.leases.iter().take(limit).map(lease).collect()
    }

    /// Returns when the first lease ends of the workers that hold records, but for one of them.
    pub(crate) fn lapse(&self, except: WorkerId) -> Option<WallTime> {
        if self.leases.len() < 2 {
            return None;
        }
        let others = self.holds.values().filter_map(|hold| hold.worker);
        let others = others.filter(|&holder| holder != except);
        others.filter_map(|holder| Some(self.leases.get(&holder)?.0)).min()
    }

    pub(crate) fn is_held(&self, id: &str) -> bool {
        self.holds.get(id).is_some_and(|hold| hold.worker.is_some())
    }

    /// Gives a record to a worker, with a new token.
    pub(crate) fn hold(&mut self, record: &mut Record, worker: WorkerId) {
        self.last_token += 1;
        (record.token, record.state) = (self.last_token, State::Claimed);
        let hold = Hold {
            worker: Some(worker),
            token: record.token,
            next: record.next,
            begun: false,
            attempt: record.attempt,
            queue: record.queue.clone(),
            priority: record.priority,
            key: record.key.clone(),
        };
        self.holds.insert(record.id.clone(), hold);
    }

    pub(crate) fn begin(
        &mut self,
        now: WallTime,
        claims: &[Claim],
        key_limit: Option<NonZeroUsize>,
    ) -> Vec<Begun> {
        let mut running = FxHashMap::<_, usize>::default();
        let holds = key_limit.iter().flat_map(|_| self.holds.values());
        for hold in holds.filter(|hold| hold.is_delivering()) {
            if let Some(key) = &hold.key {
                *running.entry((hold.queue.clone(), key.clone())).or_default() += 1;
            }
        }
        let begin = |claim: &Claim| {
            let hold = self.holds.get_mut(&claim.id);
            let may_begin = |hold: &&mut Hold| hold.is_of(claim) && !hold.begun && hold.next <= now;
            let Some(hold) = hold.filter(may_begin) else { return Begun::Void };
            #[cfg(test)]
            if self.locked.contains(&claim.id) {
                return Begun::Locked;
            }
            if self.queues.get(&hold.queue).is_some_and(|queue| queue.is_paused) {
                return Begun::Paused;
            }
            if let (Some(limit), Some(key)) = (key_limit, &hold.key) {
                let running = running.entry((hold.queue.clone(), key.clone())).or_default();
                if *running >= limit.get() {
                    return Begun::Busy;
                }
                *running += 1;
            }
            (hold.begun, hold.attempt) = (true, hold.attempt + 1);
            Begun::Begun
        };
        claims.iter().map(begin).collect()
    }
}

/// Returns a record as it is with its hold.
pub(crate) fn view(record: Record, holds: &Holds) -> Record {
    let Some(hold) = holds.get(&record.id) else { return record };
    let record = Record { attempt: hold.attempt, ..record };
    if hold.worker.is_none() {
        return record;
    }
    let state = if hold.begun { State::Delivering } else { State::Claimed };
    Record { state, token: hold.token, ..record }
}

/// A queue that is or was paused, or has a rate.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) is_paused: bool,
    /// The time up to which its permits are given out.
    given: WallTime,
}

impl Queue {
    pub(crate) fn permits(
        &mut self,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> (usize, WallTime) {
        let (interval, burst) = interval(rate);
        // The clock may have stepped back. That of another worker may be a little ahead.
        let has_stepped = self.given > now.saturating_add(SKEW);
        let start = if has_stepped { now } else { self.given };
        let start = start.max(now.saturating_sub(interval * burst));
        let free = now.since(start).as_micros() / interval.as_micros();
        let count = u32::try_from(free).unwrap_or(u32::MAX);
        let count = count.min(u32::try_from(most).unwrap_or(u32::MAX));
        let given = start.saturating_add(interval * count);
        if count > 0 || has_stepped {
            self.given = given;
        }
        (count as usize, given.saturating_add(interval))
    }
}
