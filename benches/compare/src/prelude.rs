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
    Completion, DelayedOperation, ManualClock, Purgatory, PurgatoryBuilder, Tick, Timer,
    TimerBuilder, TimingWheel, ValueTimer, Watched, purgatory::OperationKey,
};
pub(crate) use fastrand::Rng;
pub(crate) use hdrhistogram::Histogram;
pub(crate) use parking_lot::Mutex;
pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use slotmap::{DefaultKey, SlotMap};

pub(crate) use crate::{
    Promises, Timers, Wakes,
    arrivals::{Arrivals, histogram, percentile},
    bench::{Bench, CONTESTANTS, Done, Figure, Results, median},
    measure::wheel::{insert_all, nanos_per, timed},
    os::{cpu, process_cpu, sleep_until, spent, wait_until},
    purgatory::{
        Announce, Answer, ClosedLoop, Crowd, Demand, KafkaPurgatory, Request, Requests,
        SharedPurgatory, demands, demands_apart, settle_own,
    },
    rows,
    shared::{self, Closures, Counter, Note, SharedTimer, Typed, replace_all, schedule_all},
    timers::{
        self, BTree, LazyHeap, Wheel,
        lists::Lists,
        rounded::{Rounded, TENTHS},
    },
    workload::{
        DAY, MICRO, MILLI, Pair, SECOND, Spread, Victim, count, delays, instants, nanos, size,
        victims,
    },
};
