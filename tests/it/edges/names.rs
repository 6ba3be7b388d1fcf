//! The edge tests call every public function of every type.
//!
//! The test reads the sources as tokens, which do not have types. So the edge tests use certain
//! variable names for the values of each type, and only a call on one of these names counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::tokens::tokens;

/// Names of the variables that hold values of a type in the edge tests, or calls that return such
/// values. With `..`, the following calls of the same chain count as well, as for builders.
const RECEIVERS: [(&str, &[&str]); 38] = [
    ("Advance", &["due", "wheel.advance"]),
    ("AsyncPurgatory", &["purgatory"]),
    ("Checks", &["checks"]),
    ("Debounce", &["debounce"]),
    ("DefaultTimerError", &["error"]),
    ("DelayQueue", &["queue"]),
    ("Histogram", &["lateness"]),
    ("InsertError", &["refused"]),
    ("Interval", &["interval"]),
    ("ManualClock", &["clock"]),
    ("OperationGuard", &["guard"]),
    ("Purgatory", &["purgatory"]),
    ("PurgatoryBuilder", &["settings", "PurgatoryBuilder.new..", "Purgatory.builder", "total"]),
    ("PurgatoryStats", &["stats"]),
    ("QueueStream", &["stream"]),
    ("RepeatBuilder", &["timer.repeat.."]),
    ("Repeating", &["repeating"]),
    ("ScheduleError", &["ended"]),
    ("Sleep", &["sleep"]),
    ("Task", &["ended.into_value"]),
    ("Throttle", &["throttle"]),
    ("Tick", &["tick", "tick.saturating_add"]),
    ("TickSpan", &["tick.saturating_since"]),
    ("Timeout", &["timeout", "limited"]),
    ("TimeoutError", &["error"]),
    ("TimeoutGuard", &["timeout.cancel_on_drop"]),
    ("Timer", &["timer"]),
    ("TimerBuilder", &["builder", "Timer.builder..", "TimerBuilder.new..", "DelayQueue.builder.."]),
    ("TimerMetrics", &["metrics"]),
    ("TimerStats", &["stats"]),
    ("Ticks", &["ticks", "Ticks.new"]),
    ("TimingWheel", &["wheel"]),
    ("ValueTimer", &["values"]),
    ("Wait", &["wait", "purgatory.wait.."]),
    ("Watch", &["Watch.from"]),
    ("WatchError", &["refused"]),
    ("Watched", &["one.unwrap", "watched.unwrap"]),
    ("WheelBuilder", &["WheelBuilder.new.."]),
];

/// A type, or a receiver, and the name of a function.
type Function = (String, String);

#[test]
fn every_public_function_is_called_with_edge_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let public: BTreeSet<_> =
        texts(&root.join("src")).iter().flat_map(|text| public_functions(text)).collect();
    assert!(public.len() > 100, "few functions were read: {public:?}");
    let mut tests = texts(&root.join("tests/it/edges"));
    tests.extend(texts(&root.join("tests/future")));
    tests.extend(texts(&root.join("tests/async/tests")));
    let called: BTreeSet<_> = tests.iter().flat_map(|text| calls(text)).collect();
    let receivers = BTreeMap::from(RECEIVERS);
    let is_called = |(of, name): &Function| {
        let named = receivers.get(of.as_str()).copied().unwrap_or_default();
        called.iter().filter(|(_, other)| other == name).any(|(receiver, _)| {
            receiver == of || named.iter().any(|name| is_named(receiver, name))
        })
    };
    let left_out: Vec<_> = public.iter().filter(|function| !is_called(function)).collect();
    assert!(left_out.is_empty(), "no edge test calls {left_out:?}");
}

