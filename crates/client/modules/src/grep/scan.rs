//! The search of a piece: its partial result.

use regex_automata::meta;
use serde::{Deserialize, Serialize};

use super::matcher::{GrepMatcher, line_end};
use super::options::{GrepOptions, GrepReport};
use super::parts::{PartCache, PartMatcher};
use crate::piece::{LineEnding, TextPiece};

/// What a line of a partial result is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum GrepLineKind {
    /// Selected. Where parts are printed, it has no text, and its parts follow.
    Selected,
    /// Not selected, but near to one that is, or may be. Under `-v` its parts follow.
    Context,
    /// A part of the line before it that matches.
    Part,
}

/// One line, or part of a line, of a partial result.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct GrepLine {
    /// What it is.
    pub kind: GrepLineKind,
    /// Lines of the piece before it; 0 where no numbers are asked for.
    pub number: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Length of its text, without the newline.
    pub len: u64,
    /// Length of the line itself, with its newline.
    pub line_len: u64,
}

/// What a piece adds to the result of its file.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct GrepPartial {
    /// Lines that matter, in their order.
    pub lines: Vec<GrepLine>,
    /// Their texts, without newlines, one behind the other.
    pub text: Vec<u8>,
    /// Lines of the piece that are selected, up to the most that can matter.
    pub selected: u64,
    /// Lines of the piece; 0 where no numbers are asked for.
    pub newlines: u64,
}

/// Searches pieces, one after the other: one a thread.
#[derive(Debug)]
pub struct GrepScanner<'m> {
    matcher: &'m GrepMatcher,
    cache: Option<meta::Cache>,
    parts: Option<PartCache>,
}

impl<'m> GrepScanner<'m> {
    /// Searches with `matcher`.
    #[must_use]
    pub fn new(matcher: &'m GrepMatcher) -> Self {
        let parts = matcher.parts.as_ref().map(PartMatcher::cache);
        GrepScanner { matcher, cache: matcher.cache(), parts }
    }

    /// Searches the lines that start in `piece`. `is_binary`: there is a NUL in the first 32 KiB
    /// of the file, and the file is not to be read as text (`-a`). `more` appends bytes that
    /// follow the piece, more of them with every call, and says whether there were any.
    ///
    /// # Errors
    /// Those of `more`.
    pub fn scan<E>(
        &mut self,
        piece: &TextPiece<'_>,
        is_binary: bool,
        more: &mut dyn FnMut(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<GrepPartial, E> {
        if self.matcher.selects_nothing() {
            return Ok(GrepPartial::default());
        }
        let ending = if is_binary { LineEnding::NewlineOrNul } else { LineEnding::Newline };
        let lines = piece.lines(ending, more)?;
        let mut partial = GrepPartial::default();
        let text = |bytes: &[u8]| -> Vec<u8> {
            bytes.iter().map(|byte| if *byte == 0 { b'\n' } else { *byte }).collect()
        };
        for (bytes, offset) in
            [(lines.whole, lines.whole_offset), (&lines.crossing, lines.crossing_offset())]
        {
            if bytes.is_empty() {
                continue;
            }
            match is_binary && memchr::memchr(0, bytes).is_some() {
                true => self.region(&text(bytes), offset, is_binary, &mut partial),
                false => self.region(bytes, offset, is_binary, &mut partial),
            }
        }
        Ok(partial)
    }

    /// Searches a region of whole lines.
    fn region(&mut self, region: &[u8], offset: u64, is_binary: bool, partial: &mut GrepPartial) {
        let options = &self.matcher.options;
        let limit = match options.one_line_decides(is_binary) {
            true => 1.min(options.max_count.unwrap_or(1)),
            false => options.max_count.unwrap_or(u64::MAX),
        };
        if is_binary || !options.prints_lines() {
            self.count(region, limit, partial);
            return;
        }
        let parts = self.matcher.parts.as_ref().zip(self.parts.as_mut());
        let mut collector = LineCollector::new(region, offset, options, parts, partial);
        let mut after_limit = limit;
        let mut from = 0;
        while after_limit > 0
            && let Some((start, end)) = next_selected(self.matcher, &mut self.cache, region, from)
        {
            after_limit -= 1;
            collector.selected(start, end);
            from = end + 1;
        }
        collector.finish();
    }

    fn count(&mut self, region: &[u8], limit: u64, partial: &mut GrepPartial) {
        if self.matcher.options.invert && limit > region.len() as u64 {
            let lines = count_lines(region);
            partial.selected += lines - self.count_matching(region, u64::MAX);
            return;
        }
        if !self.matcher.options.invert {
            partial.selected += self.count_matching(region, limit.saturating_sub(partial.selected));
            return;
        }
        let mut from = 0;
        while partial.selected < limit
            && let Some((_, end)) = next_selected(self.matcher, &mut self.cache, region, from)
        {
            partial.selected += 1;
            from = end + 1;
        }
    }

    fn count_matching(&mut self, region: &[u8], limit: u64) -> u64 {
        let (mut count, mut from) = (0, 0);
        while count < limit
            && let Some((_, end)) = self.matcher.find_line(&mut self.cache, region, from)
        {
            count += 1;
            from = end + 1;
        }
        count
    }
}

/// The next selected line that starts at `from` or behind.
fn next_selected(
    matcher: &GrepMatcher,
    cache: &mut Option<meta::Cache>,
    region: &[u8],
    mut from: usize,
) -> Option<(usize, usize)> {
    if !matcher.options.invert {
        return matcher.find_line(cache, region, from);
    }
    while from < region.len() {
        let end = line_end(region, from);
        // One line at a time: what is behind it is not searched for nothing.
        let line = &region[from..(end + 1).min(region.len())];
        if matcher.find_line(cache, line, 0).is_none() {
            return Some((from, end));
        }
        from = end + 1;
    }
    None
}

fn count_lines(region: &[u8]) -> u64 {
    let newlines = memchr::memchr_iter(b'\n', region).count() as u64;
    newlines + u64::from(region.last().is_some_and(|last| *last != b'\n'))
}

/// Takes the lines that matter out of a region.
struct LineCollector<'a> {
    region: &'a [u8],
    offset: u64,
    partial: &'a mut GrepPartial,
    parts: Option<(&'a PartMatcher, &'a mut PartCache)>,
    invert: bool,
    before: u64,
    after: u64,
    has_text: bool,
    has_context: bool,
    numbers: bool,
    /// Lines up to here are taken.
    taken: usize,
    /// Lines to take behind `taken`.
    pending: u64,
    /// Lines before this are counted.
    counted: usize,
}

impl<'a> LineCollector<'a> {
    fn new(
        region: &'a [u8],
        offset: u64,
        options: &GrepOptions,
        parts: Option<(&'a PartMatcher, &'a mut PartCache)>,
        partial: &'a mut GrepPartial,
    ) -> Self {
        let (before, after) = (options.before.unwrap_or(0), options.after.unwrap_or(0));
        LineCollector {
            region,
            offset,
            partial,
            parts,
            invert: options.invert,
            before,
            after,
            has_text: options.report == GrepReport::Lines,
            has_context: before > 0 || after > 0,
            numbers: options.line_numbers,
            taken: 0,
            pending: after,
            counted: 0,
        }
    }

