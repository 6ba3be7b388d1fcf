//! Maps whose entries expire. They run in virtual time, except for moka, which expires entries
//! during other calls.

use std::{
    collections::{HashMap, hash_map::Entry},
    iter,
    mem::replace,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use delay_map::HashMapDelay;
use delaywheel::{time::DelayMap, wheel::Key};
use futures_lite::Stream;
use moka::sync::Cache;
use tokio_util::time::{DelayQueue, delay_queue};

use super::{Turn, memory::Heap};
use crate::prelude::*;
use crate::timers::{advance_clock, enter};

pub const MEMORY: &str = "map/memory";

/// A map whose entries expire after a delay in milliseconds. The value is that delay.
trait Map: Default {
    const NAME: &'static str;

    /// Adds an entry, or replaces it.
    fn insert(&mut self, key: u64, delay: u64);

    fn remove(&mut self, key: u64) -> bool;

    /// Lets time pass, and takes the due entries in order. Returns their number, or `None` if the
    /// map does not hand them out.
    fn expire(&mut self, millis: u64) -> Option<usize>;
}

struct Ours(ManualClock, DelayMap<u64, u64>);

impl Default for Ours {
    fn default() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
        Self(clock, DelayMap::on(&timer))
    }
}

impl Map for Ours {
    const NAME: &'static str = Wheel::NAME;

    fn insert(&mut self, key: u64, delay: u64) {
        self.1.insert(key, delay, Duration::from_millis(delay)).expect("the map has room");
    }

    fn remove(&mut self, key: u64) -> bool {
        self.1.remove(&key).is_some()
    }

    fn expire(&mut self, millis: u64) -> Option<usize> {
        self.0.advance(Duration::from_millis(millis));
        Some(iter::from_fn(|| self.1.pop_expired()).count())
    }
}

/// A hash map and a wheel, as a program would combine them.
#[derive(Default)]
struct ByHand(HashMap<u64, (Key, u64)>, TimingWheel<u64>);

impl Map for ByHand {
    const NAME: &'static str = "map and wheel";

    fn insert(&mut self, key: u64, delay: u64) {
        let Self(map, wheel) = self;
        let deadline = Tick::new(wheel.now().get() + delay);
        match map.entry(key) {
            Entry::Occupied(mut entry) => {
                wheel.reset(entry.get().0, deadline);
                entry.get_mut().1 = delay;
            }
            Entry::Vacant(place) => {
                place.insert((wheel.insert(deadline, key).expect("the wheel has room"), delay));
            }
        }
    }

    fn remove(&mut self, key: u64) -> bool {
        self.0.remove(&key).is_some_and(|(key, _)| self.1.cancel(key).is_some())
    }

    fn expire(&mut self, millis: u64) -> Option<usize> {
        let Self(map, wheel) = self;
        let due = wheel.advance(Tick::new(wheel.now().get() + millis));
        Some(due.filter(|expired| map.remove(&expired.value).is_some()).count())
    }
}

/// The crate `delay_map`: a hash map and tokio-util's `DelayQueue`.
struct Streamed(HashMapDelay<u64, u64>);

impl Default for Streamed {
    fn default() -> Self {
        enter();
        Self(HashMapDelay::default())
    }
}

impl Map for Streamed {
    const NAME: &'static str = "delay_map";

    fn insert(&mut self, key: u64, delay: u64) {
        self.0.insert_at(key, delay, Duration::from_millis(delay));
    }

    fn remove(&mut self, key: u64) -> bool {
        self.0.remove(&key).is_some()
    }

    fn expire(&mut self, millis: u64) -> Option<usize> {
        advance_clock(millis);
        let mut context = Context::from_waker(Waker::noop());
        let next = || match Pin::new(&mut self.0).poll_next(&mut context) {
            Poll::Ready(expired) => expired,
            Poll::Pending => None,
        };
        Some(iter::from_fn(next).count())
    }
}

/// A hash map and tokio-util's `DelayQueue`, as a program combines them: it needs the keys that the
/// queue hands out to remove an entry.
struct Queued(HashMap<u64, (delay_queue::Key, u64)>, DelayQueue<u64>);

impl Default for Queued {
    fn default() -> Self {
        enter();
        Self(HashMap::new(), DelayQueue::new())
    }
}

impl Map for Queued {
    const NAME: &'static str = "map and delay_queue";

    fn insert(&mut self, key: u64, delay: u64) {
        let Self(map, queue) = self;
        let span = Duration::from_millis(delay);
        match map.entry(key) {
            Entry::Occupied(mut entry) => {
                queue.reset(&entry.get().0, span);
                entry.get_mut().1 = delay;
            }
            Entry::Vacant(place) => _ = place.insert((queue.insert(key, span), delay)),
        }
    }

