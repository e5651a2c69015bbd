//! Compiled patterns, and the search for lines that match.

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, Input, MatchKind, meta};
use regex_syntax::hir::{Hir, Look};

use super::bytes;
use super::compile::{program, regex};
use super::options::{GrepOptions, GrepReport, PatternError, PatternSyntax};
use super::parts::PartMatcher;
use super::syntax::{self, PatternReader};

/// Largest automaton made before searching, in bytes.
const DENSE_MAX: usize = 1 << 20;

/// Compiled patterns and options: made once, shared by all scanners.
#[derive(Debug)]
pub struct GrepMatcher {
    pub(super) options: GrepOptions,
    selector: LineSelector,
    pub(super) parts: Option<PartMatcher>,
    selects_nothing: bool,
}

#[derive(Debug)]
enum LineSelector {
    /// No patterns.
    Nothing,
    /// Searched for in whole regions: libraries find candidates faster than lines are split.
    Anywhere(meta::Regex),
    /// All matches start at the start of a line.
    AtStart(Box<LineStartMatcher>),
}

/// Patterns that begin with `^` and take at least one byte.
#[derive(Debug)]
struct LineStartMatcher {
    automaton: dense::DFA<Vec<u32>>,
    /// Bytes that a matching line may begin with.
    first: [bool; 256],
}

impl GrepMatcher {
    /// Compiles `patterns`, any of which may match.
    ///
    /// # Errors
    /// A pattern is invalid, or beyond regular expressions.
    pub fn new(patterns: &[&[u8]], options: GrepOptions) -> Result<Self, PatternError> {
        let lines: Vec<&[u8]> =
            patterns.iter().flat_map(|text| text.split(|byte| *byte == b'\n')).collect();
        let selects_nothing = selects_nothing(&lines, &options);
        if selects_nothing && options.report != GrepReport::NamesWithout {
            // grep does not read the patterns, either.
            let selector = LineSelector::Nothing;
            return Ok(GrepMatcher { options, selector, parts: None, selects_nothing });
        }
        // First the library's reading, whose complaints count.
        let library = translate(&lines, &options, PatternReader::Library)?;
        let is_left = options.syntax != PatternSyntax::Fixed
            && lines.iter().any(|line| syntax::is_left_to_library(line));
        let selected = translate(&lines, &options, PatternReader::Automaton)?;
        // There, both readings select.
        if is_left && (options.words || selected != library) {
            return Err(PatternError::NeedsRealGrep("[= or [. in such a pattern"));
        }
        let selector = match lines.is_empty() {
            true => LineSelector::Nothing,
            false => selector(&bounded(selected, &options))?,
        };
        let has_context = options.before.is_some() || options.after.is_some();
        let has_parts = options.report == GrepReport::Parts && (!options.invert || has_context);
        let parts = match has_parts && !lines.is_empty() {
            true => Some(PartMatcher::new(library, &options)?),
            false => None,
        };
        Ok(GrepMatcher { options, selector, parts, selects_nothing })
    }

    /// Whether no line of any file is selected, whatever is in it (`-m 0`, `-v ''`): grep reads no
    /// file then, and prints nothing but the names of `-L`.
    #[must_use]
    pub fn selects_nothing(&self) -> bool {
        self.selects_nothing
    }

    /// The options it was made with.
    #[must_use]
    pub fn options(&self) -> &GrepOptions {
        &self.options
    }

    /// What a search needs beside the matcher.
    pub(super) fn cache(&self) -> Option<meta::Cache> {
        match &self.selector {
            LineSelector::Anywhere(regex) => Some(regex.create_cache()),
            LineSelector::Nothing | LineSelector::AtStart(_) => None,
        }
    }

    /// First line of `region` that matches and starts at `from` or behind: start, and end without
    /// its newline. A line starts at `from`.
    pub(super) fn find_line(
        &self,
        cache: &mut Option<meta::Cache>,
        region: &[u8],
        from: usize,
    ) -> Option<(usize, usize)> {
        if from >= region.len() {
            return None;
        }
        // Behind the last newline is no line.
        let end = region.len() - usize::from(region.last() == Some(&b'\n'));
        match &self.selector {
            LineSelector::Nothing => None,
            LineSelector::AtStart(matcher) => matcher.find_line(region, from, end),
            LineSelector::Anywhere(regex) => {
                let input = Input::new(region).span(from..end);
                let found = match cache {
                    Some(cache) => regex.search_half_with(cache, &input),
                    None => regex.search_half(&input),
                };
                let at = found?.offset();
                let start =
                    memchr::memrchr(b'\n', &region[from..at]).map_or(from, |nl| from + nl + 1);
                Some((start, line_end(region, at)))
            }
        }
    }
}

