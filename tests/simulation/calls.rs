//! The calls on the timers of a world, and checks of their answers.

use std::{sync::Arc, time::Duration};

use delaywheel::{ScheduleError, ScheduleErrorKind, TimeoutHandle};

use crate::{
    books::{Due, Number, State},
    fronts::{Facade, Front, Handle},
    script::{Action, Back, When},
    world::{World, lock},
};

impl Front {
    /// Schedules a timeout. `handle` makes the handle of a closure.
    pub(crate) fn schedule(
        self: &Arc<Self>,
        world: &Arc<World>,
        (when, action): (When, Action),
        handle: fn(TimeoutHandle) -> Handle,
    ) {
        let due = self.due(world, when);
        let (number, token) = self.enter(world, due, action);
        let load = self.books().load(world.now(), world.is_in_turn());
        let (delay, instant, time) = world.values_of(when);
        macro_rules! schedule {
            ($timer:ident, $value:expr) => {
                match when {
                    When::After(_) => $timer.schedule(delay, $value),
                    When::At(_) => $timer.schedule_at(instant, $value),
                    When::AtTime(_) => $timer.schedule_at_time(time, $value),
                    When::Within(_, slack) => {
                        let end = delay.saturating_add(Duration::from_nanos(slack));
                        $timer.schedule_within(delay..=end, $value)
                    }
                }
            };
        }
        let result = match (&self.timer, when) {
            (Facade::Closures(timer), _) => {
                answer(schedule!(timer, move || token.run()).map(handle))
            }
            (Facade::Values(timer), _) => answer(schedule!(timer, token).map(Handle::Key)),
            (Facade::Queue(queue), When::At(_)) => {
                answer(queue.insert_at(instant, token).map(Handle::Key))
            }
            (Facade::Queue(queue), _) => answer(queue.insert(delay, token).map(Handle::Key)),
        };
        self.conclude(world, number, load, result);
    }

    fn due(&self, world: &World, when: When) -> Due {
        let (books, now) = (self.books(), world.now());
        match when {
            When::After(delay) => Due::Tick(books.after(now, delay)),
            When::At(delay) => Due::Tick(books.at(now, world.time_for(delay))),
            When::AtTime(_) => {
                let time = world.values_of(when).2;
                // Later steps back do not move it.
                let has_passed = time <= world.clock.wall();
                if has_passed { Due::Tick(books.now(now)) } else { Due::Time(time) }
            }
            When::Within(delay, slack) => Due::Tick(books.within(now, delay, slack)),
        }
    }

    fn conclude(
        &self,
        world: &World,
        number: Number,
        (least, most): (u64, u64),
        result: Result<Handle, ScheduleErrorKind>,
    ) {
        let mut books = self.books();
        let max = books.max_pending.unwrap_or(u64::MAX);
        let is_closed = books.is_shut_down || books.is_draining;
        let is_right = match &result {
            Ok(_) => least < max && !is_closed,
            Err(ScheduleErrorKind::Full) => most >= max && !is_closed,
            Err(ScheduleErrorKind::ShutDown) => is_closed,
            Err(_) => false,
        };
        if let Ok(handle) = result {
            books.accept(number);
            lock(&self.handles)[number] = Some(Arc::new(handle));
        } else {
            self.note(world, number, State::Refused);
            books.refuse(number);
            if !books.entries[number].is_dropped {
                world.fault(format!("timeout {number} was refused, and not handed back"));
            }
        }
        drop(books);
        if !is_right {
            let state = self.books().entries[number].state;
            world.fault(format!("{state:?} with {least}..={most} of {max}, closed: {is_closed}"));
        }
    }

    pub(crate) fn cancel(&self, world: &World, back: Back) {
        let Some(number) = self.books().pick(back) else { return };
        self.cancel_number(world, number);
    }

