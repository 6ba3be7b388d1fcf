//! The work of a reaper for one timer: its turns, its part of a sleep, and its end.

use std::{boxed::Box, mem, sync::Arc, time::Duration, vec::Vec};

use super::{Client, Turn, expire::Holds, shared::Shared};
use crate::{
    sync::ThreadId,
    tick::Tick,
    timer::{
        executor::{Delivery, callback_threads::CallbackThread},
        shards::annex::Annex,
    },
    wheel::Expired,
};

/// What a reaper or a driver keeps for a timer.
pub(crate) struct TimerClient<T, X: Annex<T> = ()> {
    /// Deregistered before the reference to the timer is dropped.
    thread: Option<CallbackThread>,
    pub(crate) shared: Arc<Shared<T, X, X::Due>>,
    batch: Vec<Expired<X::Due>>,
    /// Lateness of the latest timeouts that expired; zero once no due timeout is left.
    lateness: Duration,
    /// Whether a timeout has expired since the last sleep.
    has_expired: bool,
    /// The tick of the latest turn.
    now: Tick,
    /// The announced end of the last sleep.
    slept_until: Option<Tick>,
}

impl<T: Send + 'static, X: Annex<T>> TimerClient<T, X> {
    pub(crate) fn new(shared: &Arc<Shared<T, X, X::Due>>) -> Self {
        Self {
            thread: None,
            shared: Arc::clone(shared),
            batch: Vec::new(),
            lateness: Duration::ZERO,
            has_expired: false,
            now: Tick::ZERO,
            slept_until: None,
        }
    }

    /// Expires due timeouts, in one hold of each shard. Returns whether no due timeout is left.
    pub(crate) fn expire(&mut self) -> bool {
        let Holds { now, lateness, is_drained } =
            self.shared.expire_some(&self.shared.delivery, &mut self.batch, self.lateness);
        self.lateness = lateness.unwrap_or(self.lateness);
        self.has_expired |= lateness.is_some();
        if is_drained {
            self.now = now;
            self.lateness = Duration::ZERO;
            let has_expired = mem::take(&mut self.has_expired);
            if self.slept_until.take().is_some_and(|until| until <= now) && !has_expired {
                self.shared.shards.raise_published();
            }
        }
        is_drained
    }
}

impl<T: Send + 'static, X: Annex<T>> Shared<T, X, X::Due> {
    /// Returns the client that a reaper serves. The reaper is a callback thread if callbacks run on
    /// it. A pool may run them there.
    pub(crate) fn client(self: &Arc<Self>) -> Box<dyn Client> {
        debug_assert!(!self.is_driven(), "a timer that its clock runs has no reaper");
        let runs_callbacks = !matches!(self.delivery, Delivery::Threads(_));
        let thread = runs_callbacks.then(|| self.callback_threads.register());
        Box::new(TimerClient { thread, ..TimerClient::new(self) })
    }
}

impl<T: Send + 'static, X: Annex<T>> Client for TimerClient<T, X> {
    fn begin(&mut self, thread: ThreadId) {
        self.shared.callback_threads.set_reaper(thread);
        self.thread.iter().for_each(|callbacks| callbacks.begin(thread));
    }

    fn turn(&mut self) -> Turn {
        if self.shared.shards.is_shut_down() {
            return Turn::Ended;
        }
        if !self.expire() {
            return Turn::Again;
        }
        if self.shared.shards.has_finished() {
            self.shared.delivery.close(|| ());
            return Turn::Ended;
        }
        Turn::Drained
    }

    fn until_next(&self) -> Duration {
        let shards = &self.shared.shards;
        shards.clock().pause_until(shards.next_expiration())
    }

    fn fall_asleep(&mut self, within: Duration) -> Option<Duration> {
        let (shards, clock) = (&*self.shared.shards, self.shared.shards.clock());
        let after = |span| clock.deadline(clock.read(), span);
        let latest = if within == Duration::MAX { Tick::MAX } else { after(within) };
        let until = shards.fall_asleep(self.now, latest)?;
        debug_assert!(until > self.now, "a sleep until {until} at {}", self.now);
        self.slept_until = Some(until);
        Some(clock.pause_until(until))
    }

    fn wake_up(&mut self, has_slept: bool) {
        self.shared.shards.announce_awake();
        if has_slept {
            self.shared.reaper_stats.lock().wakeups += 1;
        }
    }

    fn end_after_panic(&mut self) {
        self.shared.end_after_panic();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        clock::ManualClock,
        timer::{
            Timer, ValueTimer,
            reaper::{Clients, fall_asleep, round},
        },
    };

    /// Returns two timers in virtual time, of ticks of 1 ms and of 3 ms, as clients of a reaper.
    fn two_timers() -> ([ValueTimer<u32>; 2], Clients) {
        let clock = ManualClock::new();
        let timers = [1, 3].map(|tick| {
            let settings = Timer::builder().clock(clock.clone()).shards(1).inline();
            let timer = settings.tick(Duration::from_millis(tick)).build_with(drop);
            timer.expect("the settings are valid")
        });
        let client = |timer: &ValueTimer<u32>| Box::new(TimerClient::new(timer.shared())) as _;
        let clients = timers.iter().map(client).collect();
        (timers, clients)
    }

    #[test]
    fn an_insert_wakes_the_reaper_only_if_it_is_the_earliest_of_all_timers() {
        for early in [0, 1] {
            let (timers, mut clients) = two_timers();
            let (early, late) = (&timers[early], &timers[1 - early]);
            let schedule = |timer: &ValueTimer<u32>, ms| {
                timer.schedule(Duration::from_millis(ms), 0).expect("the timer runs");
            };
            schedule(early, 9000);
            schedule(late, 60_000);
            assert!(round(&mut clients));
            assert_eq!(fall_asleep(&mut clients), Some(Duration::from_secs(9)));
            for ms in [59_999, 9001, 9000] {
                schedule(late, ms);
                assert!(late.shards().is_asleep(), "woken for a timeout after {ms} ms");
            }
            schedule(late, 8997);
            assert!(!late.shards().is_asleep(), "not woken");
            assert!(early.shards().is_asleep());
            for client in &mut clients {
                client.wake_up(true);
            }
            assert_eq!(fall_asleep(&mut clients), Some(Duration::from_millis(8997)));
        }
    }

    #[test]
    fn a_timer_with_many_due_timeouts_leaves_the_others_their_turn() {
        let (timers, mut clients) = two_timers();
        (0..10_000).for_each(|value| drop(timers[0].schedule(Duration::ZERO, value)));
        timers[1].schedule(Duration::ZERO, 0).expect("the timer runs");
        assert!(!round(&mut clients), "all expired in one round");
        assert!(timers[0].stats().expired <= 64);
        assert_eq!(timers[1].stats().expired, 1);
    }
}