/// Whether no line of any file is selected, as the options and the emptiness of patterns say.
fn selects_nothing(patterns: &[&[u8]], options: &GrepOptions) -> bool {
    let bounded = options.words || options.whole_lines;
    let never = match patterns.is_empty() {
        true => !options.invert,
        false => patterns.iter().all(|line| line.is_empty()) && options.invert && !bounded,
    };
    never || options.max_count == Some(0)
}

/// End of the line of `region` in which `at` lies.
pub(super) fn line_end(region: &[u8], at: usize) -> usize {
    memchr::memchr(b'\n', &region[at..]).map_or(region.len(), |newline| at + newline)
}

/// All patterns as one.
fn translate(
    patterns: &[&[u8]],
    options: &GrepOptions,
    reader: PatternReader,
) -> Result<Hir, PatternError> {
    let each = patterns.iter().map(|pattern| match options.syntax {
        PatternSyntax::Fixed => {
            let bytes = pattern.iter().map(|byte| bytes::literal(*byte, options.ignore_case));
            Ok(Hir::concat(bytes.collect()))
        }
        PatternSyntax::Basic | PatternSyntax::Extended => syntax::parse(pattern, options, reader),
    });
    Ok(Hir::alternation(each.collect::<Result<_, _>>()?))
}

/// With what `-x` and `-w` ask for around a match.
fn bounded(pattern: Hir, options: &GrepOptions) -> Hir {
    let (before, after) = match (options.whole_lines, options.words) {
        (true, _) => (Look::StartLF, Look::EndLF),
        (false, true) => (Look::WordStartHalfAscii, Look::WordEndHalfAscii),
        (false, false) => return pattern,
    };
    Hir::concat(vec![Hir::look(before), pattern, Hir::look(after)])
}

fn selector(pattern: &Hir) -> Result<LineSelector, PatternError> {
    let properties = pattern.properties();
    let at_start = properties.look_set_prefix().contains(Look::StartLF);
    if at_start
        && properties.minimum_len().is_some_and(|len| len > 0)
        && let Some(matcher) = LineStartMatcher::new(pattern)
    {
        return Ok(LineSelector::AtStart(Box::new(matcher)));
    }
    Ok(LineSelector::Anywhere(regex(pattern)?))
}

impl LineStartMatcher {
    /// `None` if the automaton would be large.
    fn new(pattern: &Hir) -> Option<Self> {
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .dfa_size_limit(Some(DENSE_MAX))
            .determinize_size_limit(Some(DENSE_MAX));
        let program = program(pattern).ok()?;
        let automaton = dense::Builder::new().configure(config).build_from_nfa(&program).ok()?;
        let mut first = [false; 256];
        for before in [None, Some(b'\n')] {
            let config = start::Config::new().look_behind(before).anchored(Anchored::Yes);
            let state: StateID = automaton.start_state(&config).ok()?;
            for byte in 0..=255_u8 {
                first[usize::from(byte)] |=
                    !automaton.is_dead_state(automaton.next_state(state, byte));
            }
        }
        Some(LineStartMatcher { automaton, first })
    }

    fn find_line(&self, region: &[u8], from: usize, end: usize) -> Option<(usize, usize)> {
        let is_candidate = |start: usize| self.first[usize::from(region[start])];
        if from < end && is_candidate(from) && self.matches(region, from, end) {
            return Some((from, line_end(region, from)));
        }
        for newline in memchr::memchr_iter(b'\n', &region[from..end]) {
            let start = from + newline + 1;
            if start < end && is_candidate(start) && self.matches(region, start, end) {
                return Some((start, line_end(region, start)));
            }
        }
        None
    }

    /// Whether the line that starts at `start` matches. The automaton ends at its newline.
    fn matches(&self, region: &[u8], start: usize, end: usize) -> bool {
        let input = Input::new(region).span(start..end).anchored(Anchored::Yes).earliest(true);
        // An automaton without bytes to quit at has no errors.
        matches!(self.automaton.try_search_fwd(&input), Ok(Some(_)))
    }
}
