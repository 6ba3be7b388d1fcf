//! Draws the figures from the results of a run, and from nothing else.

mod bars;
mod canvas;
mod lines;
mod percentiles;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use delaywheel_compare::side_by_side::{names, results::Results};

pub(crate) use self::canvas::number;
use self::{
    bars::{Bars, Series},
    canvas::Drawn,
};

/// A figure: the workload without which it is left out, its file, and how it is drawn.
struct Figure {
    needs: &'static str,
    file: &'static str,
    /// What it shows.
    caption: &'static str,
    draw: fn(&Results, &Path) -> Drawn,
}

const FIGURES: &[Figure] = &[
    Figure {
        needs: names::INSERT,
        file: "insert.svg",
        caption: "Cost of insert against pending timeouts",
        draw: insert,
    },
    Figure {
        needs: names::EXPIRE,
        file: "expire.svg",
        caption: "Cost of expiry against pending timeouts",
        draw: expire,
    },
    Figure {
        needs: names::CHURN_UNIFORM,
        file: "churn.svg",
        caption: "Cost of cancel and insert against pending timeouts",
        draw: churn,
    },
    Figure {
        needs: names::CHURN_LOG_UNIFORM,
        file: "churn-month.svg",
        caption: "The same with delays of up to a month",
        draw: churn_month,
    },
    Figure {
        needs: names::REQUESTS,
        file: "server.svg",
        caption: "Cost of a request and of a message",
        draw: server,
    },
    Figure {
        needs: names::SPARSE_WAKEUPS,
        file: "sparse.svg",
        caption: "Wake-ups in a sparse year",
        draw: sparse,
    },
    Figure {
        needs: names::MEMORY_PENDING,
        file: "memory.svg",
        caption: "Bytes for each pending timeout",
        draw: memory,
    },
    Figure {
        needs: names::THREADS,
        file: "threads.svg",
        caption: "Throughput of one and two threads",
        draw: threads,
    },
    Figure {
        needs: names::LATENESS,
        file: "lateness.svg",
        caption: "Percentiles of lateness in real time",
        draw: lateness,
    },
];

/// Draws all figures for which there are measurements. Returns their files.
pub(crate) fn render(results: &Results, folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    for figure in FIGURES.iter().filter(|figure| results.has(figure.needs)) {
        let file = folder.join(figure.file);
        (figure.draw)(results, &file)?;
        files.push(file);
    }
    Ok(files)
}

/// File and caption of each figure for which there are measurements.
pub(crate) fn captions(results: &Results) -> impl Iterator<Item = (&'static str, &'static str)> {
    let figures = FIGURES.iter().filter(|figure| results.has(figure.needs));
    figures.map(|figure| (figure.file, figure.caption))
}

fn insert(results: &Results, path: &Path) -> Drawn {
    lines::draw(results, names::INSERT, "Insert, delays of 1 ms to 60 s", path)
}

fn expire(results: &Results, path: &Path) -> Drawn {
    lines::draw(results, names::EXPIRE, "Expire all, delays of 1 ms to 60 s", path)
}

fn churn(results: &Results, path: &Path) -> Drawn {
    let title = "Cancel one and insert another, delays of 1 ms to 60 s";
    lines::draw(results, names::CHURN_UNIFORM, title, path)
}

fn churn_month(results: &Results, path: &Path) -> Drawn {
    let title = "Cancel one and insert another, delays of 1 ms to 30 days";
    lines::draw(results, names::CHURN_LOG_UNIFORM, title, path)
}

fn server(results: &Results, path: &Path) -> Drawn {
    Bars {
        title: "A request server, and connections that are kept alive",
        below: "nanoseconds per request answered or message received; less is better",
        axis: "ns, logarithmic",
        series: &[
            Series { workload: names::KEEP_ALIVE, n: None, name: "keep-alive" },
            Series { workload: names::REQUESTS, n: None, name: "request" },
        ],
        is_log: true,
        is_greatest_best: false,
    }
    .draw(results, path)
}

fn sparse(results: &Results, path: &Path) -> Drawn {
    Bars {
        title: "Wake-ups to expire 1000 timeouts that lie within a year",
        below: "wake-ups per timeout; less is better, and 1 is needed; ≈ is estimated from a part of the year",
        axis: "wake-ups per timeout, logarithmic",
        series: &[Series { workload: names::SPARSE_WAKEUPS, n: None, name: "" }],
        is_log: true,
        is_greatest_best: false,
    }
    .draw(results, path)
}

fn memory(results: &Results, path: &Path) -> Drawn {
    Bars {
        title: "Memory for each timeout of 8 bytes",
        below: "bytes with all pending, and at the peak of a request server; with the handle, of those with threads",
        axis: "bytes, logarithmic",
        series: &[
            Series {
                workload: names::MEMORY_PEAK,
                n: None,
                name: "at the peak",
            },
            Series { workload: names::MEMORY_PENDING, n: None, name: "pending" },
        ],
        is_log: true,
        is_greatest_best: false,
    }
    .draw(results, path)
}

fn threads(results: &Results, path: &Path) -> Drawn {
    Bars {
        title: "Threads that cancel and schedule at once",
        below: "millions of pairs a second, of all threads together; more is better",
        axis: "million pairs a second",
        series: &[
            Series { workload: names::THREADS, n: Some(1), name: "1 thread" },
            Series { workload: names::THREADS, n: Some(2), name: "2 threads" },
        ],
        is_log: false,
        is_greatest_best: true,
    }
    .draw(results, path)
}

fn lateness(results: &Results, path: &Path) -> Drawn {
    percentiles::draw(results, "When timeouts come, in real time", path)
}
