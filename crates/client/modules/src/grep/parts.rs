//! The parts of a line that match, `-o`: leftmost first, longest of those.

use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::{Anchored, Input, MatchKind, meta};
use regex_syntax::hir::{Class, ClassBytes, Hir, HirKind, Look};

use super::bytes::is_word;
use super::compile::{TOO_LARGE, program, regex};
use super::options::{GrepOptions, PatternError};

/// What finds the parts of matching lines.
#[derive(Debug)]
pub(super) struct PartMatcher {
    /// Finds where the leftmost match starts.
    anywhere: meta::Regex,
    /// Finds the longest match that starts there.
    longest: DFA,
    /// The same, in a text that ends before its line does.
    inside: Option<DFA>,
}

/// What a thread needs beside a [`PartMatcher`].
#[derive(Debug)]
pub(super) struct PartCache {
    anywhere: meta::Cache,
    longest: Cache,
    inside: Option<Cache>,
}

impl PartMatcher {
    pub(super) fn new(pattern: Hir, options: &GrepOptions) -> Result<Self, PatternError> {
        let inside = match options.words && !options.whole_lines {
            true => Some(automaton(&without_line_end(&pattern))?),
            false => None,
        };
        Ok(PartMatcher { anywhere: regex(&pattern)?, longest: automaton(&pattern)?, inside })
    }

    pub(super) fn cache(&self) -> PartCache {
        PartCache {
            anywhere: self.anywhere.create_cache(),
            longest: self.longest.create_cache(),
            inside: self.inside.as_ref().map(DFA::create_cache),
        }
    }

    /// Calls `found` with start and end of each part of `line` that is not empty.
    pub(super) fn each(
        &self,
        cache: &mut PartCache,
        line: &[u8],
        mut found: impl FnMut(usize, usize),
    ) {
        let mut from = 0;
        while from <= line.len() {
            let part = match self.inside {
                Some(_) => self.next_word(cache, line, from),
                None => self.next(cache, line, from),
            };
            let Some((start, end)) = part else { return };
            if start < end {
                found(start, end);
            }
            from = end.max(start + 1);
        }
    }

    fn next(&self, cache: &mut PartCache, line: &[u8], from: usize) -> Option<(usize, usize)> {
        let input = Input::new(line).span(from..line.len());
        let start = self.anywhere.search_with(&mut cache.anywhere, &input)?.start();
        let end = longest(&self.longest, &mut cache.longest, line, start)?;
        Some((start, end))
    }

    /// The next part that is a word, as GNU grep looks for it: a match that is none is made
    /// shorter, then the search goes on behind its first byte. A shorter one is looked for in the
    /// first `start + length - from` bytes of the line, so less is found where `from` is not 0.
    fn next_word(&self, cache: &mut PartCache, line: &[u8], from: usize) -> Option<(usize, usize)> {
        let (mut start, mut end) = self.next(cache, line, from)?;
        loop {
            let inside_word = line.get(end).is_some_and(|byte| is_word(*byte))
                || start.checked_sub(1).is_some_and(|before| is_word(line[before]));
            if !inside_word {
                return Some((start, end));
            }
            let limit = (end - usize::from(end > start)) - from;
            let shorter = match (&self.inside, &mut cache.inside) {
                (Some(inside), Some(cache)) if start < end && limit >= start => {
                    longest(inside, cache, &line[..limit], start).filter(|end| *end > start)
                }
                _ => None,
            };
            match shorter {
                Some(shorter) => end = shorter,
                None if start == line.len() => return None,
                None => (start, end) = self.next(cache, line, start + 1)?,
            }
        }
    }
}

fn longest(automaton: &DFA, cache: &mut Cache, line: &[u8], start: usize) -> Option<usize> {
    let input = Input::new(line).span(start..line.len()).anchored(Anchored::Yes);
    // It neither quits at a byte nor gives up for want of memory.
    automaton.try_search_fwd(cache, &input).ok()?.map(|end| end.offset())
}

fn automaton(pattern: &Hir) -> Result<DFA, PatternError> {
    let config = Config::new().match_kind(MatchKind::All).skip_cache_capacity_check(true);
    let program = program(pattern)?;
    DFA::builder().configure(config).build_from_nfa(program).map_err(|_| TOO_LARGE)
}

/// `pattern` where no line ends.
fn without_line_end(pattern: &Hir) -> Hir {
    match pattern.kind() {
        HirKind::Look(Look::EndLF) => Hir::class(Class::Bytes(ClassBytes::empty())),
        HirKind::Repetition(repetition) => {
            let mut repetition = repetition.clone();
            repetition.sub = Box::new(without_line_end(&repetition.sub));
            Hir::repetition(repetition)
        }
        HirKind::Capture(capture) => without_line_end(&capture.sub),
        HirKind::Concat(all) => Hir::concat(all.iter().map(without_line_end).collect()),
        HirKind::Alternation(all) => Hir::alternation(all.iter().map(without_line_end).collect()),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => {
            pattern.clone()
        }
    }
}
