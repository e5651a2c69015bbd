//! The order of lines: keys and what they compare by.

use std::cmp::Ordering;

use super::compare::{SortOrder, blanks, first_bytes, is_blank};
use super::{numbers, version};

/// What a key compares by.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KeyOrdering {
    /// Bytes.
    #[default]
    Bytes,
    /// Decimal numbers, `-n`.
    Numeric,
    /// Numbers with units, `-h`.
    Human,
    /// Versions, `-V`.
    Version,
}

/// Where a key begins or ends: field and byte.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KeyPosition {
    /// The field, from 1.
    pub field: usize,
    /// The byte in the field, from 1; of an end, 0 is the last.
    pub byte: usize,
    /// Blanks before the field do not count, `b`.
    pub skips_blanks: bool,
}

/// How a key, or a line without keys, is compared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SortOptions {
    /// What is compared.
    pub ordering: KeyOrdering,
    /// Small ASCII letters count as large ones, `-f`.
    pub folds_case: bool,
    /// Blanks at the start do not count, `-b`.
    pub skips_blanks: bool,
    /// From the last to the first, `-r`.
    pub reverse: bool,
}

/// A key, `-k`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SortKey {
    /// Its first byte.
    pub start: KeyPosition,
    /// Its last byte; `None`: the end of the line.
    pub end: Option<KeyPosition>,
    /// How it is compared. Without any of its own, a key has the options of the lines.
    pub options: SortOptions,
}

impl SortKey {
    /// Reads the argument of `-k`: `F[.C][OPTS][,F[.C][OPTS]]`.
    ///
    /// # Errors
    /// Words that say what is wrong with it.
    pub fn parse(text: &str) -> Result<SortKey, String> {
        let wrong = || format!("invalid field specification '{text}'");
        let mut key = SortKey::default();
        let (start, end) = match text.split_once(',') {
            Some((start, end)) => (start, Some(end)),
            None => (text, None),
        };
        key.start = position(start, &mut key.options).ok_or_else(wrong)?;
        if key.start.byte == 0 {
            if start.contains('.') {
                return Err(format!("character offset is zero: {}", wrong()));
            }
            key.start.byte = 1;
        }
        if let Some(end) = end {
            key.end = Some(position(end, &mut key.options).ok_or_else(wrong)?);
        }
        Ok(key)
    }

    /// Whether the key compares as the lines do; `-r` alone is an option of its own, too.
    fn inherits(&self) -> bool {
        let end_skips = self.end.is_some_and(|end| end.skips_blanks);
        self.options == SortOptions::default() && !self.start.skips_blanks && !end_skips
    }
}

fn position(text: &str, options: &mut SortOptions) -> Option<KeyPosition> {
    let mut position = KeyPosition::default();
    let letters = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (numbers, letters) = text.split_at(letters);
    let (field, byte) = match numbers.split_once('.') {
        Some((field, byte)) => (field, Some(byte)),
        None => (numbers, None),
    };
    position.field = number(field).filter(|field| *field > 0)?;
    position.byte = byte.map_or(Some(0), number)?;
    for letter in letters.chars() {
        match letter {
            'b' => position.skips_blanks = true,
            'f' => options.folds_case = true,
            'r' => options.reverse = true,
            'n' => options.ordering = KeyOrdering::Numeric,
            'h' => options.ordering = KeyOrdering::Human,
            'V' => options.ordering = KeyOrdering::Version,
            _ => return None,
        }
    }
    Some(position)
}

/// A number that does not fit is as large as any line.
fn number(text: &str) -> Option<usize> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(usize::MAX))
}

/// The order of lines.
#[derive(Clone, Debug)]
pub struct LineOrder {
    keys: Vec<SortKey>,
    separator: Option<u8>,
    reverse: bool,
    stable: bool,
    unique: bool,
}

impl LineOrder {
    /// Lines are compared by `keys`, in turn; without keys, by `options` alone. Lines that are
    /// equal by their keys are compared by their bytes.
    #[must_use]
    pub fn new(mut keys: Vec<SortKey>, options: SortOptions) -> Self {
        for key in keys.iter_mut().filter(|key| key.inherits()) {
            key.options = options;
            key.start.skips_blanks = options.skips_blanks;
            if let Some(end) = &mut key.end {
                end.skips_blanks = options.skips_blanks;
            }
        }
        if keys.is_empty() && (SortOptions { reverse: false, ..options }) != SortOptions::default()
        {
            let skips_blanks = options.skips_blanks;
            let start = KeyPosition { field: 1, byte: 1, skips_blanks };
            keys.push(SortKey { start, end: None, options });
        }
        let reverse = options.reverse;
        LineOrder { keys, separator: None, reverse, stable: false, unique: false }
    }

