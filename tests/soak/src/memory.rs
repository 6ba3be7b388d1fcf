//! The memory of the process: live bytes, as its allocator counts them, and what the system says.

use std::{alloc::System, fs};

use cap::Cap;

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes that are allocated now.
pub(crate) fn live() -> usize {
    LIVE.allocated()
}

/// Bytes that are resident; `None` where the system does not tell.
pub(crate) fn resident() -> Option<usize> {
    /// The size of a page on the machines that tell: what `/proc/self/statm` counts in.
    const PAGE: usize = 4096;
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE)
}
