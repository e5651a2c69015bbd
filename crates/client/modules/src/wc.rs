//! Lines, words and bytes: what GNU wc 9.1 counts under `LC_ALL=C`.
//!
//! A word begins with a printing byte and ends with white space. Other bytes neither begin nor end
//! one. Pieces may be cut anywhere: their [`WcPartial`]s are joined in order.

use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WcFields {
    /// Newlines, `-l`.
    pub lines: bool,
    /// Words, `-w`.
    pub words: bool,
    /// Characters, `-m`: bytes, in the C locale.
    pub chars: bool,
    /// Bytes, `-c`.
    pub bytes: bool,
    /// Columns of the longest line, `-L`.
    pub longest: bool,
}

impl WcFields {
    /// What is counted where nothing is asked for.
    pub const DEFAULT: WcFields =
        WcFields { lines: true, words: true, chars: false, bytes: true, longest: false };

    fn count(self) -> usize {
        [self.lines, self.words, self.chars, self.bytes, self.longest]
            .iter()
            .filter(|field| **field)
            .count()
    }
}

/// The counts of a file, or of several.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WcCounts {
    /// Newlines.
    pub lines: u64,
    /// Words.
    pub words: u64,
    /// Bytes.
    pub bytes: u64,
    /// Columns of the longest line.
    pub longest: u64,
}

impl WcCounts {
    /// Adds another file's, for the line `total`.
    pub fn add(&mut self, other: &WcCounts) {
        self.lines += other.lines;
        self.words += other.words;
        self.bytes += other.bytes;
        self.longest = self.longest.max(other.longest);
    }

    /// The line that wc prints, without its newline.
    #[must_use]
    pub fn line(&self, fields: WcFields, width: usize, name: Option<&str>) -> String {
        let shown = [
            (fields.lines, self.lines),
            (fields.words, self.words),
            (fields.chars, self.bytes),
            (fields.bytes, self.bytes),
            (fields.longest, self.longest),
        ];
        let mut parts: Vec<String> = Vec::new();
        parts.extend(shown.iter().filter(|(on, _)| *on).map(|(_, n)| format!("{n:width$}")));
        parts.extend(name.map(String::from));
        parts.join(" ")
    }
}

/// The width of the numbers of all lines. `sizes`: of the files named, `None` for what is no
/// regular file; a file that cannot be found is not among them.
#[must_use]
pub fn number_width(fields: WcFields, sizes: &[Option<u64>]) -> usize {
    if sizes.is_empty() || (sizes.len() == 1 && fields.count() == 1) {
        return 1;
    }
    let total: u64 = sizes.iter().flatten().sum();
    let least = if sizes.contains(&None) { 7 } else { 1 };
    total.to_string().len().max(least)
}

/// What a piece adds to the counts of its file.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct WcPartial {
    lines: u64,
    bytes: u64,
    words: u64,
    /// The first byte that is not ignored is one of a word; `None`: all are ignored.
    begins_in_word: Option<bool>,
    ends_in_word: bool,
    columns: LineColumns,
}

/// Columns of the lines of a piece.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct LineColumns {
    /// Up to the first end of a line, or all, if none ends.
    first: ColumnSpan,
    /// Longest of those that begin and end within.
    longest: u64,
    /// Behind the last end of a line, if any ends.
    last: Option<ColumnSpan>,
}

/// How far text without an end of a line goes, wherever it begins.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct ColumnSpan {
    /// Columns before the first tab.
    before: u64,
    /// Columns behind the first tab.
    after_tab: Option<u64>,
}

impl ColumnSpan {
    /// Column of the end, if the span begins at column `start`.
    fn end(self, start: u64) -> u64 {
        let before = start.wrapping_add(self.before);
        let tab = (before / 8 + 1).wrapping_mul(8);
        self.after_tab.map_or(before, |after| tab.wrapping_add(after))
    }

    fn push(&mut self, byte: u8) {
        let printing = u64::from((b' '..=b'~').contains(&byte));
        match &mut self.after_tab {
            Some(after) if byte == b'\t' => *after = (*after / 8 + 1) * 8,
            Some(after) => *after += printing,
            None if byte == b'\t' => self.after_tab = Some(0),
            None => self.before += printing,
        }
    }

    fn join(&mut self, next: ColumnSpan) {
        match &mut self.after_tab {
            Some(after) => *after = next.end(*after),
            None => {
                self.before = self.before.wrapping_add(next.before);
                self.after_tab = next.after_tab;
            }
        }
    }
}

