//! The purgatory of a world, and the model of its operations.

// The fuzz target names this file by its path, and looks for the module beside it.
#[path = "waits/operation.rs"]
mod operation;

use std::{
    mem,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use delaywheel::{
    Completion, Condition, DelayedOperation, OperationKey, Overload, Purgatory, Watch, WatchError,
    WatchErrorKind, Watched,
};

use self::operation::Op;
use crate::{
    books::{Books, Tick},
    fronts::duration,
    ledger::{Counts, Ledger, Number, Operation, State},
    script::{Action, Announce, Back, Delay, KEYS, Kind, THREADS, Wait},
    world::{World, this_thread},
};

type Shared = Purgatory<u32, Op>;

#[derive(Debug)]
pub(crate) struct Waits {
    purgatory: Shared,
    books: Mutex<Books>,
    ledger: Mutex<Ledger>,
}

impl Waits {
    pub(crate) fn new(world: &World) -> Arc<Self> {
        let setup = &world.setup;
        let timer = world.clock.builder(setup);
        let mut builder = Purgatory::builder().timer(timer);
        if let Some((max, overload)) = setup.max_delayed {
            builder = builder.max_delayed(max, overload);
        }
        if let Some((max, overload)) = setup.max_per_key {
            builder = builder.max_delayed_per_key(max, overload);
        }
        if let Some(max) = setup.max_delay {
            builder = builder.max_delay(duration(Delay::Nanos(max)));
        }
        let purgatory = builder.build().expect("the settings are in range");
        let books = Mutex::new(Books::new(&world.clock, setup.tick, None, THREADS));
        Arc::new(Self { purgatory, books, ledger: Mutex::default() })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self, world: &World) -> Tick {
        self.books().now(world.now())
    }

    pub(crate) fn wait(self: &Arc<Self>, world: &Arc<World>, wait: Wait) {
        let delay = match (wait.delay, world.setup.max_delay) {
            (Delay::Nanos(delay), Some(max)) => Delay::Nanos(delay.min(max)),
            (Delay::Endless, Some(max)) => Delay::Nanos(max),
            (delay, None) => delay,
        };
        let (number, watches) = self.enter(world, Wait { delay, ..wait });
        let op = Op { world: Arc::clone(world), waits: Arc::clone(self), number };
        let result = match wait.kind {
            Kind::Plain => {
                let keys = (0..KEYS).filter(|key| wait.events & (1 << key) > 0);
                self.purgatory.watch(op, keys, duration(wait.delay))
            }
            Kind::Any => self.purgatory.watch(op, Watch::any(watches), duration(wait.delay)),
            Kind::All => self.purgatory.watch(op, Watch::all(watches), duration(wait.delay)),
        };
        if !world.is_at_rest() {
            self.note_displaced();
        }
        self.conclude(world, number, &result);
    }

    /// Records the operations that user code has just displaced. They complete after that code.
    fn note_displaced(&self) {
        for operation in &mut self.ledger().operations {
            let is_out = |key| !self.purgatory.is_waiting(key);
            if operation.state == State::Waiting && operation.key.is_some_and(is_out) {
                operation.claims.push(Completion::Displaced);
            }
        }
    }

    /// The delay of an operation begins after its first check, which may have moved the clock.
    fn begin_delay(&self, world: &World, number: Number) {
        let mut ledger = self.ledger();
        let order = ledger.begin();
        let operation = &mut ledger.operations[number];
        if operation.checks == 1 && operation.state == State::Coming {
            operation.order = order;
            let books = self.books();
            operation.deadline = books.after(world.now(), operation.wait.delay);
            operation.since = books.since(world.now());
        }
    }

    fn enter(&self, world: &World, mut wait: Wait) -> (Number, Vec<Condition<u32>>) {
        let (deadline, since) = {
            let books = self.books();
            (books.after(world.now(), wait.delay), books.since(world.now()))
        };
        let mut ledger = self.ledger();
        if wait.kind == Kind::Plain {
            wait.values = 0;
        }
        let bits = |bits: u32| (0..KEYS).filter(move |key| bits & (1 << key) > 0);
        let thresholds: Vec<_> = bits(wait.values)
            .map(|key| (key, (ledger.values[key as usize] + wait.growth).saturating_sub(5)))
            .collect();
        let events = bits(wait.events).map(Condition::Events);
        let watches =
            events.chain(thresholds.iter().map(|&(key, at)| Condition::Threshold(key, at)));
        let watches = watches.collect();
        let order = ledger.begin();
        ledger.operations.push(Operation {
            wait,
            state: State::Coming,
            thresholds,
            deadline,
            since,
            order,
            shard: this_thread() % world.setup.shards,
            key: None,
            is_ready: wait.is_ready,
            checks: 0,
            is_announced: false,
            claims: Vec::new(),
            is_dropped: false,
        });
        (ledger.operations.len() - 1, watches)
    }

    fn conclude(&self, world: &World, number: Number, result: &Result<Watched, WatchError<Op>>) {
        let refusal = result.as_ref().err().map(|error| match error.kind() {
            WatchErrorKind::Full => "full",
            WatchErrorKind::KeyFull => "a key is full",
            WatchErrorKind::ShutDown => "shut down",
            _ => "no thread",
        });
        world.note((number, refusal));
        let is_at_rest = world.is_at_rest();
        let mut ledger = self.ledger();
        let load = ledger.waiting.len() as u64;
        let is_right = match (refusal, world.setup.max_delayed, world.setup.max_per_key) {
            (None, ..) => true,
            (Some("full"), Some((max, Overload::Refuse)), _) => load >= max || !is_at_rest,
            // The operations to displace are being checked.
            (Some("full"), Some(_), _) => !is_at_rest,
            (Some("a key is full"), _, Some(limit)) => {
                ledger.is_key_full(number, limit) || !is_at_rest
            }
            (Some("shut down"), ..) => ledger.is_shut_down,
            _ => false,
        };
        let state = ledger.operations[number].state;
        let is_consistent = match result {
            Ok(Watched::Completed) => {
                // `complete` ran before this call returned.
                ledger.counts.at_once += 1;
                ledger.counts.satisfied -= u64::from(state == State::Ended);
                state == State::Ended
            }
            Ok(Watched::Waiting(key)) => {
                ledger.operations[number].key = Some(*key);
                if state == State::Coming {
                    ledger.operations[number].state = State::Waiting;
                    ledger.waiting.insert(number);
                }
                true
            }
            Ok(other) => unreachable!("{other:?}"),
            Err(_) => {
                ledger.counts.refused += 1;
                ledger.operations[number].state = State::Ended;
                state == State::Coming
            }
        };
        let guarded = ledger.operations[number].wait.is_guarded;
        drop(ledger);
        if !is_right || !is_consistent {
            world.fault(format!("operation {number}: {refusal:?} with {load} waiting, {state:?}"));
        }
        if let (true, Ok(Watched::Waiting(key))) = (guarded, result) {
            self.claim(world, number, Completion::Cancelled, || {
                drop(self.purgatory.guard(*key));
                true
            });
        }
    }

    /// Records and checks the end of an operation. Returns its action.
    fn end(&self, world: &World, number: Number, completion: Completion) -> Action {
        let tick = self.tick(world);
        world.note((number, mem::discriminant(&completion)));
        let mut ledger = self.ledger();
        let is_satisfiable = ledger.is_satisfiable(number);
        let is_closed = ledger.is_shut_down;
        let is_to_go = ledger.is_to_go(number, &world.setup) || !world.is_at_rest();
        let counts = &mut ledger.counts;
        *match completion {
            Completion::Satisfied => &mut counts.satisfied,
            Completion::Expired => &mut counts.expired,
            Completion::Cancelled => &mut counts.cancelled,
            Completion::Displaced => &mut counts.displaced,
            _ => &mut counts.shut_down,
        } += 1;
        ledger.waiting.remove(&number);
        let operation = &mut ledger.operations[number];
        let before = mem::replace(&mut operation.state, State::Ended);
        let is_right = match completion {
            Completion::Satisfied => {
                is_satisfiable || operation.claims.contains(&Completion::Satisfied)
            }
            Completion::Expired => operation.deadline <= tick,
            Completion::Displaced => is_to_go || operation.claims.contains(&completion),
            Completion::ShutDown => is_closed,
            cancelled => operation.claims.contains(&cancelled),
        };
        if before == State::Ended || !is_right {
            world.fault(format!("operation {number} ended as {completion:?}: {operation:?}"));
        }
        match operation.wait.on_end {
            // The delay of the newcomer begins after this action, so the model could not know its
            // deadline.
            Action::Pass(_) if completion == Completion::Displaced => Action::Nothing,
            action => action,
        }
    }

    /// Ends an operation with `act`, which returns whether it was waiting.
    fn claim(
        &self,
        world: &World,
        number: Number,
        completion: Completion,
        act: impl FnOnce() -> bool,
    ) {
        let was_waiting = {
            let mut ledger = self.ledger();
            let operation = &mut ledger.operations[number];
            operation.claims.push(completion);
            operation.state == State::Waiting
        };
        let is_won = act();
        if world.is_at_rest() && is_won && self.ledger().waiting.contains(&number) {
            world.fault(format!("operation {number} still waits after its end"));
        }
        if world.is_at_rest()
            && is_won != was_waiting
            && !self.ledger().operations[number].wait.is_guarded
        {
            world.fault(format!("the end of operation {number} returned {is_won}"));
        }
        if !is_won {
            // Removes only its own claim: an earlier claim that won may not have completed yet.
            let claims = &mut self.ledger().operations[number].claims;
            if let Some(own) = claims.iter().rposition(|claim| *claim == completion) {
                claims.remove(own);
            }
        }
    }

    pub(crate) fn complete(&self, world: &World, back: Back) {
        let Some((number, key)) = self.pick(back) else { return };
        self.claim(world, number, Completion::Satisfied, || self.purgatory.complete(key));
    }

    pub(crate) fn cancel(&self, world: &World, back: Back) {
        let Some((number, key)) = self.pick(back) else { return };
        self.claim(world, number, Completion::Cancelled, || {
            // If it is being checked, the checking thread completes it.
            let was_waiting = self.purgatory.is_waiting(key);
            let cancelled = self.purgatory.cancel(key);
            let is_won = was_waiting || cancelled.is_some();
            self.answer(cancelled, Completion::Cancelled);
            is_won
        });
    }

    fn pick(&self, back: Back) -> Option<(Number, OperationKey)> {
        let ledger = self.ledger();
        let number = ledger.pick(back)?;
        Some((number, ledger.operations[number].key?))
    }

    pub(crate) fn cancel_key(&self, world: &World, key: u32) {
        let mut ledger = self.ledger();
        // This includes operations that are being registered or checked.
        for operation in &mut ledger.operations {
            if operation.state != State::Ended && operation.is_on_key(key) {
                operation.claims.push(Completion::Cancelled);
            }
        }
        drop(ledger);
        self.answer(self.purgatory.cancel_for_key(&key), Completion::Cancelled);
        if !world.is_acting() {
            // The remaining operations had reached the value of that key before.
            for operation in &mut self.ledger().operations {
                operation.claims.retain(|claim| *claim != Completion::Cancelled);
            }
        }
    }

    pub(crate) fn check(&self, key: u32) {
        self.ledger().announce(key);
        self.purgatory.check_and_complete(&key);
    }

    pub(crate) fn grow(&self, key: u32, by: u64) {
        let value = {
            let mut ledger = self.ledger();
            ledger.values[key as usize] += by;
            ledger.values[key as usize]
        };
        self.purgatory.advance(&key, value);
    }

    fn make_ready(&self, back: Back) -> Vec<u32> {
        let mut ledger = self.ledger();
        let Some(number) = ledger.pick(back) else { return Vec::new() };
        let operation = &mut ledger.operations[number];
        operation.is_ready = true;
        let keys: Vec<_> = (0..KEYS).filter(|key| operation.watches(*key)).collect();
        for key in &keys {
            ledger.announce(*key);
        }
        keys
    }

    pub(crate) fn shut_down(&self) {
        self.ledger().is_shut_down = true;
        self.answer(self.purgatory.shutdown(), Completion::ShutDown);
    }

    fn answer(&self, operations: impl IntoIterator<Item = Op>, completion: Completion) {
        for op in operations {
            let answer = AssertUnwindSafe(|| op.complete(completion));
            if panic::catch_unwind(answer).is_err() {
                // The panic was outside of the purgatory, which does not count it.
                self.ledger().counts.panicked -= 1;
            }
        }
    }

    pub(crate) fn announce(self: &Arc<Self>, world: &Arc<World>, announce: Announce) {
        match announce {
            Announce::Ready(back) => {
                for key in self.make_ready(back) {
                    self.purgatory.check_and_complete(&key);
                }
            }
            Announce::Shrink => self.purgatory.shrink(),
            Announce::ShutDown => self.shut_down(),
            Announce::Close => self.close(world),
            Announce::Renew => world.renew_waits(),
        }
    }

    fn close(&self, world: &World) {
        self.ledger().is_shut_down = true;
        for op in self.purgatory.shutdown() {
            world.note(("closed", op.number));
            let mut ledger = self.ledger();
            ledger.waiting.remove(&op.number);
            ledger.operations[op.number].state = State::Ended;
            ledger.counts.shut_down += 1;
        }
    }

    pub(crate) fn see(&self, world: &World) {
        self.books().see(world.now());
    }

    pub(crate) fn is_behind(&self, world: &World) -> bool {
        self.see(world);
        let tick = self.tick(world);
        let ledger = self.ledger();
        ledger.waiting.iter().any(|number| ledger.operations[*number].deadline <= tick)
    }

    pub(crate) fn operations(&self) -> u64 {
        self.ledger().operations.len() as u64
    }

    pub(crate) fn check_invariants(&self) {
        self.purgatory.check_invariants();
    }

    pub(crate) fn compare(&self, world: &World) {
        self.see(world);
        let tick = self.tick(world);
        let stats = self.purgatory.stats();
        let ledger = self.ledger();
        let reported = Counts {
            at_once: stats.at_once,
            satisfied: stats.satisfied,
            expired: stats.expired,
            cancelled: stats.cancelled,
            displaced: stats.displaced,
            shut_down: stats.shut_down,
            refused: stats.refused,
            panicked: stats.panicked,
        };
        let now = [stats.delayed, stats.watched, stats.keys, stats.timer.pending];
        let watched = ledger.waiting.iter().map(|number| ledger.watchers(*number)).sum();
        let waiting = ledger.waiting.len() as u64;
        let known = [waiting, watched, ledger.keys(), waiting];
        if now != known || reported != ledger.counts {
            let counts = &ledger.counts;
            world.fault(format!("{now:?} {reported:?}, not {known:?} {counts:?}"));
        }
        if stats.delayed > world.setup.max_delayed.map_or(u64::MAX, |(max, _)| max) {
            world.fault(format!("{} operations wait, more than the limit", stats.delayed));
        }
        self.compare_keys(world, &ledger);
        for number in &ledger.waiting {
            let operation = &ledger.operations[*number];
            let is_held = world.is_swept() && operation.deadline <= tick;
            let is_missed = ledger.missing(*number) < operation.thresholds.len()
                && ledger.is_satisfiable(*number)
                && (operation.wait.kind == Kind::Any || !operation.is_checked());
            if is_held
                || operation.is_announced
                || is_missed
                || operation.claims.iter().any(|claim| *claim != Completion::Cancelled)
            {
                world.fault(format!("operation {number} still waits at {tick}: {operation:?}"));
            }
        }
    }

    fn compare_keys(&self, world: &World, ledger: &Ledger) {
        let max = world.setup.max_per_key.map_or(u64::MAX, |(max, _)| max);
        for key in 0..KEYS {
            let count = ledger.taken(key);
            if count > max {
                world.fault(format!("{count} permits of key {key} are taken, more than the limit"));
            }
        }
        for (number, operation) in ledger.operations.iter().enumerate() {
            let reported = operation.key.map(|key| self.purgatory.is_waiting(key));
            if reported.is_some_and(|reported| reported != ledger.waiting.contains(&number)) {
                world.fault(format!("`is_waiting` of operation {number} returned {reported:?}"));
            }
        }
    }

    /// Checks, at the end of the world, that every operation has been dropped.
    pub(crate) fn check_dropped(&self, world: &World) {
        let ledger = self.ledger();
        if let Some(number) = ledger.operations.iter().position(|operation| !operation.is_dropped) {
            world.fault(format!(
                "operation {number} was never dropped: {:?}",
                ledger.operations[number]
            ));
        }
    }
}
