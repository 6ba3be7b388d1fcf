//! What the program prints: one JSON object, or its fields as text.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use delaywheel_durable::{Record, Repeat};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) is_json: bool,
}

impl Report {
    /// Prints an object; as text, each field in a line.
    pub(crate) fn fields(self, object: &Value) -> io::Result<()> {
        if self.is_json {
            return writeln!(io::stdout(), "{object}");
        }
        let fields = object.as_object().into_iter().flatten();
        let text = fields.fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "{name:14} {}", show(value));
            text
        });
        write!(io::stdout(), "{text}")
    }

    pub(crate) fn records(self, records: &[Record], has_more: bool) -> io::Result<()> {
        let cursor = |last: &Record| format!("{}:{}", last.next.as_micros(), last.id);
        let next = records.last().filter(|_| has_more).map(cursor);
        let timeouts: Vec<_> = records.iter().map(summary).collect();
        if self.is_json {
            return writeln!(io::stdout(), "{}", json!({"timeouts": timeouts, "next": next}));
        }
        let mut text = String::new();
        for timeout in &timeouts {
            let [next, state, attempt, id, error] =
                ["next_attempt", "state", "attempt", "id", "error"]
                    .map(|name| show(&timeout[name]));
            let _ = writeln!(text, "{next:27} {state:10} {attempt:>3}  {id}  {error}");
        }
        if let Some(next) = &next {
            let _ = writeln!(text, "more: --after '{}'", plain(next));
        }
        write!(io::stdout(), "{text}")
    }
}

/// The fields of a timeout.
pub(crate) fn summary(record: &Record) -> Value {
    json!({
        "id": record.id.as_str(),
        "state": format!("{:?}", record.state).to_lowercase(),
        "due": record.due.to_string(),
        "next_attempt": record.next.to_string(),
        "attempt": record.attempt,
        "repeat": record.repeat.as_ref().map(Repeat::to_text),
        "error": record.error,
        "payload_bytes": record.payload.len(),
    })
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
        other => other.to_string(),
    }
}

/// Escapes control characters, so that no payload or error controls the terminal.
pub(crate) fn plain(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escape).collect()
}
