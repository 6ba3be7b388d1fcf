//! An operation of the purgatory of a world: its checks and its completion act as its script says.

use std::sync::Arc;

use delaywheel::{Completion, DelayedOperation};

use super::Waits;
use crate::{fronts::panic_as_planned, ledger::Number, script::Action, world::World};

#[derive(Debug)]
pub(crate) struct Op {
    pub(super) world: Arc<World>,
    pub(super) waits: Arc<Waits>,
    pub(super) number: Number,
}

impl DelayedOperation<u32> for Op {
    fn try_complete(&mut self) -> bool {
        let (on_check, is_ready) = {
            let mut ledger = self.waits.ledger();
            let operation = &mut ledger.operations[self.number];
            operation.checks += 1;
            let (nth, action) = operation.wait.on_check;
            ((operation.checks == nth).then_some(action), operation.is_ready)
        };
        let panics = on_check.is_some_and(|action| self.world.act(calm(action), None));
        self.waits.begin_delay(&self.world, self.number);
        if panics {
            self.waits.ledger().counts.panicked += 1;
            panic_as_planned();
        }
        is_ready
    }

    fn has_reached(&mut self, key: &u32, threshold: u64) -> bool {
        self.waits.ledger().values[*key as usize] >= threshold
    }

    fn complete(self, completion: Completion) {
        let action = self.waits.end(&self.world, self.number, completion);
        if self.world.act(calm(action), None) {
            self.waits.ledger().counts.panicked += 1;
            drop(self);
            panic_as_planned();
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        self.waits.ledger().operations[self.number].is_dropped = true;
    }
}

/// Returns an action that is safe in an operation. As documented, an operation that announces its
/// own event, or that waits again after it was displaced, may loop without end.
fn calm(action: Action) -> Action {
    match action {
        Action::Wait(..) | Action::Check(_) | Action::Grow(..) | Action::CancelKey(_) => {
            Action::Nothing
        }
        action => action,
    }
}
