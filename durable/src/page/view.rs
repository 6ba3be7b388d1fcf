//! The markup of the page. `maud` escapes every text.

use std::time::Duration;

use maud::{DOCTYPE, Markup, html};

use crate::{
    inspect::Overview,
    record::Record,
    store::{QueueOverview, WorkerLease},
    time::WallTime,
};

pub(super) struct Snapshot {
    pub(super) overview: Overview,
    pub(super) queues: Vec<QueueOverview>,
    pub(super) dead: Vec<Record>,
    pub(super) has_more: bool,
    pub(super) workers: Option<Vec<WorkerLease>>,
}

const ERROR: usize = 300;

fn frame(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                link rel="stylesheet" href="/style.css";
                link rel="icon" href="data:,";
            }
            body { h1 { (title) } (body) }
        }
    }
}

pub(super) fn message(title: &str, text: &str) -> Markup {
    frame(title, &html! { p.notice { (text) } p { a href="/" { "Back" } } })
}

pub(super) fn page(title: &str, seen: &Snapshot, buttons: bool, notice: Option<&str>) -> Markup {
    let notice = match notice {
        Some("requeued") => Some("The timeout is due again."),
        Some("paused") => Some("The queue is paused."),
        Some("resumed") => Some("The queue is resumed."),
        Some("not-dead") => Some("The timeout is not dead any more. Nothing was changed."),
        _ => None,
    };
    let overview = &seen.overview;
    frame(
        title,
        &html! {
            p.time { "At " (at(overview.now)) ", in UTC. " a href="/" { "Load again" } }
            @if let Some(notice) = notice { p.notice { (notice) } }
            (cards(overview))
            h2 { "Due in the next " (overview.by_hour.len()) " hours, by the hour" }
            (plot(overview))
            h2 { "Queues" }
            (queues(seen, buttons))
            h2 #dead { "Dead timeouts" }
            (dead(seen, buttons))
            h2 { "Workers" }
            (workers(seen))
        },
    )
}

fn cards(overview: &Overview) -> Markup {
    let next: usize = overview.by_hour.iter().sum();
    let is_least = overview.by_hour.iter().any(|&count| count >= overview.limit);
    let late = overview.oldest_due.map(|oldest| span(overview.now.since(oldest)));
    html! {
        dl.cards {
            div { dt { "Due and not done" } dd { (count(overview.due, overview.limit)) } }
            div { dt { "Oldest of these, late by" } dd { (late.as_deref().unwrap_or("-")) } }
            div { dt { "Due in " (overview.by_hour.len()) " hours" }
                dd { (digits(next)) @if is_least { "+" } } }
            div { dt { "Dead" } dd.bad[overview.dead > 0] { (digits(overview.dead)) } }
        }
    }
}

