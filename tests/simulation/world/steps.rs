//! The effect of each step of a script, and of each action of user code, on a world.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use delaywheel::TimeoutHandle;

use super::{World, lock};
use crate::{
    books::Number,
    fronts::{Front, Handle},
    script::{Action, Delay, Kind, Step, Wait, When},
};

impl World {
    /// Runs the action. Returns whether the user code must panic.
    pub(super) fn act_now(&self, action: Action, own: Option<(Arc<Front>, Number)>) -> bool {
        let this = self.this();
        match action {
            Action::Panic => return true,
            Action::Schedule(front, delay) => {
                let call = (When::After(delay), Action::Nothing);
                self.front(front).schedule(&this, call, Handle::Timeout);
            }
            Action::ScheduleAndPanic(front, delay) => {
                let call = (When::After(delay), Action::Panic);
                self.front(front).schedule(&this, call, Handle::Timeout);
                return true;
            }
            Action::Cancel(front, back) => self.front(front).cancel(self, back),
            Action::CancelSelf => {
                if let Some((front, number)) = own {
                    front.cancel_number(self, number);
                }
            }
            Action::Reset(front, back, delay) => {
                self.front(front).reset(self, back, When::After(delay));
            }
            Action::Query(front, back) => self.front(front).query(self, back),
            Action::Wait(events, delay) => self.waits().wait(&this, plain_wait(events, delay)),
            Action::Check(key) => self.waits().check(key),
            Action::Grow(key, by) => self.waits().grow(key, by),
            Action::Complete(back) => self.waits().complete(self, back),
            Action::CancelOperation(back) => self.waits().cancel(self, back),
            Action::CancelKey(key) => self.waits().cancel_key(self, key),
            Action::Pass(span) if self.clock.is_exact() => {
                self.exactness(false);
                if self.is_in_turn() {
                    self.in_turn(|| self.clock.pass(span));
                    self.is_ahead.store(true, Relaxed);
                } else {
                    self.pass(|| self.clock.pass(span));
                    // This user code may next schedule a timeout that is due at once.
                    *lock(&self.is_swept) = false;
                }
            }
            // A callback moves only an exact clock.
            Action::Nothing | Action::Pass(_) => {}
            Action::ShutDown(front) => self.front(front).shut_down(self),
            Action::Drain(front) => self.front(front).drain(self, 0),
            Action::ShutDownPurgatory => self.waits().shut_down(),
        }
        false
    }

    pub(super) fn step(&self, step: Step) {
        let this = self.this();
        match step {
            Step::Schedule(front, when, action) => {
                self.front(front).schedule(&this, (when, action), Handle::Timeout);
            }
            Step::Reset(front, back, when) => self.front(front).reset(self, back, when),
            Step::Guard(delay, action) => {
                // The guard cancels the timeout when the world drops the handle.
                let guard = |timeout: TimeoutHandle| Handle::Guard(timeout.cancel_on_drop());
                self.front(0).schedule(&this, (When::After(delay), action), guard);
            }
            Step::Act(action) => {
                self.act_now(action, None);
            }
            Step::Receive(count) => self.front(2).receive(self, count),
            Step::Shrink(front) => self.front(front).shrink(),
            Step::ShutDown(front) => self.front(front).shut_down(self),
            Step::Drain(front, patience) => self.front(front).drain(self, patience),
            Step::Renew(front) => self.renew(front),
            Step::Pass(span) => self.pass(|| self.clock.pass(span)),
            Step::PassToNext => self.pass(|| self.clock.pass_to_next()),
            Step::Still(count) => {
                (0..count).for_each(|_| self.pass(|| self.clock.stand_still()));
            }
            Step::GoBack(span) => self.pass(|| self.clock.step_back(span)),
            Step::SetWall(0, by) if !self.clock.is_exact() => self.clock.set_wall(by),
            Step::SetWall(span, by) => self.pass(|| self.clock.set_both(span, by)),
            Step::Repeat(repeat) => self.repeats.start(&this, repeat),
            Step::StopRepeat(back) => self.repeats.stop(self, back),
            Step::Map(call) => self.map.call(self, call),
            Step::Wait(wait) => self.waits().wait(&this, wait),
            Step::Announce(announce) => self.waits().announce(&this, announce),
        }
    }
}

fn plain_wait(events: u32, delay: Delay) -> Wait {
    Wait {
        kind: Kind::Plain,
        events,
        values: 0,
        growth: 0,
        delay,
        is_ready: false,
        on_check: (0, Action::Nothing),
        on_end: Action::Nothing,
        is_guarded: false,
    }
}
