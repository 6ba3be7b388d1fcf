//! A row of the report: one figure, ours first, and the targets that it is held to.

use std::fmt;

/// One figure of each contestant.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    unit: &'static str,
    figures: Vec<(&'static str, f64)>,
    /// The most that our figure may be.
    at_most: Option<f64>,
    /// The most that our figure may be as a multiple of a peer's.
    ratios: Vec<(&'static str, f64)>,
}

impl Row {
    /// Makes a row of figures, ours first, without a target.
    pub(crate) fn new(
        name: impl Into<String>,
        unit: &'static str,
        figures: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> Self {
        let figures = figures.into_iter().collect();
        Self { name: name.into(), unit, figures, at_most: None, ratios: Vec::new() }
    }

    /// Holds our figure to a bound.
    pub(crate) fn at_most(mut self, bound: f64) -> Self {
        self.at_most = Some(bound);
        self
    }

    /// Holds our figure to a multiple of a peer's.
    pub(crate) fn ratio(mut self, peer: &'static str, bound: f64) -> Self {
        self.ratios.push((peer, bound));
        self
    }

    /// Number of targets that were missed.
    pub(crate) fn missed(&self) -> usize {
        let missed =
            |bound: Option<f64>, figure: f64| usize::from(bound.is_some_and(|b| figure > b));
        let of_peers = self.peers().map(|(_, _, ratio, bound)| missed(bound, ratio));
        missed(self.at_most, self.ours()) + of_peers.sum::<usize>()
    }

    fn ours(&self) -> f64 {
        self.figures[0].1
    }

    /// Name, figure, ratio of ours to it, and its bound.
    fn peers(&self) -> impl Iterator<Item = (&'static str, f64, f64, Option<f64>)> {
        self.figures[1..].iter().map(|&(peer, figure)| {
            let bound = self.ratios.iter().find(|(name, _)| *name == peer);
            (peer, figure, self.ours() / figure, bound.map(|&(_, bound)| bound))
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<54}{:>10.2} {}", self.name, self.ours(), self.unit)?;
        if let Some(bound) = self.at_most {
            write!(f, " (<= {bound} {})", verdict(self.ours(), bound))?;
        }
        for (peer, figure, ratio, bound) in self.peers() {
            write!(f, " | {peer} {figure:.2} ({ratio:.2}x")?;
            if let Some(bound) = bound {
                write!(f, " <= {bound} {}", verdict(ratio, bound))?;
            }
            write!(f, ")")?;
        }
        Ok(())
    }
}

fn verdict(figure: f64, bound: f64) -> &'static str {
    if figure <= bound { "ok" } else { "MISSED" }
}
