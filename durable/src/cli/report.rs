//! What the program prints: text for people, or one JSON object.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use delaywheel_durable::{
    Attempt, Cancelled, Counts, Name, QueueOverview, Record, Repeat, TimeoutId, WallTime,
};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) is_json: bool,
}

impl Report {
    fn print(self, json: &Value, text: &str) -> io::Result<()> {
        if self.is_json {
            writeln!(io::stdout(), "{json}")
        } else {
            writeln!(io::stdout(), "{}", text.trim_end())
        }
    }

    pub(crate) fn migrate(self, schema: &str, version: usize) -> io::Result<()> {
        let text = format!("the tables of the schema {schema} have version {version} or newer");
        self.print(&json!({"schema": schema, "version": version}), &text)
    }

    pub(crate) fn stats(
        self,
        counts: Counts,
        due: u64,
        oldest: Option<WallTime>,
        now: WallTime,
    ) -> io::Result<()> {
        let Counts { live, dead, .. } = counts;
        let time = oldest.map(|oldest| oldest.to_string());
        let late = oldest.map_or_else(String::new, |oldest| {
            format!(", the oldest since {} s", now.since(oldest).as_secs())
        });
        let text = format!("live {live}\ndead {dead}\ndue  {due}{late}");
        self.print(&json!({"live": live, "dead": dead, "due": due, "oldest_due": time}), &text)
    }

    pub(crate) fn records(self, records: &[Record], has_more: bool) -> io::Result<()> {
        let cursor = |last: &Record| format!("{}:{}", last.next.as_micros(), last.id);
        let next = records.last().filter(|_| has_more).map(cursor);
        let mut text = String::new();
        for record in records {
            let state = state(record);
            let (id, attempt) = (plain(record.id.as_str()), record.attempt);
            let _ = write!(text, "{:27} {state:10} {attempt:>3}  {id}", record.next.to_string());
            if !record.queue.as_str().is_empty() {
                let _ = write!(text, "  queue {}", plain(record.queue.as_str()));
            }
            if let Some(error) = &record.error {
                let _ = write!(text, "  {}", plain(error));
            }
            text.push('\n');
        }
        if let Some(next) = &next {
            let _ = write!(text, "more: --after '{}'", plain(next));
        }
        if records.is_empty() {
            text.push_str("none");
        }
        let records: Vec<_> = records.iter().map(summary).collect();
        self.print(&json!({"timeouts": records, "next": next}), &text)
    }

    /// Prints a timeout, if the store has it still, and its attempts.
    pub(crate) fn record(
        self,
        id: &TimeoutId,
        record: Option<&Record>,
        history: &[Attempt],
    ) -> io::Result<()> {
        let (mut json, mut text) = record.map_or_else(
            || {
                let text = format!("id       {}\nstate    not in the store\n", plain(id.as_str()));
                (json!({"id": id.as_str(), "state": null}), text)
            },
            whole,
        );
        for attempt in history {
            let (time, end) = (attempt.ended.to_string(), lower(attempt.end));
            let _ = write!(text, "attempt  {:>3}  {time:27} {end}", attempt.attempt);
            if let Some(error) = &attempt.error {
                let _ = write!(text, "  {}", plain(error));
            }
            text.push('\n');
        }
        let attempt = |attempt: &Attempt| {
            json!({
                "attempt": attempt.attempt,
                "due": attempt.due.to_string(),
                "ended": attempt.ended.to_string(),
                "end": lower(attempt.end),
                "error": attempt.error,
            })
        };
        json["history"] = history.iter().map(attempt).collect();
        self.print(&json, &text)
    }

    pub(crate) fn cancelled(self, id: &TimeoutId, answer: Cancelled) -> io::Result<()> {
        let (result, text) = match answer {
            Cancelled::Cancelled => ("cancelled", "cancelled"),
            Cancelled::Delivering => (
                "delivering",
                "cancelled while a delivery was under way, which is not attempted again",
            ),
            // Standard error has the text.
            _ if !self.is_json => return Ok(()),
            _ => ("not_found", ""),
        };
        self.print(&json!({"id": id.as_str(), "result": result}), text)
    }

