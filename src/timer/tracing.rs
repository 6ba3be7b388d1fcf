//! Events for `tracing`, if the feature of that name is on.
//!
//! A subscriber is user code. The timer calls it without a lock and catches its panics, so that
//! none ends a thread of the timer. Scheduling and cancelling emit no events, and there are no
//! spans.

use std::{any::Any, time::Duration};

#[cfg(feature = "tracing")]
pub(super) use self::emitted::Events;
#[cfg(not(feature = "tracing"))]
pub(super) use self::omitted::Events;

#[cfg(not(feature = "tracing"))]
mod omitted {
    use super::{Any, Duration};

    /// Replaces the events if the feature is off: emits nothing.
    pub(in crate::timer) struct Events;

    #[expect(clippy::unused_self, reason = "with the feature, they use it")]
    impl Events {
        pub(in crate::timer) fn new(_name: &str, _warn_if_later_than: Duration) -> Self {
            Self
        }

        pub(in crate::timer) fn started(&self) {}

        pub(in crate::timer) fn shut_down(&self, _returned: usize) {}

        pub(in crate::timer) fn panicked(&self, _payload: &(dyn Any + Send)) {}

        pub(in crate::timer) fn expired(&self, _lateness: Duration) {}
    }
}

#[cfg(feature = "tracing")]
mod emitted {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        string::String,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::{Any, Duration};

    /// Emits the events of one timer.
    pub(crate) struct Events {
        name: String,
        warn_if_later_than: Duration,
        /// Whether the latest batch was late. An event is emitted when this changes.
        is_late: AtomicBool,
    }

    impl Events {
        pub(in crate::timer) fn new(name: &str, warn_if_later_than: Duration) -> Self {
            Self { name: name.into(), warn_if_later_than, is_late: AtomicBool::new(false) }
        }

        pub(in crate::timer) fn started(&self) {
            emit(|| tracing::debug!(target: "delaywheel", timer = self.name, "threads started"));
        }

        /// The timer was shut down, which returned this number of timeouts.
        pub(in crate::timer) fn shut_down(&self, returned: usize) {
            let timer = &self.name;
            emit(|| tracing::debug!(target: "delaywheel", timer, returned, "shut down"));
        }

        pub(in crate::timer) fn panicked(&self, payload: &(dyn Any + Send)) {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let (timer, payload) = (&self.name, text.unwrap_or("not a text"));
            emit(|| tracing::error!(target: "delaywheel", timer, payload, "a callback panicked"));
        }

        /// A batch was handed off with this lateness, at most.
        pub(in crate::timer) fn expired(&self, lateness: Duration) {
            let is_late = lateness > self.warn_if_later_than;
            if self.is_late.swap(is_late, Ordering::Relaxed) == is_late {
                return;
            }
            let timer = &self.name;
            emit(|| {
                if is_late {
                    tracing::warn!(target: "delaywheel", timer, latest_by = ?lateness, "timeouts are late");
                } else {
                    tracing::debug!(target: "delaywheel", timer, "timeouts are on time again");
                }
            });
        }
    }

    fn emit(event: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(event)) {
            // The drop of the payload is user code as well, and may panic.
            std::mem::forget(payload);
        }
    }
}
