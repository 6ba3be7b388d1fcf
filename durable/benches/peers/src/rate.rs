//! How many calls a second complete, for the programs that are compared.

use std::time::{Duration, Instant};

/// Returns timeouts a second: by one caller and by 32, and in batches of a thousand by one caller
/// and by 16.
pub(crate) async fn rates<S: Future<Output = ()> + Send, B: Future<Output = ()> + Send>(
    span: Duration,
    schedule: impl Fn() -> S + Clone + Send + 'static,
    batch: impl Fn() -> B + Clone + Send + 'static,
) -> [f64; 4] {
    [
        rate(1, span, schedule.clone()).await,
        rate(32, span, schedule).await,
        rate(1, span, batch.clone()).await * 1_000.0,
        rate(16, span, batch).await * 1_000.0,
    ]
}

/// Runs callers for a time, each a task, and returns how many calls they completed in a second.
async fn rate<F>(callers: u32, span: Duration, call: impl Fn() -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output = ()> + Send,
{
    let start = Instant::now();
    let callers = (0..callers).map(|_| {
        let call = call.clone();
        tokio::spawn(async move {
            let mut count = 0;
            while start.elapsed() < span {
                call().await;
                count += 1;
            }
            count
        })
    });
    let mut count = 0;
    for caller in callers.collect::<Vec<_>>() {
        count += caller.await.expect("no panic");
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}
