//! What the command line asks for.

use std::{env, path::PathBuf};

use lexopt::prelude::*;

use crate::{
    docs,
    run::{self, Scope, child::Turn},
};

/// Told when the command line is not understood.
pub(crate) fn usage() -> String {
    let options = "options: [--quick] [--only WORKLOAD]... [--rounds N] [--seed N] [--out FILE] \
                   [--render FILE] [--figures FOLDER] [--markdown] [--docs]";
    let workloads: Vec<_> = run::WORKLOADS.iter().map(|workload| workload.name).collect();
    format!("{options}\nworkloads: {}", workloads.join(", "))
}

/// What is to be done.
pub(crate) struct Options {
    pub(crate) source: Source,
    /// Where results are written.
    pub(crate) out: PathBuf,
    /// Where figures are drawn.
    pub(crate) figures: PathBuf,
    /// Whether tables are printed.
    pub(crate) is_markdown: bool,
    /// Whether the documentation gets the tables.
    pub(crate) is_docs: bool,
}

/// Where results come from.
pub(crate) enum Source {
    /// They are measured.
    Run(Scope),
    /// They have been written.
    File(PathBuf),
    /// This is a child that takes a turn for its parent.
    Turn(Turn),
}

impl Options {
    pub(crate) fn from_args() -> Result<Self, lexopt::Error> {
        let mut scope = Scope::default();
        let (mut file, mut turn, mut out, mut figures) = (None, None, None, None);
        let (mut is_markdown, mut is_docs) = (false, false);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("quick") => scope.is_quick = true,
                Long("only") => scope.only.push(parser.value()?.string()?),
                Long("rounds") => scope.rounds = Some(parser.value()?.parse()?),
                Long("seed") => scope.seed = parser.value()?.parse()?,
                Long("out") => out = Some(PathBuf::from(parser.value()?)),
                Long("render") => file = Some(PathBuf::from(parser.value()?)),
                Long("figures") => figures = Some(PathBuf::from(parser.value()?)),
                Long("markdown") => is_markdown = true,
                Long("docs") => is_docs = true,
                Long("turn") => turn = Some(Turn::from_args(&mut parser)?),
                _ => return Err(argument.unexpected()),
            }
        }
        let unknown = |only: &&String| run::WORKLOADS.iter().all(|known| known.name != **only);
        if let Some(unknown) = scope.only.iter().find(unknown) {
            return Err(format!("there is no workload {unknown}").into());
        }
        if is_docs && !scope.only.is_empty() {
            return Err("the documentation has all workloads: --docs without --only".into());
        }
        let source = match (turn, file) {
            (Some(turn), _) => Source::Turn(turn),
            (None, Some(file)) => Source::File(file),
            (None, None) => Source::Run(scope),
        };
        let out = out.unwrap_or_else(|| made("results.json"));
        let usual = if is_docs { docs::figures() } else { made("figures") };
        let figures = figures.filter(|_| !is_docs).unwrap_or(usual);
        Ok(Self { source, out, figures, is_markdown, is_docs })
    }
}

/// Something that is made by a run, and is not committed.
fn made(name: &str) -> PathBuf {
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| docs::root().join("target"), PathBuf::from);
    target.join("compare").join(name)
}
