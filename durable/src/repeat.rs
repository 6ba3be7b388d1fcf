//! Recurring timeouts: a period or a cron expression, and the policy for missed occurrences.
//!
//! The next occurrence follows from the present one and not from the time of its delivery, so a
//! clock that steps back causes no occurrence twice.

use std::time::Duration;

use crate::{error::InputError, time::WallTime};

/// Policy for occurrences that passed while no worker delivered them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Missed {
    /// Delivers every occurrence, in order.
    All,
    /// Delivers the oldest one, and then continues with the first occurrence in the future.
    #[default]
    Once,
    /// Delivers none that is older than the period or, for a cron expression, whose successor has
    /// passed as well. This holds for another attempt and after a requeue too. Then continues with
    /// the first occurrence that is due now or later.
    Skip,
}

impl Missed {
    const NAMES: [(&str, Self); 3] =
        [("all", Self::All), ("once", Self::Once), ("skip", Self::Skip)];
}

/// Rule by which a timeout recurs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Repeat {
    rule: Rule,
    missed: Missed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Rule {
    Every(Duration),
    /// A cron expression, and the name of its time zone.
    Cron(String, String),
}

impl Repeat {
    /// Recurs every `period`, counted from the first due time, or from that of a reschedule.
    pub fn every(period: Duration) -> Result<Self, InputError> {
        let micros = u64::try_from(period.as_nanos().div_ceil(1_000))
            .map_err(|_| InputError::AfterYear9999)?;
        if micros < 1_000 {
            return Err(InputError::ShortPeriod);
        }
        WallTime::from_micros(micros)?;
        Ok(Self { rule: Rule::Every(Duration::from_micros(micros)), missed: Missed::default() })
    }

    /// Recurs at the times of a cron expression in a time zone, such as `"Europe/Vienna"`.
    ///
    /// The library `croner` interprets the expression. It also decides what happens to hours that
    /// daylight saving time skips or repeats.
    #[cfg(feature = "cron")]
    pub fn cron(expression: &str, zone: &str) -> Result<Self, InputError> {
        cron_parts(expression, zone)?;
        let rule = Rule::Cron(expression.to_owned(), zone.to_owned());
        Ok(Self { rule, missed: Missed::default() })
    }

    /// Sets the policy for missed occurrences. Default: [`Missed::Once`].
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Returns whether it is a cron expression.
    #[must_use]
    pub fn is_cron(&self) -> bool {
        matches!(self.rule, Rule::Cron(..))
    }

    /// Returns the first occurrence after `time`, for a timeout with an occurrence at `due`; `None`
    /// if there is none before the year 10000, or 5000 for a cron expression.
    ///
    /// # Errors
    ///
    /// [`InputError::NoCron`] for a cron expression without that feature, [`InputError::Zone`] if
    /// its time zone is not known here, and [`InputError::Cron`] if no time can be told.
    pub fn after(&self, due: WallTime, time: WallTime) -> Result<Option<WallTime>, InputError> {
        match &self.rule {
            Rule::Every(period) => Ok(next_multiple(due, time, *period)),
            Rule::Cron(expression, zone) => cron_after(expression, zone, time),
        }
    }

    /// Returns the occurrence that follows the one at `due` once that is over; `None` if it was the
    /// last.
    pub(crate) fn follow(
        &self,
        due: WallTime,
        now: WallTime,
    ) -> Result<Option<WallTime>, InputError> {
        match self.missed {
            Missed::All => self.after(due, due),
            Missed::Once => self.after(due, now.max(due)),
            // What is due exactly now is not missed.
            Missed::Skip => self.after(due, now.before().max(due)),
        }
    }

    pub(crate) fn is_skipped(&self, due: WallTime, now: WallTime) -> bool {
        self.missed == Missed::Skip
            && matches!(self.after(due, due), Ok(Some(successor)) if successor <= now)
    }

    /// Writes the rule as text for a store, such as `once every 60000000`.
    #[must_use]
    pub fn to_text(&self) -> String {
        let missed = Missed::NAMES[self.missed as usize].0;
        match &self.rule {
            Rule::Every(period) => format!("{missed} every {}", period.as_micros()),
            Rule::Cron(expression, zone) => format!("{missed} cron {zone} {expression}"),
        }
    }

    /// Reads the rule from its text. The time zone is not looked up.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (missed, rule) = text.split_once(' ')?;
        let (_, missed) = *Missed::NAMES.iter().find(|(name, _)| *name == missed)?;
        let rule = match rule.split_once(' ')? {
            ("every", micros) => {
                Self::every(Duration::from_micros(micros.parse().ok()?)).ok()?.rule
            }
            ("cron", rest) => {
                let (zone, expression) = rest.split_once(' ')?;
                Rule::Cron(expression.to_owned(), zone.to_owned())
            }
            _ => return None,
        };
        Some(Self { rule, missed })
    }
}

/// Returns the first `due + n * period` after `time`, for a whole `n >= 1`.
fn next_multiple(due: WallTime, time: WallTime, period: Duration) -> Option<WallTime> {
    let period = u64::try_from(period.as_micros()).ok()?;
    let passed = time.since(due).as_micros();
    let periods = u64::try_from(passed).ok()? / period + 1;
    due.checked_add(Duration::from_micros(period.checked_mul(periods)?))
}

#[cfg(feature = "cron")]
fn cron_parts(
    expression: &str,
    zone: &str,
) -> Result<(croner::Cron, jiff::tz::TimeZone), InputError> {
    let cron = expression.parse::<croner::Cron>().map_err(|_| InputError::Cron)?;
    let zone = jiff::tz::TimeZone::get(zone).map_err(|_| InputError::Zone)?;
    Ok((cron, zone))
}

#[cfg(feature = "cron")]
fn cron_after(
    expression: &str,
    zone: &str,
    time: WallTime,
) -> Result<Option<WallTime>, InputError> {
    let (cron, zone) = cron_parts(expression, zone)?;
    let micros = i64::try_from(time.as_micros()).map_err(|_| InputError::AfterYear9999)?;
    let start = jiff::Timestamp::from_microsecond(micros).map_err(|_| InputError::AfterYear9999)?;
    let (mut start, mut is_included) = (start.to_zoned(zone), false);
    loop {
        match cron.find_next_occurrence(&start, is_included) {
            Ok(next) => return Ok(WallTime::try_from(next.timestamp()).ok()),
            Err(croner::errors::CronError::TimeSearchLimitExceeded) => (),
            Err(_) => return Err(InputError::Cron),
        }
        // It also gives up at a day that the zone skipped. The search goes on behind that.
        let Some(next) = after_gap(&start) else { return Ok(None) };
        (start, is_included) = (next, true);
    }
}

/// Returns the end of the first gap after a time that is longer than `croner` takes for one.
#[cfg(feature = "cron")]
fn after_gap(start: &jiff::Zoned) -> Option<jiff::Zoned> {
    let mut before = start.offset().seconds();
    let mut changes = start.time_zone().following(start.timestamp());
    let mut is_long = |after: i32| after - std::mem::replace(&mut before, after) > 7_200;
    let change = changes.find(|change| is_long(change.offset().seconds()))?;
    Some(change.timestamp().to_zoned(start.time_zone().clone()))
}

#[cfg(not(feature = "cron"))]
fn cron_after(_: &str, _: &str, _: WallTime) -> Result<Option<WallTime>, InputError> {
    Err(InputError::NoCron)
}