#[test]
fn public_functions_and_calls_are_found() {
    let text = "impl<T: A<B>> C<T> where T: D { pub fn one(&self) { if x {} } pub const fn two() {}
        pub(super) fn three() {} } impl E for F { fn four() {} } impl G { pub fn five() {} }";
    let found = [("C", "one"), ("C", "two"), ("G", "five")].map(|(of, name)| function(of, name));
    assert_eq!(public_functions(text), found);
    let text =
        "a.one(b.two(1)[2])?.three(); C::<D>::four::<u8>().five(); \"e.six()\"; f[7].g.eight()";
    let found = [
        ("a", "one"),
        ("b", "two"),
        ("a.one", "three"),
        ("C", "four"),
        ("C.four", "five"),
        ("g", "eight"),
    ];
    assert_eq!(calls(text), found.map(|(of, name)| function(of, name)));
}

fn is_named(receiver: &str, name: &str) -> bool {
    name.strip_suffix("..").map_or(receiver == name, |chain| receiver.starts_with(chain))
}

fn function(of: &str, name: &str) -> Function {
    (of.to_owned(), name.to_owned())
}

/// Returns the public functions of a source, with their types. The compiler warns of public
/// functions of types that no user can name.
fn public_functions(text: &str) -> Vec<Function> {
    let tokens = tokens(text);
    let mut functions = Vec::new();
    let (mut of, mut depth) = ("", 0_usize);
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            "impl" if depth == 0 => of = implemented(&tokens[index + 1..]),
            "fn" if depth == 1 => {
                let before = &tokens[..index];
                if before.ends_with(&["pub"]) || before.ends_with(&["pub", "const"]) {
                    functions.push(function(of, tokens[index + 1]));
                }
            }
            _ => {}
        }
    }
    functions
}

/// Returns the type of an `impl`.
fn implemented<'t>(tokens: &[&'t str]) -> &'t str {
    let mut depth = 0;
    for token in tokens {
        match *token {
            "<" => depth += 1,
            ">" => depth -= 1,
            name if depth == 0 => return name,
            _ => {}
        }
    }
    ""
}

/// Returns the functions that a source calls, with their receivers: a type, a variable or a field,
/// followed by the earlier calls of the chain.
fn calls(text: &str) -> Vec<Function> {
    let tokens = tokens(text);
    let is_call = |&index: &usize| {
        index > 1 && is_word(tokens[index]) && matches!(tokens.get(index + 1), Some(&"(" | &"::"))
    };
    let found = (0..tokens.len()).filter(is_call).filter_map(|index| {
        let receiver = receiver(&tokens[..index])?;
        tokens[index].starts_with(char::is_lowercase).then(|| (receiver, tokens[index].to_owned()))
    });
    found.collect()
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the receiver of a call, from the tokens before its name; `None` if it has none.
fn receiver(before: &[&str]) -> Option<String> {
    let ("." | "::", mut before) = before.split_last().map(|(last, rest)| (*last, rest))? else {
        return None;
    };
    while let Some((&last, rest)) = before.split_last() {
        match last {
            "?" => before = rest,
            // An index, or the types of a path.
            "]" => before = &before[..opening(before, "[", "]")?],
            ">" => before = without_types(before)?,
            ")" => {
                let called = &before[..opening(before, "(", ")")?];
                let (name, rest) = without_types(called)?.split_last()?;
                let of = receiver(rest)?;
                return Some(format!("{of}.{name}"));
            }
            name => return is_word(name).then(|| name.to_owned()),
        }
    }
    None
}

/// Removes the type arguments at the end of a path, if any.
fn without_types<'a, 't>(path: &'a [&'t str]) -> Option<&'a [&'t str]> {
    if path.ends_with(&[">"]) {
        return path[..opening(path, "<", ">")?].strip_suffix(&["::"]);
    }
    Some(path)
}

/// Returns the index of the bracket that the last token closes.
fn opening(tokens: &[&str], open: &str, close: &str) -> Option<usize> {
    let mut depth = 0;
    tokens.iter().rposition(|token| {
        depth += i32::from(*token == close) - i32::from(*token == open);
        depth == 0
    })
}

/// Returns all sources in a folder.
fn texts(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the sources are there");
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    let mut texts = Vec::new();
    for path in paths {
        if path.is_dir() {
            texts.extend(self::texts(&path));
        } else {
            texts.push(fs::read_to_string(path).expect("it is text"));
        }
    }
    texts
}
