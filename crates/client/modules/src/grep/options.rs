//! What is asked of grep, and why it may be refused.

use serde::{Deserialize, Serialize};

/// How patterns are written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub enum PatternSyntax {
    /// Basic regular expressions.
    #[default]
    Basic,
    /// Extended ones, `-E`.
    Extended,
    /// Strings, `-F`.
    Fixed,
}

/// What is printed of a file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub enum GrepReport {
    /// The selected lines, and those around them.
    #[default]
    Lines,
    /// The parts of selected lines that match, `-o`.
    Parts,
    /// How many lines are selected, `-c`.
    Count,
    /// The file's name if a line is selected, `-l`.
    NamesWith,
    /// The file's name if none is, `-L`.
    NamesWithout,
    /// Nothing, `-q`.
    Quiet,
}

/// What decides which lines are selected, and how they are printed.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct GrepOptions {
    /// How patterns are written.
    pub syntax: PatternSyntax,
    /// Large and small ASCII letters are the same, `-i`.
    pub ignore_case: bool,
    /// Lines that do not match are selected, `-v`.
    pub invert: bool,
    /// Matches are whole words, `-w`.
    pub words: bool,
    /// Matches are whole lines, `-x`.
    pub whole_lines: bool,
    /// What is printed.
    pub report: GrepReport,
    /// Lines selected of a file at most, `-m`.
    pub max_count: Option<u64>,
    /// Lines printed before a selected one, `-B`; 0 differs from `None` by its separators.
    pub before: Option<u64>,
    /// Lines printed after a selected one, `-A`.
    pub after: Option<u64>,
    /// With the number of the line, `-n`.
    pub line_numbers: bool,
    /// With the offset of what is printed, `-b`.
    pub byte_offsets: bool,
    /// With the name of the file, `-H`.
    pub names: bool,
}

impl GrepOptions {
    /// Whether lines are printed, in whole or in part.
    pub(crate) fn prints_lines(&self) -> bool {
        matches!(self.report, GrepReport::Lines | GrepReport::Parts)
    }

    /// Whether one selected line of a file decides all about it.
    pub(crate) fn one_line_decides(&self, is_binary: bool) -> bool {
        match self.report {
            GrepReport::NamesWith | GrepReport::NamesWithout | GrepReport::Quiet => true,
            GrepReport::Count => false,
            GrepReport::Lines | GrepReport::Parts => is_binary,
        }
    }
}

/// Why patterns cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// GNU grep refuses them, too, with these words and exit code 2.
    #[error("{0}")]
    Invalid(&'static str),
    /// GNU grep can do it, this kernel cannot.
    #[error("{0}: only GNU grep itself can do that")]
    NeedsRealGrep(&'static str),
}