/// Bars of the hours, with a line at each third of the scale.
fn plot(overview: &Overview) -> Markup {
    const WIDTH: usize = 960;
    const HEIGHT: usize = 220;
    const LEFT: usize = 70;
    const FLOOR: usize = HEIGHT - 24;
    let hours = &overview.by_hour;
    let step = (WIDTH - LEFT) / hours.len().max(1);
    let highest = hours.iter().copied().max().unwrap_or(0);
    let third = scale(highest.div_ceil(3));
    let height = |count: usize| (FLOOR - 12) * count / (3 * third);
    let hour = |number: usize| {
        let start = overview.hour.as_micros() / 3_600_000_000 + number as u64;
        format!("{:02}:00", start % 24)
    };
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
            aria-label=(format!("At most {} in an hour", count(highest, overview.limit))) {
            @for line in 0..=3 {
                @let y = FLOOR - height(line * third);
                line x1=(LEFT) x2=(WIDTH) y1=(y) y2=(y) {}
                text x=(LEFT - 8) y=(y + 4) text-anchor="end" { (digits(line * third)) }
            }
            @for (number, &pending) in hours.iter().enumerate() {
                @let x = LEFT + number * step;
                @let bar = height(pending).max(usize::from(pending > 0));
                rect x=(x + 3) y=(FLOOR - bar) width=(step.saturating_sub(6)) height=(bar) {
                    title { (hour(number)) ": " (count(pending, overview.limit)) }
                }
                @if number % 3 == 0 {
                    text x=(x + step / 2) y=(HEIGHT - 6) text-anchor="middle" { (hour(number)) }
                }
            }
        }
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn scale(least: usize) -> usize {
    let power = 10_usize.pow(least.max(1).ilog10());
    [1, 2, 5, 10]
        .map(|factor| factor * power)
        .into_iter()
        .find(|&round| round >= least)
        .unwrap_or(1)
}

fn queues(seen: &Snapshot, buttons: bool) -> Markup {
    let limit = seen.overview.limit;
    html! {
        div.wide { table {
            tr { th { "Queue" } th { "State" } th.number { "Due" } th.number { "All but dead" }
                @if buttons { th {} } }
            @for QueueOverview { queue, live, due, .. } in &seen.queues { tr {
                td.id { @if queue.name.as_str().is_empty() { "(default)" } @else { (queue.name) } }
                td { @if queue.is_paused { "paused" } @else { "-" } }
                td.number { (count(*due, limit)) }
                td.number { (count(*live, limit)) }
                @if buttons { td {
                    form method="post" action="/pause" {
                        input type="hidden" name="queue" value=(queue.name);
                        @if queue.is_paused { button name="resume" { "Resume" } }
                        @else { button { "Pause" } }
                    }
                } }
            } }
        } }
    }
}

fn dead(seen: &Snapshot, buttons: bool) -> Markup {
    let cursor = seen.dead.last().filter(|_| seen.has_more);
    let cursor = cursor.map(|last| format!("{}:{}", last.next.as_micros(), last.id));
    html! {
        @if seen.dead.is_empty() { p.none { "None." } } @else {
            div.wide { table {
                tr { th { "Id" } th { "Queue" } th { "Due" } th { "Last attempt" } th.number { "Attempts" }
                    th { "Error" } @if buttons { th {} } }
                @for record in &seen.dead { tr {
                    td.id { (record.id) }
                    td { (record.queue) }
                    td.time { (at(record.due)) }
                    td.time { (at(record.next)) }
                    td.number { (record.attempt) }
                    td.long { (shorten(record.error.as_deref().unwrap_or("-"))) }
                    @if buttons { td {
                        form method="post" action="/requeue" {
                            input type="hidden" name="id" value=(record.id);
                            button { "Requeue" }
                        }
                    } }
                } }
            } }
        }
        @if let Some(cursor) = cursor {
            form method="get" action="/" {
                input type="hidden" name="after" value=(cursor);
                p { button { "Next" } }
            }
        }
    }
}

fn workers(seen: &Snapshot) -> Markup {
    let now = seen.overview.now;
    html! {
        @match seen.workers.as_deref() {
            None => p.none { "Only the process that has the file open knows its workers." },
            Some([]) => p.none { "None." },
            Some(workers) => div.wide { table {
                tr { th { "Worker" } th { "Name" } th { "Lease until" } th.number { "Claimed" }
                    th.number { "Being delivered" } }
                @for worker in workers { tr {
                    td { (worker.worker.0) }
                    td { (worker.name.as_deref().unwrap_or("-")) }
                    td.time { (at(worker.until)) @if worker.until < now { " (ended)" } }
                    td.number { (digits(worker.held)) }
                    td.number { (digits(worker.delivering)) }
                } }
            } },
        }
    }
}

fn at(time: WallTime) -> String {
    let text = time.to_string();
    text.get(..19).unwrap_or(&text).replace('T', " ")
}

pub(super) fn count(number: usize, limit: usize) -> String {
    let plus = if number >= limit { "+" } else { "" };
    format!("{}{plus}", digits(number))
}

/// Writes a number in groups of three digits.
fn digits(number: impl std::fmt::Display) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn span(span: Duration) -> String {
    match span.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn shorten(text: &str) -> String {
    let short: String = text.chars().take(ERROR).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}