    fn remove(&mut self, key: u64) -> bool {
        self.0.remove(&key).is_some_and(|(key, _)| self.1.try_remove(&key).is_some())
    }

    fn expire(&mut self, millis: u64) -> Option<usize> {
        let Self(map, queue) = self;
        advance_clock(millis);
        let due = || match queue.poll_expired(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(expired) => expired,
            Poll::Pending => None,
        };
        Some(iter::from_fn(due).filter(|due| map.remove(due.get_ref()).is_some()).count())
    }
}

/// The crate `moka`, with the same time to live for each entry.
struct Moka(Cache<u64, u64>);

impl Default for Moka {
    fn default() -> Self {
        Self(Cache::builder().time_to_live(Duration::from_secs(30)).build())
    }
}

impl Map for Moka {
    const NAME: &'static str = "moka";

    fn insert(&mut self, key: u64, delay: u64) {
        self.0.insert(key, delay);
    }

    fn remove(&mut self, key: u64) -> bool {
        self.0.remove(&key).is_some()
    }

    fn expire(&mut self, _: u64) -> Option<usize> {
        self.0.run_pending_tasks();
        None
    }
}

/// A contestant: its name, and its measurements.
pub type Entrant = (&'static str, fn(u32, u32, u64) -> [f64; 3], fn(&Turn, &Heap) -> usize);

const fn entrant<M: Map>() -> Entrant {
    (M::NAME, times::<M>, memory::<M>)
}

pub const ALL: [Entrant; 5] = [
    entrant::<Ours>(),
    entrant::<ByHand>(),
    entrant::<Streamed>(),
    entrant::<Queued>(),
    entrant::<Moka>(),
];

/// Nanoseconds of a remove with an insert, of an insert over an entry, and of an expiry.
fn times<M: Map>(pending: u32, pairs: u32, seed: u64) -> [f64; 3] {
    let mut rng = Rng::with_seed(seed);
    let (mut map, mut keys) = (M::default(), (0..u64::from(pending)).collect::<Vec<_>>());
    keys.iter().for_each(|&key| map.insert(key, Spread::Minute.draw(&mut rng)));
    let mut draw = || (rng.usize(0..keys.len()), Spread::Minute.draw(&mut rng));
    let draws: Vec<_> = (0..pairs).map(|_| draw()).collect();
    let (pair, ()) = timed(|| {
        for (&(victim, delay), key) in draws.iter().zip(u64::from(pending)..) {
            assert!(map.remove(replace(&mut keys[victim], key)), "{} lost an entry", M::NAME);
            map.insert(key, delay);
        }
    });
    let insert = |&(victim, delay): &(usize, u64)| map.insert(keys[victim], delay);
    let (over, ()) = timed(|| draws.iter().for_each(insert));
    let (expiry, expired) = timed(|| (0..61).map(|_| map.expire(SECOND)).sum::<Option<usize>>());
    assert!(expired.is_none_or(|expired| expired == keys.len()), "{} lost entries", M::NAME);
    let expiry = expired.map_or(f64::NAN, |_| nanos_per(expiry, pending.into()));
    [nanos_per(pair, pairs.into()), nanos_per(over, pairs.into()), expiry]
}

/// Returns the heap bytes of a map with this number of entries.
fn memory<M: Map>(turn: &Turn, heap: &Heap) -> usize {
    drop(M::default());
    let delays = Spread::Minute.delays(&mut Rng::with_seed(turn.seed), turn.number);
    let (before, mut map) = ((heap.live)(), M::default());
    (0..).zip(&delays).for_each(|(key, &delay)| map.insert(key, delay));
    map.expire(0);
    (heap.live)() - before
}

pub(crate) fn run(bench: &mut Bench) -> Done {
    for &pending in bench.full(&[1_000][..], &[1_000, 100_000]) {
        let pairs = bench.full(2_000, 200_000);
        for round in 0..bench.rounds() as u64 {
            bench.tell("map");
            for (name, times, _) in bench.of(&ALL, |one| one.0) {
                let figures = times(pending, pairs, bench.options.seed + round);
                let rows = ["pair", "over", "expire"].into_iter().zip(figures);
                for (row, value) in rows.filter(|(_, value)| !value.is_nan()) {
                    bench.add(&format!("map/{row}/{}", size(pending)), name, value);
                }
            }
        }
    }
    Ok(())
}
