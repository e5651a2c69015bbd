//! Lines that match patterns: what GNU grep 3.8 prints under `LC_ALL=C`, byte for byte.
//!
//! [`GrepMatcher`] is made once of patterns and [`GrepOptions`]. A [`GrepScanner`] (one a thread)
//! makes a [`GrepPartial`] of each piece of a file; a [`GrepPrinter`] joins the partial results of
//! all files in their order and writes what grep would.
//!
//! Two things differ on purpose: `-o -x -w`, where GNU grep prints an empty line more (here it is
//! `-o -x`), and warnings about patterns, which are not given. A back-reference is not a regular expression: such patterns are refused by
//! [`PatternError::NeedsRealGrep`].

mod bracket;
mod bytes;
mod compile;
mod globs;
mod matcher;
mod options;
mod parts;
mod printer;
mod scan;
mod syntax;

pub use globs::FileGlobs;
pub use matcher::GrepMatcher;
pub use options::{GrepOptions, GrepReport, PatternError, PatternSyntax};
pub use printer::{FileOutcome, GrepPrinter};
pub use scan::{GrepLine, GrepLineKind, GrepPartial, GrepScanner};

/// The text that says that a file that is not text has a selected line; for standard error.
#[must_use]
pub fn binary_matches(name: &str) -> String {
    format!("grep: {name}: binary file matches")
}

/// Splits the text of `-e` options or of a pattern file into patterns: one a line. The text of a
/// file ends with a newline that starts no further pattern.
pub fn patterns_of_file(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let lines = if text.is_empty() { None } else { Some(text.split(|byte| *byte == b'\n')) };
    lines.into_iter().flatten()
}
