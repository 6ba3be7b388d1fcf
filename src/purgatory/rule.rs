//! Decides whether the conditions of an operation hold.

/// The conditions of an operation that do not hold yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    /// Whether all of its conditions must hold, instead of one.
    is_all: bool,
    /// Whether its check is one of the conditions.
    is_checked: bool,
    /// Thresholds that have not been reached.
    missing: u32,
}

/// Effect of an event on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    /// The operation needs a check.
    Check,
    Satisfied,
}

impl Rule {
    /// The check is the only condition.
    pub(super) const CHECKED: Self = Self { is_all: false, is_checked: true, missing: 0 };

    pub(super) const fn new(is_all: bool, is_checked: bool) -> Self {
        Self { is_all, is_checked, missing: 0 }
    }

    /// Adds a threshold that has not been reached.
    pub(super) fn add_threshold(&mut self) {
        self.missing += 1;
    }

    /// Returns the number of thresholds that have not been reached.
    pub(super) const fn missing(self) -> u32 {
        self.missing
    }

    /// Returns the effect of an event on a key.
    #[inline]
    pub(super) const fn on_event(self) -> Effect {
        match self {
            Self { is_checked: false, .. } | Self { is_all: true, missing: 1.., .. } => {
                Effect::Nothing
            }
            Self { .. } => Effect::Check,
        }
    }

    /// Returns the effect of a reached threshold.
    pub(super) fn on_threshold(&mut self) -> Effect {
        debug_assert_ne!(self.missing, 0, "a threshold is reached once");
        self.missing -= 1;
        match self {
            Self { is_all: false, .. } => Effect::Satisfied,
            Self { missing: 1.., .. } => Effect::Nothing,
            Self { is_checked: true, .. } => Effect::Check,
            Self { is_checked: false, .. } => Effect::Satisfied,
        }
    }

    /// Returns the effect of the thresholds before the operation waits. `reached` tells whether any
    /// was reached.
    pub(super) const fn at_first(self, reached: bool) -> Effect {
        match self {
            Self { is_all: false, .. } | Self { is_checked: false, missing: 0, .. } if reached => {
                Effect::Satisfied
            }
            _ => self.on_event(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_needs_one_condition_and_all_needs_every() {
        let mut any = Rule::new(false, true);
        any.add_threshold();
        any.add_threshold();
        assert_eq!(any.on_event(), Effect::Check);
        assert_eq!(any.on_threshold(), Effect::Satisfied);

        let mut all = Rule::new(true, true);
        all.add_threshold();
        all.add_threshold();
        assert_eq!(all.on_event(), Effect::Nothing);
        assert_eq!(all.on_threshold(), Effect::Nothing);
        assert_eq!(all.on_threshold(), Effect::Check);
        assert_eq!(all.on_event(), Effect::Check);

        let mut thresholds = Rule::new(true, false);
        thresholds.add_threshold();
        assert_eq!(thresholds.on_threshold(), Effect::Satisfied);
        assert_eq!(Rule::new(true, false).at_first(true), Effect::Satisfied);
        assert_eq!(Rule::new(false, false).at_first(false), Effect::Nothing);
    }
}
