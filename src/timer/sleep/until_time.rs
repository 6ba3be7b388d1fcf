//! A sleep until a time of the wall clock.
//!
//! Each pending poll takes the lock of a shard. The poll stores the waker in the wheel, at the tick
//! of the time, and makes it follow the wall clock. When a turn expires the waker, the wall clock
//! has shown the time, and the sleep is over. If the clock is set back before the task polls, the
//! sleep does not return to the wheel: another sleep may have taken its permit.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::SystemTime,
};

use super::sleeper::SleepHandle;
use crate::timer::{
    error::{ScheduleError, ScheduleErrorKind},
    shards::TimeoutKey,
};

/// Waits until the wall clock shows a time; from
/// [`Timer::sleep_until_time`](crate::Timer::sleep_until_time).
///
/// It is [`Unpin`]. Unlike a poll of a [`Sleep`](crate::future::Sleep), each pending poll clones
/// the waker and takes locks. If the wall clock is set to the time, and is set back a tick later,
/// before the task polls, the sleep is over. A poll after its end is ready again, unless the wall
/// clock was set back before the time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Clock, ManualClock, Timer};
/// use pollster::block_on;
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let noon = clock.system_time() + Duration::from_secs(12 * 3600);
/// let lunch = timer.sleep_until_time(noon);
/// clock.set_system_time(noon);
/// block_on(lunch)?;
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors
///
/// The errors of [`Sleep`](crate::future::Sleep).
///
/// # Cancel safety
///
/// A dropped sleep leaves the wheel. Await `&mut sleep` to keep it.
#[must_use = "futures do nothing unless awaited"]
pub struct TimeSleep {
    handle: SleepHandle,
    time: SystemTime,
    /// The key of the waker in the wheel, which may have expired.
    key: Option<TimeoutKey>,
}

impl TimeSleep {
    pub(crate) fn new(handle: SleepHandle, time: SystemTime) -> Self {
        Self { handle, time, key: None }
    }

    fn is_over(&self) -> bool {
        self.handle.shared().shards.clock.source.system_time() >= self.time
    }

    fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            drop(self.handle.shared().shards.cancel(key));
        }
    }
}

impl Future for TimeSleep {
    type Output = Result<(), ScheduleError<()>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let wakers = self.handle.shared();
        let shards = &wakers.shards;
        if self.is_over() {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        // Read before the reaper starts: a clock that panics in this call ends no timer.
        let now = shards.clock.read().now;
        wakers.ensure_started(())?;
        // Cloning and dropping wakers is user code, so both happen without a lock.
        let mut waker = cx.waker().clone();
        let index = self.key.map_or_else(|| shards.current(), |key| key.shard);
        let put = shards.put_at_time(index, now, self.time, |shard, now, tick| {
            if let Some(TimeoutKey { key, .. }) = self.key {
                mem::swap(shard.state_mut().get_mut(key).ok_or(None)?, &mut waker);
                shard.reset(key, now, tick);
                return Ok(key);
            }
            let waker = mem::replace(&mut waker, Waker::noop().clone());
            shard.insert(now, tick, waker).map_err(Some)
        });
        let is_shut_down = shards.is_shut_down();
        self.key = put.as_ref().ok().copied();
        match put {
            Ok(_) if !self.is_over() => Poll::Pending,
            // A clock that drives the timer may take no further turn.
            Ok(_) => {
                self.cancel();
                Poll::Ready(Ok(()))
            }
            Err(Some(refused)) => Poll::Ready(Err(refused.map(drop))),
            // A shutdown has removed the waker; otherwise, a turn has expired it.
            Err(None) if is_shut_down => {
                Poll::Ready(Err(ScheduleError::new(ScheduleErrorKind::ShutDown, ())))
            }
            Err(None) => Poll::Ready(Ok(())),
        }
    }
}

impl fmt::Debug for TimeSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeSleep").field("time", &self.time).finish_non_exhaustive()
    }
}

impl Drop for TimeSleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
