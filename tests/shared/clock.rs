//! A clock that the test sets, one that panics, and one that calls a hook.

use std::{
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{Clock, Driven, JumpListener, ManualClock, Timer, TimerBuilder};

pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Debug)]
pub(crate) struct Set {
    /// Whether it drives its timers when it is set. Otherwise they have a reaper, which does not
    /// notice that.
    drives: bool,
    may_jump: bool,
    /// Period at which its timers read it, if it does not report steps.
    recheck: Option<Duration>,
    panics: AtomicBool,
    origin: Instant,
    since: Mutex<Duration>,
    wall: Mutex<SystemTime>,
    timers: Mutex<Vec<Weak<dyn Driven>>>,
    listeners: Mutex<Vec<Weak<dyn JumpListener>>>,
}

impl Set {
    /// A clock that drives its timers.
    pub(crate) fn new() -> Arc<Self> {
        let quiet = Arc::into_inner(Self::quiet()).expect("there is no clone");
        Arc::new(Self { drives: true, ..quiet })
    }

    pub(crate) fn quiet() -> Arc<Self> {
        Self::reporting(false, None)
    }

    /// A clock whose timers have a reaper. It reports jumps and steps, or has a period for them.
    pub(crate) fn reporting(may_jump: bool, recheck: Option<Duration>) -> Arc<Self> {
        Arc::new(Self {
            drives: false,
            may_jump,
            recheck,
            panics: AtomicBool::new(false),
            origin: Instant::now(),
            // It can step back by a year.
            since: Mutex::new(YEAR),
            wall: Mutex::new(SystemTime::UNIX_EPOCH),
            timers: Mutex::default(),
            listeners: Mutex::default(),
        })
    }

    /// Sets the time since the start; it may be before the current time.
    pub(crate) fn show(&self, since: Duration) {
        *self.since.lock().unwrap() = YEAR + since;
        self.turn();
    }

    pub(crate) fn pass(&self, span: Duration) {
        *self.since.lock().unwrap() += span;
        self.turn();
    }

    pub(crate) fn step_back(&self, by: Duration) {
        *self.since.lock().unwrap() -= by;
        self.turn();
    }

    fn turn(&self) {
        let timers: Vec<_> = self.timers.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        for timer in timers {
            timer.turn();
        }
    }

    /// Sets the wall clock forward.
    pub(crate) fn step(&self, span: Duration) {
        *self.wall.lock().unwrap() += span;
        let listeners = self.listeners.lock().unwrap();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.clock_has_jumped();
        }
    }

    /// Sets whether each read panics.
    pub(crate) fn panic(&self, panics: bool) {
        self.panics.store(panics, Ordering::SeqCst);
    }

    /// A timer adds a listener when it starts its threads, if the clock may jump.
    pub(crate) fn listeners(&self) -> usize {
        self.listeners.lock().unwrap().len()
    }
}

impl Clock for Set {
    fn now(&self) -> Instant {
        assert!(!self.panics.load(Ordering::SeqCst), "the clock panics");
        self.origin + *self.since.lock().unwrap()
    }

    fn system_time(&self) -> SystemTime {
        *self.wall.lock().unwrap()
    }

    fn may_jump(&self) -> bool {
        self.may_jump
    }

    fn watch(&self, listener: Weak<dyn JumpListener>) -> Option<Duration> {
        if self.recheck.is_none() {
            self.listeners.lock().unwrap().push(listener);
        }
        self.recheck
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.timers.lock().unwrap().extend(self.drives.then_some(timer));
        self.drives
    }
}

/// Returns a clock, and a timer on it.
pub(crate) fn timer_on<C: Clock + Clone>(
    clock: C,
    change: impl FnOnce(TimerBuilder) -> TimerBuilder,
) -> (C, Timer) {
    let timer = change(Timer::builder().clock(clock.clone())).build();
    (clock, timer.expect("the settings are in range"))
}

/// A clock that panics on the thread of this name once the test asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Deadly(&'static str, Arc<AtomicBool>);

impl Deadly {
    pub(crate) fn of(thread: &'static str) -> Self {
        Self(thread, Arc::default())
    }

    pub(crate) fn kill(&self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

impl Clock for Deadly {
    fn now(&self) -> Instant {
        let is_victim = thread::current().name() == Some(self.0);
        assert!(!(is_victim && self.1.load(Ordering::SeqCst)), "the clock panics");
        Instant::now()
    }
}

/// A manual clock that calls a hook each time a timer reads it, before it returns the time.
#[derive(Clone)]
pub(crate) struct HookedClock {
    pub(crate) clock: ManualClock,
    hook: Arc<Mutex<Option<Hook>>>,
}

type Hook = Box<dyn FnMut() + Send>;

impl HookedClock {
    pub(crate) fn new() -> Self {
        Self { clock: ManualClock::new(), hook: Arc::default() }
    }

    /// Sets the hook. The hook may read the clock, which does not call it again, and advance the
    /// clock, which does not change the returned time.
    pub(crate) fn set(&self, hook: impl FnMut() + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    /// Panics once, after a number of reads.
    pub(crate) fn panic_after(&self, mut reads: u32) {
        self.set(move || {
            assert!(reads > 0, "the clock panics");
            reads -= 1;
        });
    }
}

impl Clock for HookedClock {
    fn now(&self) -> Instant {
        let now = self.clock.now();
        let hook = self.hook.lock().unwrap().take();
        if let Some(mut hook) = hook {
            hook();
            self.hook.lock().unwrap().get_or_insert(hook);
        }
        now
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.clock.adopt(timer)
    }
}

impl fmt::Debug for HookedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedClock").field("clock", &self.clock).finish_non_exhaustive()
    }
}
