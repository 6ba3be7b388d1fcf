//! [`ValueTimer`] with values of eight bytes.

use delaywheel::{TimeoutKey, Timer, TimerStats};

use super::settle_own;
use crate::prelude::*;

/// The value of a timeout that counts. Other values are deadlines of timeouts that note when they
/// run.
const COUNTS: u64 = u64::MAX;

/// [`ValueTimer`], whose handler counts; on the reaper's thread, if it is inline.
#[derive(Clone)]
pub struct Typed<const INLINE: bool = false> {
    timer: ValueTimer<u64>,
    ran: Counter,
    /// Where the handler notes timeouts; unset until one is to be noted.
    arrivals: Arc<OnceLock<Arc<Arrivals>>>,
}

impl<const INLINE: bool> Typed<INLINE> {
    pub fn new(settings: TimerBuilder) -> Self {
        let (ran, arrivals) = (Counter::new(), Arc::new(OnceLock::<Arc<Arrivals>>::new()));
        let noted = Arc::clone(&arrivals);
        let handler = move |value| {
            ran.add();
            if let Some(arrivals) = noted.get().filter(|_| value != COUNTS) {
                arrivals.note(value);
            }
        };
        let settings = if INLINE { settings.inline() } else { settings };
        let timer = settings.build_with(handler).expect("the settings are valid");
        Self { timer, ran, arrivals }
    }

    /// Notes when timeouts run, at these nanoseconds after the origin of the notes.
    pub fn schedule_at(&self, arrivals: &Arc<Arrivals>, dues: &[u64]) {
        self.note_in(arrivals);
        for &due in dues {
            let timeout = self.timer.schedule_at(arrivals.instant(due), due);
            timeout.expect("the timer takes 2^32 timeouts");
        }
    }

    fn note_in(&self, arrivals: &Arc<Arrivals>) {
        let known = self.arrivals.get_or_init(|| Arc::clone(arrivals));
        assert!(Arc::ptr_eq(known, arrivals), "a typed timer notes timeouts in one place");
    }

    pub fn stats(&self) -> TimerStats {
        self.timer.stats()
    }
}

impl<const INLINE: bool> SharedTimer for Typed<INLINE> {
    type Timeout = TimeoutKey;

    const NAME: &'static str = if INLINE { "delaywheel inline" } else { "delaywheel typed" };

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

    fn reset(&self, timeout: &mut TimeoutKey, delay: Duration) -> bool {
        self.timer.reset(*timeout, delay)
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        self.note_in(&note.arrivals);
        self.timer.schedule(delay, note.due).expect("the timer takes 2^32 timeouts");
    }

    fn settle(&self, scheduled: u64, cancelled: u64) {
        let returned = self.timer.shutdown().len();
        settle_own(Self::NAME, returned, &self.timer.stats(), self.ran, [scheduled, cancelled]);
    }
}