    fn selected(&mut self, start: usize, end: usize) {
        if self.has_context {
            self.trailing(start);
            self.leading(start);
        }
        self.push(GrepLineKind::Selected, start, end);
        self.partial.selected += 1;
        self.pending = self.after;
    }

    /// Takes pending lines that start before `limit`.
    fn trailing(&mut self, limit: usize) {
        while self.pending > 0 && self.taken < limit {
            self.pending -= 1;
            let start = self.taken;
            self.push(GrepLineKind::Context, start, line_end(self.region, start));
        }
    }

    /// Takes the lines before the one that starts at `limit`, as many as may be printed before it.
    fn leading(&mut self, limit: usize) {
        let mut start = limit;
        let mut lines = 0;
        while lines < self.before && start > self.taken {
            let before = &self.region[self.taken..start - 1];
            start = memchr::memrchr(b'\n', before).map_or(self.taken, |nl| self.taken + nl + 1);
            lines += 1;
        }
        while start < limit {
            self.push(GrepLineKind::Context, start, line_end(self.region, start));
            start = self.taken;
        }
    }

    fn push(&mut self, kind: GrepLineKind, start: usize, end: usize) {
        if self.numbers {
            let lines = memchr::memchr_iter(b'\n', &self.region[self.counted..start]).count();
            self.partial.newlines += lines as u64;
            self.counted = start;
        }
        self.taken = (end + 1).min(self.region.len());
        let text = if self.has_text { &self.region[start..end] } else { &[] };
        self.partial.text.extend_from_slice(text);
        self.partial.lines.push(GrepLine {
            kind,
            number: self.partial.newlines,
            offset: self.offset + start as u64,
            len: text.len() as u64,
            line_len: (self.taken - start) as u64,
        });
        // Under -v, lines around those that are selected have parts; one that is selected here may
        // be one around others, if the file has enough of them before.
        let has_parts = self.invert || kind == GrepLineKind::Selected;
        let Some((matcher, cache)) = self.parts.as_mut().filter(|_| has_parts) else { return };
        let number = self.partial.newlines;
        let partial = &mut *self.partial;
        let line = &self.region[start..end];
        matcher.each(cache, line, |from, to| {
            let offset = self.offset + (start + from) as u64;
            let (kind, len) = (GrepLineKind::Part, (to - from) as u64);
            partial.lines.push(GrepLine { kind, number, offset, len, line_len: 0 });
            partial.text.extend_from_slice(&line[from..to]);
        });
    }

    fn finish(mut self) {
        if self.has_context {
            self.trailing(self.region.len());
            // The last lines may be printed before a line of the next region.
            let end = match self.region.last() {
                Some(b'\n') => self.region.len(),
                // The last line of the file.
                _ => self.taken,
            };
            if end > self.taken {
                self.leading(end);
            }
        }
        if self.numbers {
            let rest = &self.region[self.counted..];
            self.partial.newlines += memchr::memchr_iter(b'\n', rest).count() as u64;
        }
    }
}
