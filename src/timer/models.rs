//! The protocols of the timer under a model checker, which tries every interleaving.
//!
//! A wait never times out in here, so that a lost wake-up shows as a deadlock. Each model has a twin in which the
//! protocol is broken on purpose, and which must fail.

use std::{sync::Arc, vec::Vec};

use loom::thread;

use super::{
    core::Core,
    limit::Limit,
    wakeup::{Published, Wakeup},
};
use crate::Tick;
use crate::sync::{AtomicU64, Ordering, Parker, Unparker};

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}
