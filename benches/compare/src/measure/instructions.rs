//! Instructions of an operation, which `benches/instructions.rs` counts under valgrind through gungraun.
//!
//! Time varies with the machine and its load; counts of instructions hardly do, so a loss of some percent shows. They are
//! compared with `instructions.txt`, which holds for one compiler.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs, io,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    Timers,
    bench::{Bench, Done, Results},
    timers::Wheel,
    workload::count,
};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

/// Operations of the bench `twice` beyond those of `once`.
const OPERATIONS: f64 = 200.0;

/// How far a count may be above the baseline, as a multiple.
const TOLERANCE: f64 = 1.05;

/// Counts instructions, or says why not.
pub(crate) fn run(bench: &mut Bench) -> Done {
    // Counts do not depend on the scale of a run, and take longer than a smoke run.
    if bench.options.only.is_empty() && bench.pick(true, false, false) {
        return Ok(());
    }
    for program in ["valgrind", "gungraun-runner"] {
        let mut look = Command::new(program);
        if look.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            println!("instructions are not counted: {program} is missing");
            return Ok(());
        }
    }
    let mut counted = Command::new("cargo");
    counted.args(["bench", "--quiet", "--manifest-path", MANIFEST, "--bench", "instructions"]);
    let output = counted.args(["--", "--output-format=json"]).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("instructions could not be counted: {}", output.status).into());
    }
    let mut counts = BTreeMap::new();
    for summary in serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>() {
        let summary = summary?;
        let text = |name: &str| summary[name].as_str().unwrap_or_default().to_owned();
        let total = &summary["profiles"][0]["data"]["total"];
        let instructions = first_number(&total["metrics"]["Ir"]);
        let instructions = instructions.ok_or("gungraun reports no instructions")?;
        counts.insert((text("function_name"), text("id")), instructions);
    }
    for ((name, id), &once) in &counts {
        if let Some(&twice) =
            counts.get(&(name.clone(), "twice".to_owned())).filter(|_| id == "once")
        {
            let row = format!("instructions/{}", name.replacen('_', "/", 1));
            let each = (count(twice) - count(once)) / OPERATIONS;
            bench.add(&row, Wheel::NAME, (each * 10.0).round() / 10.0);
        }
    }
    Ok(())
}

/// The first number within a value.
fn first_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::Array(values) => values.iter().find_map(first_number),
        Value::Object(fields) => fields.values().find_map(first_number),
        _ => None,
    }
}

/// Compares a run with the baseline. Returns a line for each row, and how many rows are above.
pub fn check(results: &Results) -> io::Result<(String, usize)> {
    let rows: Vec<_> =
        results.figures.iter().filter(|figure| figure.row.starts_with("instructions/")).collect();
    if rows.is_empty() {
        return Ok((String::new(), 0));
    }
    let baseline = fs::read_to_string(BASELINE)?;
    let find =
        |name: &str| baseline.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let is_binding = find("compiler") == results.machine.get("rustc").map(String::as_str);
    let (mut text, mut above) = (String::new(), 0);
    for figure in rows {
        let known = find(&figure.row).and_then(|known| known.parse::<f64>().ok());
        let word = match known {
            Some(known) if figure.value() > TOLERANCE * known => "ABOVE",
            Some(known) if figure.value() * TOLERANCE < known => "below, --bless keeps it so",
            Some(_) => "ok",
            None => "ABOVE, as it has no baseline",
        };
        above += usize::from(is_binding && word.starts_with("ABOVE"));
        let known = known.map_or_else(|| "none".to_owned(), |known| known.to_string());
        let _ = writeln!(text, "{} {} baseline {known} {word}", figure.row, figure.value());
    }
    if !is_binding {
        let of = find("compiler").unwrap_or("no compiler");
        let _ = writeln!(text, "not binding: the baseline is of {of}");
    }
    Ok((text, above))
}

/// Makes the counts of a run the baseline.
pub fn bless(results: &Results) -> io::Result<()> {
    let compiler = results.machine.get("rustc").map_or("unknown", String::as_str);
    let mut text = format!(
        "# Instructions of an operation. Written by:\n# cargo compare --only instructions --bless\ncompiler {compiler}\n",
    );
    for figure in results.figures.iter().filter(|figure| figure.row.starts_with("instructions/")) {
        let _ = writeln!(text, "{} {}", figure.row, figure.value());
    }
    fs::write(BASELINE, text)
}
