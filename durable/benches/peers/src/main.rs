//! The work of the bench `targets` on `graphile_worker`, at the URL of a PostgreSQL server.
//!
//! Prints one line: jobs a second by 32 callers, in batches of 1,000, and delivered; lateness in
//! milliseconds, median and p99.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, JobSpecBuilder, LocalQueueConfig, TaskHandler, WorkerContext,
    WorkerOptions,
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

const SPAN: Duration = Duration::from_secs(3);
const DELIVERIES: u64 = 30_000;

static DONE: AtomicU64 = AtomicU64::new(0);
static LATE: Mutex<Vec<f64>> = Mutex::new(Vec::new());

/// A job that is not due during the measurement.
#[derive(Clone, Serialize, Deserialize)]
struct Later {
    payload: String,
}

#[derive(Clone, Serialize, Deserialize)]
struct Now {
    payload: String,
}

#[derive(Clone, Serialize, Deserialize)]
struct Soon {
    due: DateTime<Utc>,
}

impl TaskHandler for Later {
    const IDENTIFIER: &'static str = "later";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        Ok::<(), String>(())
    }
}

impl TaskHandler for Now {
    const IDENTIFIER: &'static str = "now";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        DONE.fetch_add(1, SeqCst);
        Ok::<(), String>(())
    }
}

impl TaskHandler for Soon {
    const IDENTIFIER: &'static str = "soon";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        let late = (Utc::now() - self.due).to_std().unwrap_or_default();
        LATE.lock().expect("not poisoned").push(late.as_secs_f64() * 1_000.0);
        Ok::<(), String>(())
    }
}

fn at(due: DateTime<Utc>) -> JobSpec {
    JobSpecBuilder::new().run_at(due).build()
}

/// Returns a time after the end of the measurement, as in `targets`.
fn someday() -> JobSpec {
    at(Utc::now() + chrono::Duration::seconds(fastrand::i64(3_600..365 * 86_400)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: peers URL")?;
    let worker = WorkerOptions::default()
        .database_url(&url)
        .max_pg_conn(32)
        .concurrency(16)
        .poll_interval(Duration::from_millis(100))
        .local_queue(LocalQueueConfig::default().with_size(500))
        .define_job::<Later>()
        .define_job::<Now>()
        .define_job::<Soon>()
        .init()
        .await?;
    let utils = worker.create_utils();

    let start = Instant::now();
    let callers = (0..32).map(|_| {
        let utils = utils.clone();
        tokio::spawn(async move {
            let mut count = 0;
            while start.elapsed() < SPAN {
                let job = Later { payload: "payload".to_owned() };
                utils.add_job(job, someday()).await.expect("job");
                count += 1;
            }
            count
        })
    });
    let mut count = 0;
    for caller in callers.collect::<Vec<_>>() {
        count += caller.await?;
    }
    let callers = f64::from(count) / start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < SPAN {
        let specs: Vec<_> = (0..1_000).map(|_| someday()).collect();
        let new = |spec| (Later { payload: "payload".to_owned() }, spec);
        utils.add_jobs(&specs.iter().map(new).collect::<Vec<_>>()).await?;
        count += 1_000;
    }
    let batches = f64::from(count) / start.elapsed().as_secs_f64();

    let now = JobSpec::default();
    for _ in 0..DELIVERIES / 1_000 {
        let jobs: Vec<_> =
            (0..1_000).map(|_| (Now { payload: "payload".to_owned() }, &now)).collect();
        utils.add_jobs(&jobs).await?;
    }
    let start = Instant::now();
    tokio::spawn(async move { worker.run().await });
    while DONE.load(SeqCst) < DELIVERIES {
        sleep(Duration::from_millis(1)).await;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let deliveries = DELIVERIES as f64 / start.elapsed().as_secs_f64();

    let first = Utc::now() + chrono::Duration::seconds(2);
    let dues: Vec<_> = (0..1_000).map(|n| first + chrono::Duration::milliseconds(4 * n)).collect();
    let specs: Vec<_> = dues.iter().map(|&due| at(due)).collect();
    let jobs: Vec<_> = dues.iter().zip(&specs).map(|(&due, spec)| (Soon { due }, spec)).collect();
    utils.add_jobs(&jobs).await?;
    while LATE.lock().expect("not poisoned").len() < dues.len() {
        sleep(Duration::from_millis(20)).await;
    }
    let mut late = LATE.lock().expect("not poisoned").clone();
    late.sort_unstable_by(f64::total_cmp);
    let (p50, p99) = (late[late.len() / 2], late[late.len() * 99 / 100]);
    println!("{callers:.3} {batches:.3} {deliveries:.3} {p50:.3} {p99:.3}");
    Ok(())
}
