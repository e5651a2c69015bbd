//! Joins the partial results of files and writes what GNU grep prints.

use std::collections::VecDeque;
use std::io::Write;

use super::matcher::GrepMatcher;
use super::options::{GrepOptions, GrepReport};
use super::scan::{GrepLine, GrepLineKind, GrepPartial};

/// What is known of a file when all its pieces were joined.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FileOutcome {
    /// Lines selected; not more than what decides.
    pub selected: u64,
    /// Standard error is to say [`binary_matches`](super::binary_matches).
    pub binary_matches: bool,
}

/// Writes the results of files, one after the other.
#[derive(Debug)]
pub struct GrepPrinter {
    options: GrepOptions,
    selects_nothing: bool,
    /// A line was selected before: of this file, or of another.
    printed: bool,
    any_selected: bool,
    file: FileState,
}

#[derive(Debug, Default)]
struct FileState {
    name: Vec<u8>,
    is_binary: bool,
    selected: u64,
    /// Lines before the piece.
    lines: u64,
    /// Where the last line that was printed ends.
    printed_to: Option<u64>,
    /// Lines to print behind the last that was selected.
    pending: u64,
    /// Lines that may be printed before the next that is selected.
    waiting: VecDeque<WaitingLine>,
    /// The line to which parts belong.
    parts_of: PartsOf,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum PartsOf {
    #[default]
    Nothing,
    Printed,
    Waiting,
}

#[derive(Debug)]
struct WaitingLine {
    offset: u64,
    line_len: u64,
    /// What is printed of it.
    printed: Vec<u8>,
}

impl GrepPrinter {
    /// Nothing printed yet.
    #[must_use]
    pub fn new(matcher: &GrepMatcher) -> Self {
        GrepPrinter {
            options: matcher.options().clone(),
            selects_nothing: matcher.selects_nothing(),
            printed: false,
            any_selected: false,
            file: FileState::default(),
        }
    }

    /// Begins a file. `is_binary` as for [`GrepScanner::scan`](super::GrepScanner::scan).
    pub fn begin_file(&mut self, name: &[u8], is_binary: bool) {
        self.file = FileState { name: name.to_vec(), is_binary, ..FileState::default() };
    }

    /// Joins the result of the file's next piece and appends to `out` what it prints. Whether
    /// further pieces can change anything: where not, they need not be searched.
    pub fn join(&mut self, partial: &GrepPartial, out: &mut Vec<u8>) -> bool {
        if self.file.is_binary || !self.options.prints_lines() {
            self.file.selected = self.file.selected.saturating_add(partial.selected);
        } else {
            self.lines(partial, out);
        }
        self.file.lines = self.file.lines.wrapping_add(partial.newlines);
        self.goes_on()
    }

    fn limit(&self) -> u64 {
        let one = self.options.one_line_decides(self.file.is_binary);
        let limit = self.options.max_count.unwrap_or(u64::MAX);
        if one { limit.min(1) } else { limit }
    }

    fn goes_on(&self) -> bool {
        self.file.selected < self.limit() || self.file.pending > 0
    }

    /// Ends the file: appends to `out` what is printed of it as a whole.
    pub fn end_file(&mut self, out: &mut Vec<u8>) -> FileOutcome {
        let selected = self.file.selected.min(self.limit());
        self.any_selected |= selected > 0;
        // Without a text, too.
        self.printed |= selected > 0;
        let mut outcome = FileOutcome { selected, binary_matches: false };
        let lists = match self.options.report {
            GrepReport::NamesWith => selected > 0,
            GrepReport::NamesWithout => selected == 0,
            GrepReport::Count if !self.selects_nothing => {
                if self.options.names {
                    out.extend_from_slice(&self.file.name);
                    out.push(b':');
                }
                append_number(out, selected);
                out.push(b'\n');
                false
            }
            GrepReport::Lines | GrepReport::Parts => {
                outcome.binary_matches = self.file.is_binary && selected > 0;
                false
            }
            GrepReport::Count | GrepReport::Quiet => false,
        };
        if lists {
            out.extend_from_slice(&self.file.name);
            out.push(b'\n');
        }
        outcome
    }

    /// grep's exit code, where no file gave an error: 0 if a line was selected, otherwise 1. With
    /// an error it is 2, but under `-q` only if no line was selected.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.any_selected)
    }

