//! Takes a turn of `delaywheel_compare::measure::memory` for the runner, with an allocator that
//! counts.

#![forbid(unsafe_code)]

use std::{alloc::System, env, error::Error};

use cap::Cap;
use delaywheel_compare::measure::{Turn, memory::Heap};
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait};

/// Counts the peak of live bytes.
static PEAK: PeakMemAlloc<System> = PeakMemAlloc::new(System);

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<&PeakMemAlloc<System>> = Cap::new(&PEAK, usize::MAX);

fn main() -> Result<(), Box<dyn Error>> {
    let turn = env::args().nth(2).ok_or("the runner starts this program")?;
    let heap = Heap {
        live: || LIVE.allocated(),
        peak: || PEAK.get_peak_memory(),
        reset_peak: || PEAK.reset_peak_memory(),
    };
    let figures = serde_json::from_str::<Turn>(&turn)?.run_counted(&heap);
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
