//! A clock that includes the time of a suspension.

use std::time::Instant;

use super::Clock;

/// A monotonic clock that also counts the time for which the machine is suspended.
///
/// After a resume, timeouts that came due during the suspension expire at once, in the order of
/// their deadlines. A repetition treats its due occurrences as missed, and follows its policy.
///
/// On Linux, a thread of the process waits for the kernel to report a resume, and then wakes the
/// timers. The first timeout of a timer on this clock starts the thread, or the build of one with a
/// driver. On other systems, or if the thread cannot start, each timer reads this clock once a
/// second while timeouts are pending.
///
/// | System | The clock |
/// |---|---|
/// | Linux | `CLOCK_BOOTTIME` |
/// | macOS, iOS | `CLOCK_MONOTONIC`, which counts suspensions |
/// | Windows | the clock of [`Instant`], which counts suspensions |
/// | others | the clock of [`Instant`], which may not count them |
///
/// Until the first suspension, the instants of this clock are those of [`Instant::now`], or earlier
/// by the time between two readings. After that, they are later by the time of all suspensions. So
/// do not pass instants of another clock to a timer on this clock: use
/// [`Timer::now`](crate::Timer::now).
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::{BootClock, Timer};
///
/// let timer = Timer::builder().clock(BootClock).build()?;
/// let (ended, sessions) = mpsc::channel();
/// timer.schedule(Duration::from_millis(5), move || ended.send("ann").unwrap())?;
/// assert_eq!(sessions.recv(), Ok("ann"));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Instant {
        now()
    }

    fn may_jump(&self) -> bool {
        true
    }
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn now() -> Instant {
    use std::{sync::OnceLock, time::Duration};

    use rustix::time::{ClockId, clock_gettime};

    use super::tick_clock::present;
    use crate::ticks::Nanos;

    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;
    /// One moment, as an instant and as a time since the start of the machine.
    static ORIGIN: OnceLock<(Instant, Nanos)> = OnceLock::new();

    let since_start = || Nanos::from(Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default());
    let (origin, started) = ORIGIN.get_or_init(|| present(since_start));
    *origin + Duration::from(since_start().saturating_sub(*started))
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn now() -> Instant {
    Instant::now()
}
