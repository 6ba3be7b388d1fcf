//! Memory of the process: live bytes by the allocator, and resident bytes by the system.

use std::{alloc::System, fs};

use cap::Cap;

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<System> = Cap::new(System, usize::MAX);

/// Allocated bytes.
pub(crate) fn live() -> usize {
    LIVE.allocated()
}

/// Resident bytes, or `None` on systems without `/proc`.
pub(crate) fn resident() -> Option<usize> {
    /// Unit of `/proc/self/statm`: the size of a page.
    const PAGE: usize = 4096;
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE)
}
