//! Rounds in which the contestants take turns, and the median of each.

use std::time::Duration;

/// Somebody who is measured once a round, in `N` figures.
pub trait Contestant<const N: usize> {
    /// What it is called in the report.
    fn name(&self) -> &'static str;

    /// Takes one turn.
    fn measure(&mut self) -> [f64; N];
}

/// Those who take turns, ours first.
pub type Contestants<const N: usize> = Vec<Box<dyn Contestant<N>>>;

/// The medians of each contestant over the rounds.
#[derive(Debug)]
pub struct Medians<const N: usize>(Vec<(&'static str, [f64; N])>);

impl<const N: usize> Medians<N> {
    /// Has the contestants take turns.
    #[must_use]
    pub fn of(rounds: usize, mut contestants: Contestants<N>) -> Self {
        let mut figures = vec![Vec::new(); contestants.len()];
        for _ in 0..rounds {
            for (contestant, figures) in contestants.iter_mut().zip(&mut figures) {
                figures.push(contestant.measure());
                eprint!(".");
            }
        }
        eprintln!();
        let names = contestants.iter().map(|contestant| contestant.name());
        Self(names.zip(figures.iter().map(|turns| medians(turns))).collect())
    }

    /// One of the figures, for a row of the report.
    pub fn figure(&self, index: usize) -> impl Iterator<Item = (&'static str, f64)> {
        self.0.iter().map(move |&(name, medians)| (name, medians[index]))
    }

    /// One of the figures of one contestant, for a row that is about that one.
    pub fn figure_of(
        &self,
        contestant: &str,
        index: usize,
    ) -> impl Iterator<Item = (&'static str, f64)> {
        self.figure(index).filter(move |(name, _)| *name == contestant)
    }
}

/// Nanoseconds that each of `count` took.
#[must_use]
pub fn nanos_per(duration: Duration, count: u32) -> f64 {
    duration.as_secs_f64() * 1e9 / f64::from(count)
}

fn medians<const N: usize>(turns: &[[f64; N]]) -> [f64; N] {
    std::array::from_fn(|index| median(turns.iter().map(|turn| turn[index]).collect()))
}

/// The middle one, or the lower of two.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[(figures.len() - 1) / 2]
}
