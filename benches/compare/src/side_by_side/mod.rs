//! All systems of the field side by side: what is done to each of them, and what is written down.

pub mod drain;
pub mod names;
pub mod observe;
pub mod results;
pub mod traffic;

use self::results::Contestant;
use crate::{
    Promises, Timers,
    promises::Wakes,
    shared::{Closures, SharedTimer, Typed},
    timers::Wheel,
};

/// Packages of others that do what is measured, or a part of it.
pub const PEERS: [&str; 18] = [
    "async-executor",
    "async-io",
    "bitwheel",
    "crossbeam",
    "crossbeam-channel",
    "crossbeam-queue",
    "futures-lite",
    "futures-timer",
    "hierarchical_hash_wheel_timer",
    "nexus-timer",
    "parking_lot",
    "pingora-timeout",
    "priority-queue",
    "rustc-hash",
    "slotmap",
    "timer-queue",
    "tokio",
    "tokio-util",
];

/// What a contestant is called in results; ours by the name of this crate, so that they are told
/// from others.
#[must_use]
pub fn label(name: &str) -> String {
    match name {
        Wheel::NAME => "delaywheel".to_owned(),
        Typed::NAME | Closures::NAME => format!("delaywheel {name}"),
        _ => name.to_owned(),
    }
}

/// Introduces a contestant by what it says of itself.
#[must_use]
pub fn introduce(name: &str, promises: &Promises, is_shared: bool) -> Contestant {
    Contestant {
        name: label(name),
        scheme: promises.scheme.to_owned(),
        describes: promises.describes.to_owned(),
        is_ours: [Wheel::NAME, Typed::NAME, Closures::NAME].contains(&name),
        is_shared,
        can_cancel: promises.can_cancel,
        max_delay_ms: promises.max_delay,
        earliness_ms: promises.earliness,
        lateness_ms: promises.lateness,
        wakes: match promises.wakes {
            Wakes::WhenBusy => results::Wakes::WhenBusy,
            Wakes::ForCancelled => results::Wakes::ForCancelled,
            Wakes::Every(ticks) => results::Wakes::EveryMs(ticks),
        },
    }
}
