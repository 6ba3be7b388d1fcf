//! The timer of the async tasks: with a reaper, or with a driver on a runtime whose sleeps follow
//! the clock of the world.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use delaywheel::{Timer, future::Driver};

use crate::{
    clock::{Time, WorldClock},
    fronts::duration,
    script::Delay,
    world::{World, lock},
};

/// Maximum number of polls of a driver in a row. One that needs more does not stop.
const MOST_POLLS: u32 = 1_000;

/// The timer of sleeping tasks.
#[derive(Clone)]
pub(crate) struct Sleeper {
    pub(crate) timer: Timer,
    driver: Option<Arc<DriverTask>>,
}

/// The task that expires the sleeps in place of a reaper.
struct DriverTask {
    driver: Mutex<Driver<MakeSleep, Nap>>,
    naps: Naps,
    is_woken: Arc<Flag>,
}

type MakeSleep = Box<dyn FnMut(Duration) -> Nap + Send>;

/// The pending sleeps of the runtime, each with its end.
type Naps = Arc<Mutex<Vec<(Time, Waker)>>>;

/// A sleep of the runtime.
struct Nap {
    until: Time,
    clock: WorldClock,
    naps: Naps,
}

impl Future for Nap {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.until {
            return Poll::Ready(());
        }
        lock(&self.naps).push((self.until, cx.waker().clone()));
        Poll::Pending
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

impl Sleeper {
    /// Makes a timer, which has a driver if the timers of the world have two shards.
    pub(crate) fn new(world: &World) -> Self {
        let has_driver = world.setup.shards == 2;
        let mut builder = world.set_up(!has_driver);
        if let Some(max) = world.setup.max_pending {
            builder = builder.max_pending(max);
        }
        if has_driver {
            let (clock, naps) = (world.clock.clone(), Naps::default());
            let all = Arc::clone(&naps);
            let make_sleep: MakeSleep = Box::new(move |delay| Nap {
                until: clock.now() + delay.as_nanos(),
                clock: clock.clone(),
                naps: Arc::clone(&all),
            });
            let built = builder.build_with_driver(make_sleep);
            let (timer, driver) = built.expect("the settings are in range");
            let is_woken = Arc::new(Flag(AtomicBool::new(true)));
            let driver = DriverTask { driver: Mutex::new(driver), naps, is_woken };
            return Self { timer, driver: Some(Arc::new(driver)) };
        }
        let timer = builder.build().expect("the settings are in range");
        let sleeper = Self { timer, driver: None };
        // The first sleep creates the timer of the sleeps.
        sleeper.see();
        sleeper
    }

    /// Returns whether a task expires the sleeps.
    pub(crate) fn has_driver(&self) -> bool {
        self.driver.is_some()
    }

    /// Makes the timer read the clock, which adopted only a timer without a driver.
    pub(crate) fn see(&self) {
        drop(self.timer.sleep(duration(Delay::Endless)));
    }

    /// Polls the driver while it is woken. Returns whether it has ended.
    pub(crate) fn run_driver(&self, world: &World) -> Result<bool, String> {
        let Some(DriverTask { driver, naps, is_woken }) = self.driver.as_deref() else {
            return Ok(true);
        };
        let waker = Waker::from(Arc::clone(is_woken));
        for _ in 0..MOST_POLLS {
            lock(naps).retain(|(until, waker)| {
                let is_over = *until <= world.now();
                is_over.then(|| waker.wake_by_ref()).is_none()
            });
            if !is_woken.0.swap(false, Relaxed) {
                return Ok(false);
            }
            let polled = Pin::new(&mut *lock(driver)).poll(&mut Context::from_waker(&waker));
            if polled.is_ready() {
                is_woken.wake_by_ref();
                return Ok(true);
            }
        }
        Err(String::from("the driver does not stop"))
    }
}
