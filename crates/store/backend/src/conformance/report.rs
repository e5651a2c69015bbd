//! Parts of the suite, and how they went.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::target::{Backend, BackendOffers};

/// One part of the suite.
pub(super) struct ConformancePart {
    name: &'static str,
    /// Whether it is about something that a backend offers.
    is_offered: fn(&BackendOffers) -> bool,
    /// It has something to check even where that is not offered.
    is_for_all: bool,
    body: fn(&mut dyn Backend),
}

impl ConformancePart {
    /// A part about what every backend does.
    pub(super) const fn of_all(name: &'static str, body: fn(&mut dyn Backend)) -> Self {
        Self { name, is_offered: |_| true, is_for_all: true, body }
    }

    /// A part about values. Of a backend that keeps none it checks that there are as many zeros.
    pub(super) const fn of_values(name: &'static str, body: fn(&mut dyn Backend)) -> Self {
        Self { name, is_offered: |offers| offers.values, is_for_all: true, body }
    }

    pub(super) const fn of_damage(name: &'static str, body: fn(&mut dyn Backend)) -> Self {
        Self { name, is_offered: |offers| offers.damage, is_for_all: false, body }
    }

    pub(super) const fn of_mapping(name: &'static str, body: fn(&mut dyn Backend)) -> Self {
        Self { name, is_offered: |offers| offers.mapping, is_for_all: false, body }
    }

    /// Panics if it does not hold. Returns whether the backend offers what it is about.
    pub(super) fn check(&self, backend: &mut dyn Backend) -> bool {
        let offers = backend.offers();
        let is_offered = (self.is_offered)(&offers);
        assert_eq!(offers.mapping, backend.arena().is_some(), "an arena is there, or is not");
        if is_offered || self.is_for_all {
            (self.body)(backend);
        }
        is_offered
    }
}

/// How a part went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartReport {
    /// Name of the part.
    pub part: &'static str,
    /// How it went.
    pub outcome: PartOutcome,
}

/// How a part of the suite went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartOutcome {
    /// All that it checks is so.
    Held,
    /// The backend says that it does not offer what the part is about.
    NotOffered,
    /// Something is not so: this.
    Broken(String),
}

/// Runs all parts against the targets that `make` makes.
pub fn report(make: &dyn Fn() -> Box<dyn Backend>) -> Vec<PartReport> {
    let outcome = |part: &ConformancePart| match catch_unwind(AssertUnwindSafe(|| {
        part.check(make().as_mut())
    })) {
        Ok(true) => PartOutcome::Held,
        Ok(false) => PartOutcome::NotOffered,
        Err(panic) => {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            PartOutcome::Broken(words.unwrap_or_else(|| "panicked".into()))
        }
    };
    super::PARTS.iter().map(|part| PartReport { part: part.name, outcome: outcome(part) }).collect()
}