    /// Fields are separated by this byte, `-t`, instead of by blanks.
    #[must_use]
    pub fn separator(mut self, separator: u8) -> Self {
        self.separator = Some(separator);
        self
    }

    /// Lines whose keys are equal keep their order, `-s`.
    #[must_use]
    pub fn stable(mut self) -> Self {
        self.stable = true;
        self
    }

    /// Of lines that are equal, the first stays, `-u`.
    #[must_use]
    pub fn unique(mut self) -> Self {
        self.unique = true;
        self
    }

    /// Whether equal lines may differ, so that their order is to be kept.
    pub(super) fn keeps_order(&self) -> bool {
        self.stable || self.unique
    }

    fn key_of<'a>(&self, key: &SortKey, line: &'a [u8]) -> &'a [u8] {
        let start = self.start(&key.start, line);
        let end = key.end.map_or(line.len(), |end| self.end(&end, line));
        &line[start..end.max(start)]
    }

    fn start(&self, position: &KeyPosition, line: &[u8]) -> usize {
        let mut at = 0;
        for _ in 1..position.field {
            if at == line.len() {
                break;
            }
            at = self.field_end(line, at);
            at += usize::from(self.separator.is_some() && at < line.len());
        }
        if position.skips_blanks {
            at += blanks(&line[at..]);
        }
        at.saturating_add(position.byte - 1).min(line.len())
    }

    fn end(&self, position: &KeyPosition, line: &[u8]) -> usize {
        let whole_fields = position.field - usize::from(position.byte > 0);
        let mut at = 0;
        for field in 0..whole_fields {
            if at == line.len() {
                break;
            }
            at = self.field_end(line, at);
            let is_last = field + 1 == whole_fields && position.byte == 0;
            at += usize::from(self.separator.is_some() && at < line.len() && !is_last);
        }
        if position.byte == 0 {
            return at;
        }
        if position.skips_blanks {
            at += blanks(&line[at..]);
        }
        at.saturating_add(position.byte).min(line.len())
    }

    /// End of the field that begins at `at`, with blanks before it.
    fn field_end(&self, line: &[u8], at: usize) -> usize {
        let rest = &line[at..];
        let len = match self.separator {
            Some(separator) => memchr::memchr(separator, rest),
            None => {
                let blanks = blanks(rest);
                rest[blanks..].iter().position(|byte| is_blank(*byte)).map(|len| blanks + len)
            }
        };
        len.map_or(line.len(), |len| at + len)
    }

    fn by_keys(&self, one: &[u8], other: &[u8]) -> Ordering {
        for key in &self.keys {
            let ordering = compare_keys(self.key_of(key, one), self.key_of(key, other), key);
            if ordering.is_ne() {
                return if key.options.reverse { ordering.reverse() } else { ordering };
            }
        }
        Ordering::Equal
    }
}

fn compare_keys(one: &[u8], other: &[u8], key: &SortKey) -> Ordering {
    match key.options.ordering {
        KeyOrdering::Numeric => numbers::compare(one, other),
        // Units are letters, and a small one is none; what is large is small no more.
        KeyOrdering::Human if key.options.folds_case => {
            numbers::compare_human(&one.to_ascii_uppercase(), &other.to_ascii_uppercase())
        }
        KeyOrdering::Human => numbers::compare_human(one, other),
        KeyOrdering::Version if key.options.folds_case => {
            version::compare(&one.to_ascii_uppercase(), &other.to_ascii_uppercase())
        }
        KeyOrdering::Version => version::compare(one, other),
        KeyOrdering::Bytes if key.options.folds_case => {
            let folded = u8::to_ascii_uppercase;
            one.iter().map(folded).cmp(other.iter().map(folded))
        }
        KeyOrdering::Bytes => one.cmp(other),
    }
}

impl SortOrder for LineOrder {
    fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        if !self.keys.is_empty() {
            let ordering = self.by_keys(one, other);
            if ordering.is_ne() || self.stable || self.unique {
                return ordering;
            }
        }
        if self.reverse { other.cmp(one) } else { one.cmp(other) }
    }

    fn prefix(&self, line: &[u8]) -> u64 {
        let (prefix, reverse) = match self.keys.first() {
            None => (first_bytes(line), self.reverse),
            Some(key) => {
                let text = self.key_of(key, line);
                let prefix = match key.options.ordering {
                    KeyOrdering::Bytes if key.options.folds_case => {
                        let len = text.len().min(8);
                        first_bytes(&text[..len].to_ascii_uppercase())
                    }
                    KeyOrdering::Bytes => first_bytes(text),
                    KeyOrdering::Numeric => numbers::prefix(text),
                    KeyOrdering::Human | KeyOrdering::Version => 0,
                };
                (prefix, key.options.reverse)
            }
        };
        if reverse { !prefix } else { prefix }
    }

    fn is_unique(&self) -> bool {
        self.unique
    }
}
