//! Expired entries of a [`DelayMap`], for a task.

use std::{future::pending, hash::Hash};

use super::{SleepError, sleep_until};
use crate::time::DelayMap;

/// A future, with the feature `future`.
impl<K: Hash + Eq, V> DelayMap<K, V> {
    /// Waits for the next entry that is due, and removes it; `None` if the map is empty.
    ///
    /// The task sleeps on the timer of the map, or on the [default timer](super::default_timer()),
    /// which must have the system's clock. Entries that never expire keep it asleep.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::time::DelayMap;
    ///
    /// # pollster::block_on(async {
    /// let mut requests = DelayMap::new();
    /// requests.insert(7, "ping", Duration::from_millis(2))?;
    /// requests.insert(8, "pong", Duration::from_millis(1))?;
    /// while let Some((id, request)) = requests.next().await? {
    ///     println!("{id}, {request}, was not answered");
    /// }
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`SleepError`] if the timer is full or shut down. The map has lost nothing.
    ///
    /// # Cancel safety
    ///
    /// An entry leaves the map only when the future is ready. So it can be a branch of `select!`,
    /// beside one that waits for work and inserts it into the map. Call `next` again after that: it
    /// then waits for the earliest entry.
    pub async fn next(&mut self) -> Result<Option<(K, V)>, SleepError> {
        loop {
            if let Some(expired) = self.pop_expired() {
                return Ok(Some(expired));
            }
            if self.is_empty() {
                return Ok(None);
            }
            let Some(next) = self.next_expiration() else { pending().await };
            let sleep = match self.timer() {
                Some(timer) => timer.sleep_until(next),
                None => sleep_until(next),
            };
            sleep.await?;
        }
    }
}
