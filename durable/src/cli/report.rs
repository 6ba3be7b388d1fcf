//! What the program prints: one JSON object, or its fields as text.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use delaywheel_durable::{Attempt, Name, QueueOverview, Record, Repeat};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::Outcome;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) is_json: bool,
}

impl Report {
    /// Prints an object; as text, each field in a line, and so each object of a list.
    pub(crate) fn print(self, object: &Value) -> Outcome {
        let mut text = String::new();
        for (name, value) in object.as_object().into_iter().flatten() {
            for value in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
                let _ = writeln!(text, "{name:14} {}", show(value));
            }
        }
        self.write(object, text)
    }

    fn write(self, object: &Value, text: String) -> Outcome {
        let text = if self.is_json { format!("{object}\n") } else { text };
        io::stdout().write_all(text.as_bytes())?;
        Ok(true)
    }

    pub(crate) fn records(self, records: &[Record], has_more: bool) -> Outcome {
        let next = records.last().filter(|_| has_more).map(cursor);
        let timeouts: Vec<_> = records.iter().map(summary).collect();
        let mut text = String::new();
        for timeout in &timeouts {
            let [next, state, attempt, id, queue, error] =
                ["next_attempt", "state", "attempt", "id", "queue", "error"]
                    .map(|name| show(&timeout[name]));
            let queue = if queue.is_empty() { queue } else { format!("  queue {queue}") };
            let _ = writeln!(text, "{next:27} {state:10} {attempt:>3}  {id}{queue}  {error}");
        }
        if let Some(next) = &next {
            let _ = writeln!(text, "more: --after {next}");
        }
        self.write(&json!({"timeouts": timeouts, "next": next}), text)
    }
}

/// Characters that a cursor encodes: all that a shell may change.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b':');

fn cursor(last: &Record) -> String {
    format!("{}:{}", last.next.as_micros(), utf8_percent_encode(last.id.as_str(), ENCODED))
}

pub(crate) fn summary(record: &Record) -> Value {
    json!({
        "id": record.id.as_str(),
        "state": lower(record.state),
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

pub(crate) fn attempt(attempt: &Attempt) -> Value {
    json!({
        "attempt": attempt.attempt,
        "due": attempt.due.to_string(),
        "ended": attempt.ended.to_string(),
        "end": lower(attempt.end),
        "error": attempt.error,
    })
}

pub(crate) fn queue(seen: &QueueOverview) -> Value {
    json!({
        "queue": seen.queue.name.as_str(),
        "paused": seen.queue.is_paused,
        "live": seen.live,
        "due": seen.due,
        "oldest_waiting": seen.oldest_waiting.map(|time| time.to_string()),
        "delivering": seen.delivering,
        "dead": seen.dead,
    })
}

fn lower(name: impl std::fmt::Debug) -> String {
    format!("{name:?}").to_lowercase()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name} {}", show(value)));
            fields.collect::<Vec<_>>().join("  ")
        }
        other => other.to_string(),
    }
}

/// Escapes control characters and those without a shape, so that no payload or error controls the
/// terminal or the order of a line.
pub(crate) fn plain(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    let escape = |c: char| if is_hidden(c) { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escape).collect()
}
