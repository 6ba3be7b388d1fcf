//! A cache whose entries have a time to live: `cargo run --example cache`.

use std::{error::Error, hash::Hash, time::Duration};

use delaywheel::{ManualClock, Timer, time::DelayMap};

/// Values that are dropped some time after they were stored.
struct Cache<K, V> {
    live: Duration,
    entries: DelayMap<K, V>,
}

impl<K: Hash + Eq, V> Cache<K, V> {
    fn new(timer: &Timer, live: Duration) -> Self {
        Self { live, entries: DelayMap::on(timer) }
    }

    /// Returns a live value, which the function makes if there is none.
    fn get_or_insert_with(&mut self, key: &K, make: impl FnOnce() -> V) -> Option<&V>
    where
        K: Clone,
    {
        while self.entries.pop_expired().is_some() {}
        if self.entries.get(key).is_none() {
            let value = make();
            // A full map caches nothing.
            self.entries.insert(key.clone(), value, self.live).ok()?;
        }
        self.entries.get(key)
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build()?;
    let mut cache = Cache::new(&timer, Duration::from_secs(60));
    let mut made = 0;
    for _ in 0..4 {
        let address = cache.get_or_insert_with(&"example.org", || {
            made += 1;
            format!("192.0.2.{made}")
        });
        println!("{:>3} s: {address:?}", clock.elapsed().as_secs());
        clock.advance(Duration::from_secs(25));
    }
    assert_eq!(made, 2, "the first lived for 60 s");
    Ok(())
}
