//! The map of a world, beside a sorted map.

use std::{collections::BTreeMap, sync::Mutex};

use delaywheel::time::DelayMap;

use crate::{
    books::{Books, Tick},
    clock::WorldClock,
    script::{KEYS, OnMap, Setup, When},
    world::{World, lock},
};

#[derive(Debug)]
pub(crate) struct Map(Mutex<State>);

#[derive(Debug)]
struct State {
    map: DelayMap<u32, usize>,
    model: BTreeMap<u32, Entry>,
    /// The clock of the timer.
    books: Books,
    /// The number of calls, which are the values.
    calls: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    value: usize,
    deadline: Tick,
    /// Whether the deadline had passed: such an entry has no promised order.
    is_late: bool,
}

impl Map {
    pub(crate) fn new(setup: &Setup, clock: &WorldClock) -> Self {
        let timer = clock.builder(setup).build().expect("the settings are in range");
        let (map, books) = (DelayMap::on(&timer), Books::new(clock, setup.tick, None, 1));
        Self(Mutex::new(State { map, model: BTreeMap::new(), books, calls: 0 }))
    }

    pub(crate) fn see(&self, world: &World) {
        lock(&self.0).books.see(world.now());
    }

    pub(crate) fn call(&self, world: &World, call: OnMap) {
        let State { map, model, books, calls } = &mut *lock(&self.0);
        if !matches!(call, OnMap::Remove(_) | OnMap::Shrink) {
            books.see(world.now());
        }
        *calls += 1;
        let (value, now) = (*calls, books.now(world.now()));
        let entry = |when| {
            let deadline = match when {
                When::At(delay) => books.at(world.now(), world.time_for(delay)),
                _ => books.after(world.now(), when.delay()),
            };
            Entry { value, deadline: deadline.max(now), is_late: deadline < now }
        };
        let is_right = match call {
            OnMap::Insert(key, when) => {
                let (delay, instant, _) = world.values_of(when);
                let old = match when {
                    When::At(_) => map.insert_at(key, value, instant),
                    _ => map.insert(key, value, delay),
                };
                old.ok() == Some(model.insert(key, entry(when)).map(|old| old.value))
            }
            OnMap::Reset(key, when) => {
                let (delay, instant, _) = world.values_of(when);
                let is_reset = match when {
                    When::At(_) => map.reset_at(&key, instant),
                    _ => map.reset(&key, delay),
                };
                let reset = |old: &mut Entry| *old = Entry { value: old.value, ..entry(when) };
                is_reset == model.get_mut(&key).map(reset).is_some()
            }
            OnMap::Shrink => {
                map.shrink();
                true
            }
            OnMap::Remove(key) => map.remove(&key) == model.remove(&key).map(|old| old.value),
            OnMap::Pop(most) => {
                let (mut is_right, mut last) = (true, 0);
                for _ in 0..most {
                    let Some((key, value)) = map.pop_expired() else {
                        is_right &= model.values().all(|entry| entry.deadline > now);
                        break;
                    };
                    let entry = model.remove(&key);
                    is_right &= entry.is_some_and(|entry| {
                        let is_first = entry.is_late || last <= entry.deadline;
                        last = if entry.is_late { last } else { entry.deadline };
                        entry.value == value && entry.deadline <= now && is_first
                    });
                }
                is_right
            }
        };
        if !is_right {
            world.fault(format!("{call:?} at tick {now}, left: {map:?}, {model:?}"));
        }
        let mut entries: Vec<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
        entries.sort_unstable();
        let first = model.values().map(|entry| entry.deadline).min();
        let first = first.and_then(|tick| books.begin_of(tick)).map(|time| world.instant_of(time));
        let next = map.next_expiration();
        if first.is_some_and(|first| next.is_none_or(|next| next > first))
            || !entries.into_iter().eq(model.iter().map(|(key, entry)| (*key, entry.value)))
            || (0..KEYS).any(|key| map.get(&key) != model.get(&key).map(|entry| &entry.value))
        {
            world
                .fault(format!("after {call:?}: {map:?}, next {next:?}, not {model:?}, {first:?}"));
        }
    }
}
