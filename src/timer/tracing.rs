//! Events for `tracing`, if the feature of that name is on.
//!
//! A subscriber is user code. The timer calls it without a lock and catches its panics, so that
//! none ends a thread of the timer. Cancelling emits no events, and there are no spans. Scheduling
//! emits them in two cases: the first timeout starts the threads, and a thread that hands off
//! timeouts of a late reaper says when lateness begins or ends.

use std::{
    string::String,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::panics::Panic;

/// Emits an event, if the feature is on. A subscriber that panics stops nothing.
macro_rules! emit {
    ($level:ident, $events:expr, $($field:ident = $value:expr,)* $text:literal) => {
        #[cfg(feature = "tracing")]
        drop(crate::panics::catch(|| {
            tracing::$level!(target: "delaywheel", timer = $events.name, $($field = $value,)* $text);
        }));
        #[cfg(not(feature = "tracing"))]
        let _ = (&$events.name, $(&$value,)*);
    };
}

/// Emits the events of one timer.
pub(super) struct Events {
    pub(super) name: String,
    warn_if_later_than: Duration,
    /// Whether the latest batch was late. An event is emitted when this changes.
    is_late: AtomicBool,
}

impl Events {
    pub(super) fn new(name: String, warn_if_later_than: Duration) -> Self {
        Self { name, warn_if_later_than, is_late: AtomicBool::new(false) }
    }

    pub(super) fn started(&self) {
        emit!(debug, self, "threads started");
    }

    /// The timer was shut down, which returned this number of timeouts.
    pub(super) fn shut_down(&self, returned: usize) {
        emit!(debug, self, returned = returned, "shut down");
    }

    pub(super) fn panicked(&self, panic: &Panic) {
        let payload = panic.message().unwrap_or("not a text");
        emit!(error, self, payload = payload, "a callback panicked");
    }

    /// A batch was handed off with this lateness, at most.
    pub(super) fn expired(&self, lateness: Duration) {
        let is_late = lateness > self.warn_if_later_than;
        if self.is_late.swap(is_late, Ordering::Relaxed) == is_late {
            return;
        }
        if is_late {
            emit!(warn, self, latest_by = format_args!("{lateness:?}"), "timeouts are late");
        } else {
            emit!(debug, self, "timeouts are on time again");
        }
    }
}
