//! Live bytes of the process.

use std::alloc::System;

use cap::Cap;

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<System> = Cap::new(System, usize::MAX);

/// Allocated bytes.
pub(crate) fn live() -> usize {
    LIVE.allocated()
}
