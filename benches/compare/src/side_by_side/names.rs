//! Names of what is measured, by which tables and figures find it.

/// Nanoseconds for each timeout that is inserted into an empty contestant.
pub const INSERT: &str = "insert";

/// Nanoseconds for each timeout, when all expire.
pub const EXPIRE: &str = "expire all";

/// Nanoseconds to cancel one timeout and insert another, with delays of 1 ms to 60 s.
pub const CHURN_UNIFORM: &str = "cancel+insert uniform";

/// The same with delays of 1 ms to 30 days.
pub const CHURN_LOG_UNIFORM: &str = "cancel+insert log-uniform";

/// Nanoseconds for each message of a connection, which puts its timeout off.
pub const KEEP_ALIVE: &str = "keep-alive";

/// Nanoseconds for each request of a server.
pub const REQUESTS: &str = "request server";

/// Wake-ups for each of a thousand timeouts in a year.
pub const SPARSE_WAKEUPS: &str = "sparse year wake-ups";

/// Microseconds to expire a thousand timeouts in a year.
pub const SPARSE_TIME: &str = "sparse year time";

/// The most milliseconds by which a timeout came early in virtual time, whose deadline was a tick or
/// between two.
pub const EARLY: &str = "early by at most";

/// The same of late.
pub const LATE: &str = "late by at most";

/// Timeouts that came after one of a later deadline.
pub const UNORDERED: &str = "out of order";

/// Timeouts that got lost.
pub const LOST: &str = "lost";

/// Timeouts of a hundred that were cancelled and never came.
pub const CANCELLED: &str = "cancelled and gone";

/// How often one is woken with nothing to do while a lone timeout waits for a minute.
pub const VAIN_PENDING: &str = "wake-ups in vain, one pending";

/// How often one is woken for a lone timeout that was cancelled.
pub const VAIN_CANCELLED: &str = "wake-ups in vain, one cancelled";

/// Bytes for each pending timeout.
pub const MEMORY_PENDING: &str = "memory pending";

/// Bytes for each pending timeout, at the peak of a request server.
pub const MEMORY_PEAK: &str = "memory at the peak of churn";

/// Millions of pairs of schedule and cancel a second, of all threads; counted are the threads.
pub const THREADS: &str = "threads";

/// Context switches in a second with one timeout far ahead.
pub const IDLE_SWITCHES: &str = "idle context switches";

/// Threads that are there with one timeout far ahead.
pub const IDLE_THREADS: &str = "idle threads";

/// Milliseconds of lateness in real time; a percentile is a workload of its own.
pub const LATENESS: &str = "lateness/p50";

/// The percentiles of lateness: what they are called, and of how many in a thousand they are the
/// greatest.
pub const PERCENTILES: [(&str, usize); 10] = [
    ("min", 0),
    ("p1", 10),
    ("p10", 100),
    ("p25", 250),
    ("p50", 500),
    ("p75", 750),
    ("p90", 900),
    ("p99", 990),
    ("p99.9", 999),
    ("max", 1_000),
];

/// The workload that is a percentile of lateness.
#[must_use]
pub fn lateness(percentile: &str) -> String {
    format!("lateness/{percentile}")
}

/// Timeouts that never came in real time, or more than once.
pub const MISSING: &str = "lateness/missing";
