//! The sleep of the driver: until a time, a wake-up by another thread, or a step of the clock.

#[cfg(target_os = "linux")]
mod imp {
    use std::{io, time::Duration};

    use rustix::{
        event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
        fd::OwnedFd,
        io::{Errno, read, write},
        time::{
            ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime,
            timerfd_create, timerfd_settime,
        },
    };

    /// Returns the time since the machine started, suspensions included.
    pub(crate) fn monotonic() -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// A sleep that other threads and steps of the system's clock interrupt.
    #[derive(Debug)]
    pub(crate) struct Alarm {
        wake: OwnedFd,
        /// Never expires. The kernel cancels it when the clock is set or a suspension ends.
        steps: OwnedFd,
    }

    impl Alarm {
        pub(crate) fn new() -> io::Result<Self> {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let steps = timerfd_create(TimerfdClockId::Realtime, flags)?;
            let alarm = Self { wake, steps };
            alarm.arm()?;
            Ok(alarm)
        }

        fn arm(&self) -> io::Result<()> {
            let never = Timespec { tv_sec: i64::from(u32::MAX) * 50, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: Timespec::default(), it_value: never };
            let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
            timerfd_settime(&self.steps, flags, &spec)?;
            Ok(())
        }

        /// Ends the present sleep, or the next one if no thread sleeps.
        pub(crate) fn ring(&self) {
            // The counter cannot overflow: a sleep resets it.
            let _ = write(&self.wake, &1_u64.to_ne_bytes());
        }

        /// Sleeps for at most `limit`. Returns whether the clock has been set.
        pub(crate) fn sleep(&self, limit: Option<Duration>) -> bool {
            let limit = limit.map(|limit| Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(limit.subsec_nanos()),
            });
            let mut fds =
                [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.steps, PollFlags::IN)];
            let _ = poll(&mut fds, limit.as_ref());
            let mut buffer = [0; 8];
            let _ = read(&self.wake, &mut buffer);
            let stepped = matches!(read(&self.steps, &mut buffer), Err(Errno::CANCELED));
            if stepped {
                let _ = self.arm();
            }
            stepped
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::{
        io,
        sync::LazyLock,
        time::{Duration, Instant},
    };

    use parking_lot::{Condvar, Mutex};

    /// Returns the time since the first call.
    pub(crate) fn monotonic() -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    /// A sleep that other threads interrupt.
    #[derive(Debug)]
    pub(crate) struct Alarm {
        rung: Mutex<bool>,
        wake: Condvar,
    }

    impl Alarm {
        #[expect(clippy::unnecessary_wraps, reason = "on Linux it can fail")]
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self { rung: Mutex::new(false), wake: Condvar::new() })
        }

        /// Ends the present sleep, or the next one if no thread sleeps.
        pub(crate) fn ring(&self) {
            *self.rung.lock() = true;
            self.wake.notify_one();
        }

        /// Sleeps for at most `limit`. Returns whether the clock has been set: never, here.
        pub(crate) fn sleep(&self, limit: Option<Duration>) -> bool {
            let mut rung = self.rung.lock();
            if !*rung {
                match limit {
                    None => self.wake.wait(&mut rung),
                    Some(limit) => drop(self.wake.wait_for(&mut rung, limit)),
                }
            }
            *rung = false;
            false
        }
    }
}

pub(crate) use imp::{Alarm, monotonic};
