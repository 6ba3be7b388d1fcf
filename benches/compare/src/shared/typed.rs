//! [`ValueTimer`] with values of eight bytes.

use delaywheel::{TimeoutKey, Timer};

use super::settle_own;
use crate::prelude::*;

/// The value of a timeout that counts. Other values are deadlines of timeouts that note when they
/// run.
const COUNTS: u64 = u64::MAX;

/// [`ValueTimer`], whose handler counts.
#[derive(Clone)]
pub struct Typed {
    timer: ValueTimer<u64>,
    ran: Counter,
    /// Where the handler notes timeouts; unset until one is to be noted.
    arrivals: Arc<OnceLock<Arc<Arrivals>>>,
}

impl Typed {
    pub fn new(settings: TimerBuilder) -> Self {
        let (ran, arrivals) = (Counter::new(), Arc::new(OnceLock::<Arc<Arrivals>>::new()));
        let noted = Arc::clone(&arrivals);
        let handler = move |value| {
            ran.add();
            if let Some(arrivals) = noted.get().filter(|_| value != COUNTS) {
                arrivals.note(value);
            }
        };
        let timer = settings.build_with(handler).expect("the settings are valid");
        Self { timer, ran, arrivals }
    }
}

impl SharedTimer for Typed {
    type Timeout = TimeoutKey;

    const PROMISES: Promises = Promises { name: "delaywheel typed", ..Promises::STRICT };

    fn start() -> Self {
        Self::new(Timer::builder())
    }

    fn schedule(&self, delay: Duration) -> TimeoutKey {
        self.timer.schedule(delay, COUNTS).expect("the timer takes 2^32 timeouts")
    }

    fn replace(&self, timeout: &mut TimeoutKey, delay: Duration) -> bool {
        let was_pending = self.timer.cancel(*timeout).is_some();
        *timeout = self.schedule(delay);
        was_pending
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        let arrivals = self.arrivals.get_or_init(|| Arc::clone(&note.arrivals));
        assert!(Arc::ptr_eq(arrivals, &note.arrivals), "a typed timer notes timeouts in one place");
        self.timer.schedule(delay, note.due).expect("the timer takes 2^32 timeouts");
    }

    fn settle(&self, scheduled: u64, cancelled: u64) {
        let returned = self.timer.shutdown().len();
        settle_own(Self::NAME, returned, &self.timer.stats(), self.ran, [scheduled, cancelled]);
    }
}
