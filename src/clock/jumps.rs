//! Notice of jumps: the wall clock was set, or the machine has resumed.
//!
//! On Linux, one thread of the process reads a kernel timer that never expires. The kernel cancels
//! this timer when the distance from the wall clock to the monotonic clock changes. A suspension
//! changes this distance too. The first listener starts the thread, which runs until the process
//! ends. Only such a change wakes the thread.

use std::{
    sync::{Arc, Weak},
    time::Duration,
    vec::Vec,
};

use parking_lot::Mutex;

#[cfg(target_os = "linux")]
use crate::panics::catch;

/// A timer that must read its clocks again after a jump: see [`Clock::watch`](super::Clock::watch).
pub trait JumpListener: Send + Sync {
    /// Reads the clocks again, or wakes a thread that does. Must not panic.
    fn clock_has_jumped(&self);
}

/// Period at which a timer reads its clocks where the system does not report jumps.
const RECHECK: Duration = Duration::from_secs(1);

/// Calls a listener after each jump of the clocks of the system from now on: the wall clock is set,
/// or the machine resumes. Returns the period at which the caller must also read the clocks; `None`
/// if the system reports jumps.
///
/// This is the default of [`Clock::watch`](super::Clock::watch). Other programs whose threads wait
/// for a time of the wall clock may use it too.
#[must_use]
pub fn watch_jumps(listener: Weak<dyn JumpListener>) -> Option<Duration> {
    (!system::watch_jumps(listener)).then_some(RECHECK)
}

/// Weak references to listeners or timers. The caller uses them without the lock.
pub(super) struct Listeners<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Listeners<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(super) fn add(&self, listener: Weak<T>) {
        let mut all = self.0.lock();
        // A weak reference keeps the memory of a dropped listener, so dead references must leave.
        // Searching only a full list takes amortized constant time for each.
        // Without the shrink, dead references could fill the largest capacity of the list.
        if all.len() == all.capacity() {
            all.retain(|listener| listener.strong_count() > 0);
            let live = all.len();
            all.shrink_to_fit();
            all.reserve(live + 1);
        }
        all.push(listener);
    }

    /// Returns the listeners that still exist.
    pub(super) fn live(&self) -> Vec<Arc<T>> {
        let mut all = self.0.lock();
        all.retain(|listener| listener.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(target_os = "linux")]
impl Listeners<dyn JumpListener> {
    /// Calls all listeners. A panic of one, or of its drop, must not end the thread that calls
    /// them.
    fn notify(&self) {
        for listener in self.live() {
            drop(catch(move || listener.clock_has_jumped()));
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::{boxed::Box, process, string::String, sync::Weak, thread};

    use rustix::{
        fd::OwnedFd,
        io::{Errno, read},
        time::{
            Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
            timerfd_settime,
        },
    };

    use super::{JumpListener, Listeners, Mutex, RECHECK};

    static LISTENERS: Listeners<dyn JumpListener> = Listeners::new();

    /// Calls a listener after each jump. Returns whether a thread of this process waits for jumps;
    /// starts the thread if there is none.
    pub(super) fn watch_jumps(listener: Weak<dyn JumpListener>) -> bool {
        /// The process whose thread waits. A forked child has no such thread.
        static PROCESS: Mutex<Option<u32>> = Mutex::new(None);

        LISTENERS.add(listener);
        let mut process = PROCESS.lock();
        let own = Some(process::id());
        // Miri lacks this timer, so that a timer there reads its clocks again.
        if *process != own && !cfg!(miri) && alarm().is_ok_and(start) {
            *process = own;
        }
        *process == own
    }

    /// Returns a timer that never expires, and that the kernel cancels at each jump.
    fn alarm() -> rustix::io::Result<OwnedFd> {
        let alarm = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC)?;
        let never = Timespec { tv_sec: i64::from(u32::MAX) * 50, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: Timespec::default(), it_value: never };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&alarm, flags, &spec)?;
        Ok(alarm)
    }

    fn start(alarm: OwnedFd) -> bool {
        // A box, because a program would compile another copy of `spawn` for the closure.
        let run: Box<dyn FnOnce() + Send> = Box::new(move || {
            loop {
                // If the read fails, the thread wakes the listeners once a second instead.
                if read(&alarm, &mut [0; 8]) != Err(Errno::CANCELED) {
                    thread::sleep(RECHECK);
                }
                LISTENERS.notify();
            }
        });
        thread::Builder::new().name(String::from("clock-jumps")).spawn(run).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// No other system reports both kinds of jumps.
    pub(super) fn watch_jumps(_: std::sync::Weak<dyn super::JumpListener>) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A listener that panics if the test has dropped the receiver.
    struct Sender(mpsc::Sender<()>);

    impl JumpListener for Sender {
        fn clock_has_jumped(&self) {
            self.0.send(()).expect("the test receives");
        }
    }

    #[test]
    fn a_listener_that_panics_stops_no_other() {
        let (all, (sent, received)) = (Listeners::new(), mpsc::channel());
        let senders = [mpsc::channel().0, sent];
        let senders = senders.map(|sender| Arc::new(Sender(sender)) as Arc<dyn JumpListener>);
        for sender in &senders {
            all.add(Arc::downgrade(sender));
        }
        all.notify();
        all.notify();
        assert_eq!(received.try_iter().count(), 2);
    }

    #[test]
    fn listeners_that_are_gone_leave_the_list_with_their_memory() {
        let (all, many) = (Listeners::new(), [(); 1000].map(Arc::new));
        for listener in &many {
            all.add(Arc::downgrade(listener));
        }
        drop(many);
        (0..5_000).for_each(|_| all.add(Weak::new()));
        let capacity = all.0.lock().capacity();
        assert!(capacity < 16, "room for {capacity}");
    }

    #[test]
    fn no_timer_looks_for_jumps_that_the_kernel_reports() {
        assert_eq!(watch_jumps(Weak::<Sender>::new()), None);
    }
}
