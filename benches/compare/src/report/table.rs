//! A row of the report: one figure, ours first, and the targets that it is held to.

use std::fmt;

/// One figure of each contestant.
#[derive(Debug)]
pub struct Row {
    name: String,
    unit: &'static str,
    figures: Vec<(&'static str, f64)>,
    /// What our figure is held to.
    bound: Option<Bound>,
    /// What our figure as a multiple of a peer's is held to.
    ratios: Vec<(&'static str, Bound)>,
    /// What somebody else has measured; to be read, not compared.
    beside: Option<&'static str>,
}

impl Row {
    /// Makes a row of figures, ours first, without a target.
    pub fn new(
        name: impl Into<String>,
        unit: &'static str,
        figures: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> Self {
        let figures = figures.into_iter().collect();
        Self { name: name.into(), unit, figures, bound: None, ratios: Vec::new(), beside: None }
    }

    /// Holds our figure to a bound that it is not to exceed.
    #[must_use]
    pub fn at_most(mut self, bound: f64) -> Self {
        self.bound = Some(Bound::AtMost(bound));
        self
    }

    /// Holds our figure to a bound that it is to reach.
    #[must_use]
    pub fn at_least(mut self, bound: f64) -> Self {
        self.bound = Some(Bound::AtLeast(bound));
        self
    }

    /// Holds our figure to a multiple of a peer's, which it is not to exceed.
    #[must_use]
    pub fn ratio(mut self, peer: &'static str, bound: f64) -> Self {
        self.ratios.push((peer, Bound::AtMost(bound)));
        self
    }

    /// Holds our figure to a multiple of a peer's, which it is to reach.
    #[must_use]
    pub fn ratio_at_least(mut self, peer: &'static str, bound: f64) -> Self {
        self.ratios.push((peer, Bound::AtLeast(bound)));
        self
    }

    /// Has a figure printed beside ours that was measured by somebody else, if there is one.
    #[must_use]
    pub fn beside(mut self, figure: impl Into<Option<&'static str>>) -> Self {
        self.beside = figure.into();
        self
    }

    /// Number of targets that were missed.
    #[must_use]
    pub fn missed(&self) -> usize {
        let missed = |bound: Option<Bound>, figure| {
            usize::from(bound.is_some_and(|bound| !bound.is_met_by(figure)))
        };
        let of_peers = self.peers().map(|(_, _, ratio, bound)| missed(bound, ratio));
        missed(self.bound, self.ours()) + of_peers.sum::<usize>()
    }

    fn ours(&self) -> f64 {
        self.figures[0].1
    }

    /// Name, figure, ratio of ours to it, and its bound.
    fn peers(&self) -> impl Iterator<Item = (&'static str, f64, f64, Option<Bound>)> {
        self.figures[1..].iter().map(|&(peer, figure)| {
            let bound = self.ratios.iter().find(|(name, _)| *name == peer);
            (peer, figure, self.ours() / figure, bound.map(|&(_, bound)| bound))
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<54}{:>10.2} {}", self.name, self.ours(), self.unit)?;
        if let Some(bound) = self.bound {
            write!(f, " ({bound} {})", bound.verdict(self.ours()))?;
        }
        for (peer, figure, ratio, bound) in self.peers() {
            write!(f, " | {peer} {figure:.2} ({ratio:.2}x")?;
            if let Some(bound) = bound {
                write!(f, " {bound} {}", bound.verdict(ratio))?;
            }
            write!(f, ")")?;
        }
        if let Some(figure) = self.beside {
            write!(f, " | {figure}")?;
        }
        Ok(())
    }
}

/// A number of things as a figure.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "nothing here is counted up to 2^53")]
pub fn count(number: u64) -> f64 {
    number as f64
}

/// What a figure is held to.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn is_met_by(self, figure: f64) -> bool {
        match self {
            Self::AtMost(bound) => figure <= bound,
            Self::AtLeast(bound) => figure >= bound,
        }
    }

    fn verdict(self, figure: f64) -> &'static str {
        if self.is_met_by(figure) { "ok" } else { "MISSED" }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
        }
    }
}
