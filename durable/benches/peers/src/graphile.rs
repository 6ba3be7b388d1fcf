//! `graphile_worker`, with a local queue and ten polls a second.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, JobSpecBuilder, LocalQueueConfig, TaskHandler, WorkerContext,
    WorkerOptions,
};
use serde::{Deserialize, Serialize};

use crate::{
    Figures, Result, SPAN, delivered, lateness, note_lateness, rate::rates, rate_of_deliveries,
    someday, soon,
};

const DELIVERIES: u32 = 30_000;

/// A job with a payload, or one whose lateness counts.
#[derive(Clone, Serialize, Deserialize)]
enum Job {
    Payload(String),
    Due(DateTime<Utc>),
}

impl TaskHandler for Job {
    const IDENTIFIER: &'static str = "job";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        match self {
            Self::Payload(_) => delivered(),
            Self::Due(due) => note_lateness(due),
        }
        Ok::<(), String>(())
    }
}

fn payload() -> Job {
    Job::Payload("payload".to_owned())
}

fn at(due: DateTime<Utc>) -> JobSpec {
    JobSpecBuilder::new().run_at(due).build()
}

fn later() -> (Job, JobSpec) {
    let due = Utc::now() + TimeDelta::seconds(someday().into());
    (payload(), at(due))
}

pub(crate) async fn measure(url: &str) -> Result<Figures> {
    let worker = WorkerOptions::default()
        .database_url(url)
        .max_pg_conn(32)
        .concurrency(16)
        .poll_interval(Duration::from_millis(100))
        .local_queue(LocalQueueConfig::default().with_size(500))
        .define_job::<Job>()
        .init()
        .await?;
    let utils = worker.create_utils();
    let (caller, batcher) = (utils.clone(), utils.clone());
    let callers = move || {
        let utils = caller.clone();
        async move {
            let (job, spec) = later();
            utils.add_job(job, spec).await.expect("job");
        }
    };
    let batches = move || {
        let utils = batcher.clone();
        async move {
            let jobs: Vec<_> = (0..1_000).map(|_| later()).collect();
            let jobs: Vec<_> = jobs.iter().map(|(job, spec)| (job.clone(), spec)).collect();
            utils.add_jobs(&jobs).await.expect("jobs");
        }
    };
    let rates = rates(SPAN, callers, batches).await;
    let now = JobSpec::default();
    for _ in 0..DELIVERIES / 1_000 {
        let jobs: Vec<_> = (0..1_000).map(|_| (payload(), &now)).collect();
        utils.add_jobs(&jobs).await?;
    }
    tokio::spawn(async move { worker.run().await });
    let deliveries = rate_of_deliveries(DELIVERIES).await;
    let jobs: Vec<_> = soon().map(|due| (Job::Due(due), at(due))).collect();
    let jobs: Vec<_> = jobs.iter().map(|(job, spec)| (job.clone(), spec)).collect();
    utils.add_jobs(&jobs).await?;
    Ok(Figures { rates, deliveries, late: lateness().await })
}
