//! What befalls a timer, told to `tracing` if the feature of that name is on, and else to nobody.
//!
//! A subscriber is user code: it is called with no lock held, and a panic in it is caught, so that
//! no thread of the timer ends by it. Nothing is told from where timeouts are scheduled and
//! cancelled, and there are no spans.

use std::{any::Any, time::Duration};

/// Tells what befalls one timer.
pub(super) struct Events {
    #[cfg(feature = "tracing")]
    told: told::Told,
}

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, reason = "with the feature, they are not")]
impl Events {
    pub(super) fn new(_name: &str, _late_after: Duration) -> Self {
        Self {}
    }

    pub(super) fn started(&self) {}

    pub(super) fn shut_down(&self, _returned: usize) {}

    pub(super) fn panicked(&self, _payload: &(dyn Any + Send)) {}

    pub(super) fn expired(&self, _latest_by: Duration) {}
}

#[cfg(feature = "tracing")]
impl Events {
    pub(super) fn new(name: &str, late_after: Duration) -> Self {
        Self { told: told::Told::new(name, late_after) }
    }

    pub(super) fn started(&self) {
        self.told.started();
    }

    /// That the timer was shut down, which returned so many timeouts.
    pub(super) fn shut_down(&self, returned: usize) {
        self.told.shut_down(returned);
    }

    pub(super) fn panicked(&self, payload: &(dyn Any + Send)) {
        self.told.panicked(payload);
    }

    /// That what was due was passed on, the most delayed so much after its deadline.
    pub(super) fn expired(&self, latest_by: Duration) {
        self.told.expired(latest_by);
    }
}

#[cfg(feature = "tracing")]
mod told {
    //! The events themselves.

    use std::{
        any::Any,
        panic::{AssertUnwindSafe, catch_unwind},
        string::String,
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    pub(super) struct Told {
        name: String,
        late_after: Duration,
        /// Whether the latest batch was late: told when it begins and ends, not for each batch.
        is_late: AtomicBool,
    }

    impl Told {
        pub(super) fn new(name: &str, late_after: Duration) -> Self {
            Self { name: name.into(), late_after, is_late: AtomicBool::new(false) }
        }

        pub(super) fn started(&self) {
            tell(|| tracing::debug!(target: "delaywheel", timer = self.name, "threads started"));
        }

        pub(super) fn shut_down(&self, returned: usize) {
            let timer = &self.name;
            tell(|| tracing::debug!(target: "delaywheel", timer, returned, "shut down"));
        }

        pub(super) fn panicked(&self, payload: &(dyn Any + Send)) {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let (timer, payload) = (&self.name, text.unwrap_or("not a text"));
            tell(|| tracing::error!(target: "delaywheel", timer, payload, "a callback panicked"));
        }

        pub(super) fn expired(&self, latest_by: Duration) {
            let is_late = latest_by > self.late_after;
            if self.is_late.swap(is_late, Ordering::Relaxed) == is_late {
                return;
            }
            let timer = &self.name;
            tell(|| {
                if is_late {
                    tracing::warn!(target: "delaywheel", timer, ?latest_by, "timeouts are late");
                } else {
                    tracing::debug!(target: "delaywheel", timer, "timeouts are on time again");
                }
            });
        }
    }

    fn tell(event: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(event)) {
            // Its drop is user code as well, and may panic.
            std::mem::forget(payload);
        }
    }
}
