//! What the program prints: text for people, or one JSON object.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use delaywheel_durable::{Cancelled, Counts, Record, Repeat, TimeoutId, WallTime};
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

    pub(crate) fn record(self, record: &Record) -> io::Result<()> {
        let mut json = summary(record);
        let payload = std::str::from_utf8(&record.payload).ok();
        json["payload"] = payload.into();
        json["payload_hex"] = hex(&record.payload).into();
        let payload = payload.map_or_else(|| hex(&record.payload), plain);
        let repeat = record.repeat.as_ref().map_or_else(|| "-".to_owned(), Repeat::to_text);
        let text = format!(
            "id       {}\nstate    {}\ndue      {}\nnext     {}\nattempt  {}\nrepeat   {}\n\
            error    {}\npayload  {payload}",
            plain(record.id.as_str()),
            state(record),
            record.due,
            record.next,
            record.attempt,
            plain(&repeat),
            plain(record.error.as_deref().unwrap_or("-")),
        );
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

    pub(crate) fn backup(self, file: &std::path::Path, bytes: u64) -> io::Result<()> {
        let file = file.display().to_string();
        self.print(&json!({"file": file, "bytes": bytes}), &format!("{bytes} bytes written"))
    }

    pub(crate) fn compact(self, before: u64, after: u64) -> io::Result<()> {
        let text = format!("{before} bytes before, {after} after");
        self.print(&json!({"bytes_before": before, "bytes_after": after}), &text)
    }
}

fn summary(record: &Record) -> Value {
    json!({
        "id": record.id.as_str(),
        "state": state(record),
        "due": record.due.to_string(),
        "next_attempt": record.next.to_string(),
        "attempt": record.attempt,
        "repeat": record.repeat.as_ref().map(Repeat::to_text),
        "error": record.error,
        "payload_bytes": record.payload.len(),
    })
}

fn state(record: &Record) -> String {
    format!("{:?}", record.state).to_lowercase()
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
