//! A clock that goes on while the machine is suspended.

use std::time::Instant;

use super::Clock;

/// A monotonic clock that goes on while the machine is suspended: an hour is an hour, also with the
/// lid closed.
///
/// After a resume, timeouts that came due meanwhile expire at once, in the order of their
/// deadlines. Occurrences of a repetition that came due count as missed, so its policy decides. On
/// Linux, the kernel tells the timers of the resume, to which a thread of the process listens. It
/// starts with the first timeout of a timer on this clock, and otherwise sleeps. Elsewhere, and if
/// the thread cannot be started, each timer on this clock reads it once a second while timeouts are
/// pending.
///
/// | System | The clock |
/// |---|---|
/// | Linux | `CLOCK_BOOTTIME` |
/// | macOS, iOS | `CLOCK_MONOTONIC`, which goes on while the machine sleeps |
/// | Windows | that of [`Instant`], which also does |
/// | others | that of [`Instant`], which may stop |
///
/// Its instants agree with [`Instant::now`] until the first suspension, and are later by the time
/// of all suspensions after that. So do not pass instants of another clock to a timer on this one.
/// Ask [`Timer::now`](crate::Timer::now).
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

    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;
    /// One moment, as an instant and as a time since the start of the machine.
    static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();

    let since_start = || Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default();
    let (origin, started) = ORIGIN.get_or_init(|| (Instant::now(), since_start()));
    *origin + since_start().saturating_sub(*started)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn now() -> Instant {
    Instant::now()
}
