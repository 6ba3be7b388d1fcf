//! A clock that jumps ahead when the machine resumes.

use std::{
    sync::{Arc, Mutex, Weak, mpsc},
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{Clock, Reaper, StepListener, Timer};

use super::support::GENEROUS;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A clock that moves only by jumps and steps, and reports them as the system does.
#[derive(Debug, Clone)]
pub(crate) struct Jumping {
    shared: Arc<Shared>,
    may_jump: bool,
}

struct Shared {
    origin: Instant,
    since: Mutex<Duration>,
    wall: Mutex<SystemTime>,
    listeners: Mutex<Vec<Weak<dyn StepListener>>>,
    /// Period at which its timers read it, if it does not report jumps.
    recheck: Option<Duration>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Jumping {
    pub(crate) fn new(may_jump: bool, recheck: Option<Duration>) -> Self {
        let (since, listeners) = (Mutex::default(), Mutex::default());
        let wall = Mutex::new(SystemTime::UNIX_EPOCH);
        let shared = Shared { origin: Instant::now(), since, wall, listeners, recheck };
        Self { shared: Arc::new(shared), may_jump }
    }

    fn jump(&self, span: Duration) {
        *self.shared.since.lock().unwrap() += span;
        self.step(span);
    }

    /// Sets the wall clock forward.
    pub(crate) fn step(&self, span: Duration) {
        *self.shared.wall.lock().unwrap() += span;
        let listeners = self.shared.listeners.lock().unwrap();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.clock_has_stepped();
        }
    }

    pub(crate) fn listeners(&self) -> usize {
        self.shared.listeners.lock().unwrap().len()
    }
}

impl Clock for Jumping {
    fn now(&self) -> Instant {
        self.shared.origin + *self.shared.since.lock().unwrap()
    }

    fn system_time(&self) -> SystemTime {
        *self.shared.wall.lock().unwrap()
    }

    fn may_jump(&self) -> bool {
        self.may_jump
    }

    fn watch(&self, listener: Weak<dyn StepListener>) -> Option<Duration> {
        if self.shared.recheck.is_none() {
            self.shared.listeners.lock().unwrap().push(listener);
        }
        self.shared.recheck
    }
}

#[test]
fn after_a_resume_what_is_due_runs_at_once_and_in_order() {
    let reaper = Reaper::new("shared");
    for recheck in [None, Some(Duration::from_millis(1))] {
        let clock = Jumping::new(true, recheck);
        let builder = Timer::builder().clock(clock.clone()).inline();
        for builder in [builder.clone(), builder.reaper(&reaper)] {
            let (ran, runs) = mpsc::channel();
            let timer = builder.build_with(move |hour| ran.send(hour).unwrap()).unwrap();
            let unused = clock.listeners();
            for hour in [4, 2, 3, 1] {
                timer.schedule(hour * HOUR, hour).unwrap();
            }
            let listens = usize::from(recheck.is_none());
            assert_eq!(clock.listeners(), unused + listens, "only once, and not before its use");
            clock.jump(3 * HOUR);
            for hour in 1..=3 {
                assert_eq!(runs.recv_timeout(GENEROUS), Ok(hour), "{recheck:?}");
            }
            assert_eq!((timer.stats().pending, timer.shutdown()), (1, vec![4]));
        }
    }
}