impl LineColumns {
    fn of(bytes: &[u8]) -> LineColumns {
        let mut columns = LineColumns::default();
        for byte in bytes {
            if matches!(byte, b'\n' | b'\r' | 0x0c) {
                let ended = columns.last.replace(ColumnSpan::default());
                columns.longest = columns.longest.max(ended.map_or(0, |span| span.end(0)));
            } else {
                columns.last.as_mut().unwrap_or(&mut columns.first).push(*byte);
            }
        }
        columns
    }

    fn join(&mut self, next: &LineColumns) {
        match (&mut self.last, next.last) {
            (None, None) => self.first.join(next.first),
            (Some(last), None) => last.join(next.first),
            (None, Some(_)) => {
                self.first.join(next.first);
                self.last = next.last;
            }
            (Some(last), Some(_)) => {
                last.join(next.first);
                self.longest = self.longest.max(last.end(0));
                self.last = next.last;
            }
        }
        self.longest = self.longest.max(next.longest);
    }
}

impl WcPartial {
    /// Counts a piece. Only what `fields` asks for is counted.
    #[must_use]
    pub fn of(bytes: &[u8], fields: WcFields) -> WcPartial {
        let mut partial = WcPartial { bytes: bytes.len() as u64, ..WcPartial::default() };
        if fields.words {
            partial.count_words(bytes);
        }
        if fields.lines {
            partial.lines = memchr::memchr_iter(b'\n', bytes).count() as u64;
        }
        if fields.longest {
            partial.columns = LineColumns::of(bytes);
        }
        partial
    }

    /// Adds the counts of the piece that follows.
    pub fn join(&mut self, next: &WcPartial) {
        // What comes from another node may be damaged: a wrong sum is better than a panic.
        self.lines = self.lines.wrapping_add(next.lines);
        self.bytes = self.bytes.wrapping_add(next.bytes);
        self.words = self.words.wrapping_add(next.words);
        if let Some(in_word) = next.begins_in_word {
            let joined = u64::from(in_word && self.ends_in_word);
            self.words = self.words.wrapping_sub(joined);
            self.begins_in_word = self.begins_in_word.or(next.begins_in_word);
            self.ends_in_word = next.ends_in_word;
        }
        self.columns.join(&next.columns);
    }

    /// The counts, if this is the whole file.
    #[must_use]
    pub fn counts(&self) -> WcCounts {
        let columns = &self.columns;
        let ends = [columns.first.end(0), columns.last.unwrap_or_default().end(0)];
        let longest = columns.longest.max(ends[0]).max(ends[1]);
        WcCounts { lines: self.lines, words: self.words, bytes: self.bytes, longest }
    }

    fn count_words(&mut self, bytes: &[u8]) {
        let heard = |byte: &u8| is_space(*byte) || is_printing(*byte);
        let Some(first) = bytes.iter().position(heard) else { return };
        let begins = is_printing(bytes[first]);
        self.begins_in_word = Some(begins);
        let mut in_word = begins;
        self.words = u64::from(begins);
        for block in bytes[first + 1..].chunks(BLOCK_LEN) {
            match count_starts(block, in_word) {
                Some((starts, ends_in_word)) => {
                    self.words += starts;
                    in_word = ends_in_word;
                }
                None => {
                    for byte in block {
                        self.words += u64::from(is_printing(*byte) && !in_word);
                        in_word = is_printing(*byte) || (in_word && !is_space(*byte));
                    }
                }
            }
        }
        self.ends_in_word = in_word;
    }
}

/// Bytes counted at a time; counters of one byte do not overflow.
const BLOCK_LEN: usize = 16 * 128;

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte.wrapping_sub(9) < 5
}

/// Printing, and no space.
fn is_printing(byte: u8) -> bool {
    byte.wrapping_sub(0x21) < 0x5e
}

/// How many words start in `block`, and whether it ends in one; `None` if a byte is neither of a
/// word nor white space. Without branches, so that the compiler makes vectors of it.
fn count_starts(block: &[u8], in_word: bool) -> Option<(u64, bool)> {
    let (first, last) = (*block.first()?, *block.last()?);
    let mut ignored = u8::from(!is_printing(first) && !is_space(first));
    let mut starts = u64::from(is_printing(first) && !in_word);
    let (before, after) = (&block[..block.len() - 1], &block[1..]);
    for (before, after) in before.chunks(128).zip(after.chunks(128)) {
        let mut some = 0_u8;
        for (before, after) in before.iter().zip(after) {
            let printing = u8::from(is_printing(*after));
            let space = u8::from(is_space(*before));
            ignored |= (printing | u8::from(is_space(*after))) ^ 1;
            some += printing & space;
        }
        starts += u64::from(some);
    }
    (ignored == 0).then_some((starts, is_printing(last)))
}
