//! Which rules the parts play by: the right ones, or a deliberately wrong set, which a test expects the simulator to find out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Wrong {
    /// Results are not remembered: a repetition is done again.
    NoDedupe,
}

/// The rules of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// The one that is broken, if any.
    pub wrong: Option<Wrong>,
}

impl Wrong {
    /// All there are.
    pub const ALL: [Self; 1] = [Self::NoDedupe];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoDedupe => "no-dedupe",
        }
    }
}

impl Rules {
    /// Whether this rule is the broken one.
    #[must_use]
    pub fn breaks(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
