//! `grep`: lines of files that match patterns.
//!
//! A piece gives what lies in whole lines of it, and the bytes before its first line and after its
//! last, which are joined with those of its neighbours where all results come together: no task
//! reads what lies beside its piece.

mod args;
mod merge;
mod task;

use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;

use samite_modules::grep::{GrepMatcher, GrepOptions, GrepPartial, GrepReport};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::TaskInput;
use samite_worker::messages::PieceOutput;
use samite_worker::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};
use serde::{Deserialize, Serialize};

pub use args::GrepArgs;

/// Bytes of the beginning of a file in which a NUL makes it no text.
pub(crate) const BINARY_DECIDING_LEN: u64 = 32 << 10;

/// Begin of the output of a piece: [`PieceStart`].
const START: u8 = 0;
/// Bytes up to the first newline.
const HEAD: u8 = 1;
/// [`RegionResult`].
const REGION: u8 = 2;
/// Bytes behind the last newline.
const TAIL: u8 = 3;
/// Offset of the first NUL of the piece, 8 bytes.
const NUL: u8 = 4;

/// What all tasks need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GrepOrder {
    pub(crate) patterns: Vec<Vec<u8>>,
    pub(crate) options: GrepOptions,
    /// A NUL means nothing.
    pub(crate) is_text: bool,
}

/// Where a piece lies.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct PieceStart {
    offset: u64,
    len: u64,
}

/// The result for some lines of a piece.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RegionResult {
    partial: GrepPartial,
    /// Lines selected if the file is no text, where that makes a difference.
    binary_selected: Option<u64>,
}

impl GrepOrder {
    /// Compiles the patterns.
    pub(crate) fn matcher(&self) -> Result<GrepMatcher> {
        let patterns: Vec<&[u8]> = self.patterns.iter().map(Vec::as_slice).collect();
        GrepMatcher::new(&patterns, self.options.clone())
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
    }

    /// Whether lines are printed, in whole or in part.
    fn prints_lines(&self) -> bool {
        matches!(self.options.report, GrepReport::Lines | GrepReport::Parts)
    }

    /// Whether what comes first may make the rest unneeded.
    fn can_end_early(&self) -> bool {
        self.limit() != u64::MAX && self.options.after.is_none()
    }

    /// Lines of a file after which the others do not matter.
    fn limit(&self) -> u64 {
        let most = self.options.max_count.unwrap_or(u64::MAX);
        match self.options.report {
            GrepReport::NamesWith | GrepReport::NamesWithout | GrepReport::Quiet => most.min(1),
            GrepReport::Count | GrepReport::Lines | GrepReport::Parts => most,
        }
    }
}

/// The module `grep`.
#[derive(Debug)]
pub struct GrepModule;

impl GrepModule {
    /// Which pieces need no output once this has come. `ranges`: the pieces of each file.
    #[must_use]
    pub fn unneeded(
        arguments: &[u8],
        ranges: &[Range<u64>],
        output: &PieceOutput,
    ) -> Option<Range<u64>> {
        let order: GrepOrder = crate::call::decode(arguments).ok()?;
        let limit = order.limit();
        let mut selected = 0;
        let counted = crate::frames::each(&output.bytes, &mut |tag, bytes| {
            if tag == REGION {
                let region: RegionResult = crate::call::decode(bytes)?;
                let binary = region.binary_selected.unwrap_or(region.partial.selected);
                selected += region.partial.selected.min(binary);
            }
            Ok(())
        });
        counted.ok()?;
        if selected < limit {
            return None;
        }
        let of = ranges.iter().find(|range| range.contains(&output.piece))?;
        match order.options.report {
            GrepReport::Quiet => Some(0..u64::MAX),
            GrepReport::NamesWith | GrepReport::NamesWithout => Some(of.clone()),
            GrepReport::Count | GrepReport::Lines | GrepReport::Parts => {
                Some(output.piece + 1..of.end)
            }
        }
    }
}

impl Module for GrepModule {
    fn name(&self) -> &'static str {
        "grep"
    }

    fn about(&self) -> &'static str {
        "lines of files that match patterns, as GNU grep"
    }

    fn parse(&self, words: &[OsString]) -> Result<ModuleCall> {
        let call = GrepArgs::of_words(words)?.call()?;
        let (arguments, paths, is_recursive) = (call.arguments, call.paths, call.is_recursive);
        Ok(ModuleCall { arguments, paths, is_recursive })
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        task::run(&crate::call::decode(arguments)?, input, out)
    }

    fn merge(
        &self,
        arguments: &[u8],
        input: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8> {
        merge::merge(&crate::call::decode(arguments)?, input, outputs, out)
    }
}