    fn lines(&mut self, partial: &GrepPartial, out: &mut Vec<u8>) {
        let mut text = &partial.text[..];
        for line in &partial.lines {
            // What comes from another node may be damaged: a wrong line is better than a panic.
            let len = usize::try_from(line.len).unwrap_or(usize::MAX).min(text.len());
            let own;
            (own, text) = text.split_at(len);
            match line.kind {
                GrepLineKind::Part => self.part(line, own, out),
                GrepLineKind::Selected if self.file.selected < self.limit() => {
                    self.selected(line, own, out);
                }
                GrepLineKind::Selected | GrepLineKind::Context => self.context(line, own, out),
            }
            if !self.goes_on() && self.file.parts_of != PartsOf::Printed {
                break;
            }
        }
    }

    fn selected(&mut self, line: &GrepLine, text: &[u8], out: &mut Vec<u8>) {
        let number = self.file.lines.wrapping_add(line.number);
        let first = self.file.waiting.front().map_or(line.offset, |first| first.offset);
        let has_groups = self.options.before.is_some() || self.options.after.is_some();
        if has_groups && self.printed && self.file.printed_to != Some(first) {
            out.extend_from_slice(b"--\n");
        }
        while let Some(before) = self.file.waiting.pop_front() {
            out.extend_from_slice(&before.printed);
        }
        self.whole(out, b':', number, line.offset, text);
        self.printed = true;
        self.file.printed_to = Some(line.offset.wrapping_add(line.line_len));
        self.file.selected += 1;
        self.file.pending = self.options.after.unwrap_or(0);
        self.file.parts_of = match self.options.report {
            GrepReport::Parts if !self.options.invert => PartsOf::Printed,
            _ => PartsOf::Nothing,
        };
    }

    fn part(&mut self, line: &GrepLine, text: &[u8], out: &mut Vec<u8>) {
        let separator = if self.options.invert { b'-' } else { b':' };
        let number = self.file.lines.wrapping_add(line.number);
        match (self.file.parts_of, self.file.waiting.pop_back()) {
            (PartsOf::Printed, _) => self.print(out, separator, number, line.offset, text),
            (PartsOf::Waiting, Some(mut waiting)) => {
                self.print(&mut waiting.printed, separator, number, line.offset, text);
                self.file.waiting.push_back(waiting);
            }
            _ => {}
        }
    }

    /// A line that is not selected, or no more.
    fn context(&mut self, line: &GrepLine, text: &[u8], out: &mut Vec<u8>) {
        let number = self.file.lines.wrapping_add(line.number);
        let has_parts = self.options.report == GrepReport::Parts && self.options.invert;
        let parts_of = |parts| if has_parts { parts } else { PartsOf::Nothing };
        self.file.parts_of = PartsOf::Nothing;
        if self.file.pending > 0 {
            self.file.pending -= 1;
            self.file.parts_of = parts_of(PartsOf::Printed);
            self.whole(out, b'-', number, line.offset, text);
            self.file.printed_to = Some(line.offset.wrapping_add(line.line_len));
            return;
        }
        let before = self.options.before.unwrap_or(0);
        if before == 0 {
            return;
        }
        let (offset, line_len) = (line.offset, line.line_len);
        let mut printed = Vec::new();
        self.whole(&mut printed, b'-', number, offset, text);
        self.file.parts_of = parts_of(PartsOf::Waiting);
        let waiting = &mut self.file.waiting;
        // Between lines that are not neighbours is one that cannot be printed any more.
        if waiting.back().is_some_and(|last| last.offset.wrapping_add(last.line_len) != line.offset)
        {
            waiting.clear();
        }
        if waiting.len() as u64 >= before {
            waiting.pop_front();
        }
        waiting.push_back(WaitingLine { offset, line_len, printed });
    }

    fn whole(&self, out: &mut Vec<u8>, separator: u8, number: u64, offset: u64, text: &[u8]) {
        if self.options.report == GrepReport::Lines {
            self.print(out, separator, number, offset, text);
        }
    }

    fn print(&self, out: &mut Vec<u8>, separator: u8, number: u64, offset: u64, text: &[u8]) {
        if self.options.names {
            out.extend_from_slice(&self.file.name);
            out.push(separator);
        }
        if self.options.line_numbers {
            append_number(out, number.wrapping_add(1));
            out.push(separator);
        }
        if self.options.byte_offsets {
            append_number(out, offset);
            out.push(separator);
        }
        out.extend_from_slice(text);
        out.push(b'\n');
    }
}

fn append_number(out: &mut Vec<u8>, number: u64) {
    // A vector takes all that is written.
    let _ = write!(out, "{number}");
}
