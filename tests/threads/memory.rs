//! Live bytes of the process.

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static LIVE: Cap<System> = Cap::new(System, usize::MAX);

pub(crate) fn live() -> usize {
    LIVE.allocated()
}