    pub(crate) fn requeued(self, count: usize, is_dry: bool) -> io::Result<()> {
        let text = match (count, is_dry) {
            (0, _) => "no dead timeout fits".to_owned(),
            (_, true) => format!("{count} would be requeued"),
            (_, false) => format!("{count} requeued"),
        };
        self.print(&json!({"requeued": count, "dry_run": is_dry}), &text)
    }

    pub(crate) fn queues(self, queues: &[QueueOverview]) -> io::Result<()> {
        let mut text = String::new();
        for QueueOverview { queue, live, due, .. } in queues {
            let state = if queue.is_paused { "paused" } else { "" };
            let name = plain(queue.name.as_str());
            let _ = writeln!(text, "{live:>9} live {due:>9} due  {state:6}  '{name}'");
        }
        let queue = |seen: &QueueOverview| {
            let (name, is_paused) = (seen.queue.name.as_str(), seen.queue.is_paused);
            json!({"queue": name, "paused": is_paused, "live": seen.live, "due": seen.due})
        };
        self.print(&json!({"queues": queues.iter().map(queue).collect::<Vec<_>>()}), &text)
    }

    pub(crate) fn paused(self, queue: &Name, is_paused: bool) -> io::Result<()> {
        let text = if is_paused { "paused" } else { "resumed" };
        self.print(&json!({"queue": queue.as_str(), "paused": is_paused}), text)
    }

    pub(crate) fn backup(self, file: &std::path::Path, bytes: u64) -> io::Result<()> {
        let file = file.display().to_string();
        self.print(&json!({"file": file, "bytes": bytes}), &format!("{bytes} bytes written"))
    }

    pub(crate) fn compact(self, before: u64, after: u64) -> io::Result<()> {
        let text = format!("{before} bytes before, {after} after");
        self.print(&json!({"bytes_before": before, "bytes_after": after}), &text)
    }
}

/// Returns all of a timeout, as JSON and as text.
fn whole(record: &Record) -> (Value, String) {
    let mut json = summary(record);
    let payload = std::str::from_utf8(&record.payload).ok();
    json["payload"] = payload.into();
    json["payload_hex"] = hex(&record.payload).into();
    let payload = payload.map_or_else(|| hex(&record.payload), plain);
    let repeat = record.repeat.as_ref().map_or_else(|| "-".to_owned(), Repeat::to_text);
    let text = format!(
        "id       {}\nstate    {}\ndue      {}\nnext     {}\nattempt  {}\nrepeat   {}\n\
        queue    {}\npriority {}\nkey      {}\nerror    {}\npayload  {payload}\n",
        plain(record.id.as_str()),
        state(record),
        record.due,
        record.next,
        record.attempt,
        plain(&repeat),
        plain(record.queue.as_str()),
        lower(record.priority),
        plain(record.key.as_ref().map_or("-", Name::as_str)),
        plain(record.error.as_deref().unwrap_or("-")),
    );
    (json, text)
}

fn summary(record: &Record) -> Value {
    json!({
        "id": record.id.as_str(),
        "state": state(record),
        "due": record.due.to_string(),
        "next_attempt": record.next.to_string(),
        "attempt": record.attempt,
        "repeat": record.repeat.as_ref().map(Repeat::to_text),
        "queue": record.queue.as_str(),
        "priority": lower(record.priority),
        "key": record.key.as_ref().map(Name::as_str),
        "error": record.error,
        "payload_bytes": record.payload.len(),
    })
}

fn state(record: &Record) -> String {
    lower(record.state)
}

fn lower(name: impl std::fmt::Debug) -> String {
    format!("{name:?}").to_lowercase()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Escapes control characters, so that no payload or error controls the terminal.
pub(crate) fn plain(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escape).collect()
}
