//! Panics of user code: callbacks, handlers, wakers, pools, clocks, subscribers and drops.

use std::{
    any::Any,
    boxed::Box,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

/// The payload of a panic of user code.
///
/// The drop of the payload is user code as well. If that drop panics, the second payload is leaked.
pub(crate) struct Panic(Option<Box<dyn Any + Send>>);

/// Runs user code, and catches its panic.
pub(crate) fn catch<R>(user_code: impl FnOnce() -> R) -> Result<R, Panic> {
    catch_unwind(AssertUnwindSafe(user_code)).map_err(|payload| Panic(Some(payload)))
}

impl Panic {
    /// Returns the message; `None` if the payload is no text.
    pub(crate) fn message(&self) -> Option<&str> {
        let payload = self.0.as_deref()?;
        let text = payload.downcast_ref::<std::string::String>().map(std::string::String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied())
    }

    /// Continues the panic, after the caller has restored its state.
    pub(crate) fn resume(mut self) -> ! {
        resume_unwind(self.0.take().expect("a panic continues once"))
    }
}

impl Drop for Panic {
    fn drop(&mut self) {
        let payload = self.0.take();
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(second);
        }
    }
}