    pub(crate) fn cancel_number(&self, world: &World, number: Number) {
        let Some(handle) = self.handle(number) else { return };
        let expected = self.expectation(world, number);
        let is_cancelled = match (&self.timer, &*handle) {
            (_, Handle::Guard(_)) => {
                // The drop of the guard cancels the timeout.
                lock(&self.handles)[number] = None;
                drop(handle);
                let books = self.books();
                let entry = &books.entries[number];
                entry.state == State::Pending && entry.is_dropped
            }
            (Facade::Values(timer), Handle::Key(key)) => timer.cancel(*key).map(drop).is_some(),
            (Facade::Queue(queue), Handle::Key(key)) => queue.cancel(*key).map(drop).is_some(),
            (_, handle) => handle.timeout().is_some_and(TimeoutHandle::cancel),
        };
        if expected.is_some_and(|expected| expected != is_cancelled) {
            world.fault(format!("cancelling timeout {number} said {is_cancelled}"));
        }
        let mut books = self.books();
        if is_cancelled {
            self.note(world, number, State::Cancelled);
            books.leave(number, State::Cancelled);
            if !books.entries[number].is_dropped {
                world.fault(format!("timeout {number} was cancelled, and not dropped"));
            }
        } else if books.entries[number].state == State::Pending {
            books.hand_off(number, world.first_turn());
        }
    }

    fn expectation(&self, world: &World, number: Number) -> Option<bool> {
        self.books().expectation(number, world.now(), world.is_in_turn())
    }

    pub(crate) fn reset(&self, world: &World, back: Back, when: When) {
        let Some(number) = self.books().pick(back) else { return };
        let Some(handle) = self.handle(number) else { return };
        let expected = self.expectation(world, number);
        let due = self.due(world, when);
        let (span, instant, time) = world.values_of(when);
        let is_reset = match (&self.timer, &*handle) {
            (Facade::Values(timer), Handle::Key(key)) => match when {
                When::At(_) => timer.reset_at(*key, instant),
                When::AtTime(_) => timer.reset_at_time(*key, time),
                _ => timer.reset(*key, span),
            },
            (Facade::Queue(queue), Handle::Key(key)) => queue.reset(*key, span),
            (_, handle) => handle.timeout().is_some_and(|timeout| match when {
                When::At(_) => timeout.reset_at(instant),
                When::AtTime(_) => timeout.reset_at_time(time),
                _ => timeout.reset(span),
            }),
        };
        if expected.is_some_and(|expected| expected != is_reset) {
            world.fault(format!("resetting timeout {number} said {is_reset}"));
        }
        let mut books = self.books();
        if is_reset {
            let came = books.now(world.now());
            let entry = &mut books.entries[number];
            (entry.due, entry.came, entry.since) = (due, came, world.turn());
        } else if books.entries[number].state == State::Pending {
            books.hand_off(number, world.first_turn());
        }
    }

    pub(crate) fn query(&self, world: &World, back: Back) {
        let Some(number) = self.books().pick(back) else { return };
        let Some(handle) = self.handle(number) else { return };
        let expected = self.expectation(world, number);
        let (is_pending, reported) = match (&self.timer, &*handle) {
            (Facade::Values(timer), Handle::Key(key)) => {
                (timer.is_pending(*key), timer.deadline(*key))
            }
            (Facade::Queue(_), _) => return,
            (_, handle) => handle
                .timeout()
                .map_or((false, None), |timeout| (timeout.is_pending(), timeout.deadline())),
        };
        if expected.is_some_and(|expected| expected != is_pending) {
            world.fault(format!("timeout {number} says that it is pending: {is_pending}"));
        }
        if expected == Some(true) {
            let books = self.books();
            let entry = &books.entries[number];
            let Due::Tick(deadline) = entry.due else { return };
            // The wheel replaces a deadline that has passed with its own time.
            let begin = books.begin_of(deadline).map(|time| world.instant_of(time));
            if deadline > entry.came && begin != reported {
                world.fault(format!("timeout {number}: {reported:?}, not {begin:?}"));
            }
        }
    }
}

/// Converts the answer of a timer. Drops the value that a refusal handed back.
fn answer<T>(result: Result<Handle, ScheduleError<T>>) -> Result<Handle, ScheduleErrorKind> {
    result.map_err(|error| error.kind())
}
