//! The names that most modules use.

pub(crate) use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    env,
    error::Error,
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    sync::{
        Arc, Barrier, LazyLock, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub(crate) use delaywheel::{
    ManualClock, Tick, Timer, TimerBuilder, ValueTimer, wheel::TimingWheel,
};
pub(crate) use fastrand::Rng;
pub(crate) use hdrhistogram::Histogram;
pub(crate) use parking_lot::Mutex;
pub(crate) use serde::{Deserialize, Serialize};

pub(crate) use crate::{
    Timers,
    arrivals::{Arrivals, Outcome, histogram, percentile},
    bench::{Bench, CONTESTANTS, Done, Figure, Options, Results, median},
    measure::wheel::{nanos_per, timed},
    os::{cpu, process_cpu, sleep_until, spent, wait_until},
    purgatory::{
        Announce, Answer, ClosedLoop, Crowd, Demand, Expiring, Handle, Requests, demands,
        demands_apart,
    },
    rows,
    shared::{self, Counter, Note, SharedTimer, Typed, schedule_all},
    timers::{self, Wheel},
    workload::{
        DAY, Draws, MICRO, MILLI, Pair, SECOND, Spread, Victim, count, delays, instants, nanos,
        size,
    },
};
