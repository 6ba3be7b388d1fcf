//! A reaper of two timers that falls asleep, ends, or is joined by a timer.

use std::{array, boxed::Box, sync::Arc, vec::Vec};

use super::{
    DUE, FAR, Log, beside, check, check_of_three, end, finish::finish, insert, join, serve,
    timer_of, timer_with,
};
use crate::{
    timer::{
        delivery::Delivery,
        reaper::{Clients, Reaper, round, sleep},
        turn::TimerClient,
        value::SharedTimer,
    },
    wheel::TimingWheel,
};

/// Returns two timers whose callbacks run on one reaper, with the values that their handlers get.
fn two_timers() -> (Reaper, [(Arc<SharedTimer<TimingWheel<u32>>>, Log); 2]) {
    let reaper = Reaper::new("");
    let timers = array::from_fn(|_| timer_of(&reaper, Delivery::Inline));
    (reaper, timers)
}

#[test]
fn a_reaper_that_falls_asleep_notices_an_insert_into_either_of_two_timers() {
    for early in [0, 1] {
        check(move || {
            let (reaper, timers) = two_timers();
            let parker = reaper.parker();
            let mut clients: Clients = Vec::new();
            for (timer, _) in &timers {
                clients.push(Box::new(TimerClient::new(timer)));
            }
            insert(&timers[1 - early].0.shards, 0, FAR, 1);
            let inserter = beside(&timers[early].0, |timer| insert(&timer.shards, 0, DUE, 2));
            while round(&mut clients) && timers[early].1.lock().is_empty() {
                sleep(parker, &mut clients);
            }
            join(inserter);
            assert_eq!(*timers[early].1.lock(), [2]);
        });
    }
}

#[test]
fn a_timer_that_joins_when_the_last_one_ends_is_served() {
    check_of_three(|| {
        let (reaper, [(last, _), (next, log)]) = two_timers();
        let thread = serve(&reaper, &last);
        assert_eq!(last.shut_down(), []);
        let second = serve(&reaper, &next);
        insert(&next.shards, 0, DUE, 7);
        assert_eq!(finish(&next), []);
        assert_eq!(*log.lock(), [7]);
        end(thread.into_iter().chain(second));
    });
}

#[test]
fn a_callback_that_finishes_a_timer_that_joins_does_not_wait_for_its_own_thread() {
    check(|| {
        let reaper = Reaper::new("");
        let (joining, _) = timer_of(&reaper, Delivery::Inline);
        let other = Arc::clone(&joining);
        let timer = timer_with(&reaper, Delivery::Inline, move |_| drop(finish(&other)));
        let thread = serve(&reaper, &timer);
        insert(&timer.shards, 0, DUE, 7);
        let second = serve(&reaper, &joining);
        assert_eq!(finish(&timer), []);
        end(thread.into_iter().chain(second));
    });
}
