//! The module `wc`: lines, words and bytes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use samite_types::{Error, ErrorKind, Result};

use crate::input::{InputPiece, TaskInput};
use crate::module::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};

/// Counts lines, words and bytes of files, or of the values of a dataset.
#[derive(Debug)]
pub struct WordCount;

/// Counts of some bytes, to be joined with those of the bytes behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TextCounts {
    lines: u64,
    words: u64,
    bytes: u64,
    /// The first byte belongs to a word.
    starts_in_word: bool,
    /// The last one does.
    ends_in_word: bool,
}

/// Bytes of an encoded [`TextCounts`].
const COUNTS_LEN: usize = 25;

impl TextCounts {
    fn of(bytes: &[u8]) -> Self {
        let mut counts = Self { bytes: bytes.len() as u64, ..Self::default() };
        let mut in_word = false;
        for byte in bytes {
            counts.lines += u64::from(*byte == b'\n');
            let is_word = !(byte.is_ascii_whitespace() || *byte == 0x0b);
            counts.words += u64::from(is_word && !in_word);
            in_word = is_word;
        }
        let is_word = |byte: Option<&u8>| {
            byte.is_some_and(|byte| !(byte.is_ascii_whitespace() || *byte == 0x0b))
        };
        counts.starts_in_word = is_word(bytes.first());
        counts.ends_in_word = in_word;
        counts
    }

    /// These bytes, and then those.
    fn then(self, next: Self) -> Self {
        if self.bytes == 0 || next.bytes == 0 {
            return if self.bytes == 0 { next } else { self };
        }
        let joined = u64::from(self.ends_in_word && next.starts_in_word);
        Self {
            lines: self.lines + next.lines,
            words: self.words + next.words - joined,
            bytes: self.bytes + next.bytes,
            starts_in_word: self.starts_in_word,
            ends_in_word: next.ends_in_word,
        }
    }

    fn encode(self) -> [u8; COUNTS_LEN] {
        let mut out = [0; COUNTS_LEN];
        for (at, number) in [self.lines, self.words, self.bytes].into_iter().enumerate() {
            out[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        out[24] = u8::from(self.starts_in_word) | u8::from(self.ends_in_word) << 1;
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; COUNTS_LEN] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..].first_chunk().map(|raw| u64::from_le_bytes(*raw));
        let (lines, words, bytes_len) = (number(0)?, number(8)?, number(16)?);
        let (starts_in_word, ends_in_word) = (bytes[24] & 1 != 0, bytes[24] & 2 != 0);
        Some(Self { lines, words, bytes: bytes_len, starts_in_word, ends_in_word })
    }

    /// Joined without regard to words at the edges: of separate texts.
    fn beside(self, other: Self) -> Self {
        Self {
            lines: self.lines + other.lines,
            words: self.words + other.words,
            bytes: self.bytes + other.bytes,
            ..Self::default()
        }
    }
}

impl Module for WordCount {
    fn name(&self) -> &'static str {
        "wc"
    }

    fn about(&self) -> &'static str {
        "count lines, words and bytes of files, or of the values of a dataset"
    }

    fn parse(&self, words: &[OsString]) -> Result<ModuleCall> {
        let mut call = ModuleCall::default();
        for word in words {
            match word.as_bytes() {
                b"-r" => call.is_recursive = true,
                option if option.starts_with(b"-") => {
                    let words = format!("wc: option {} is unknown", word.to_string_lossy());
                    return Err(Error::new(ErrorKind::Invalid, words));
                }
                path => call.paths.push(path.to_vec()),
            }
        }
        Ok(call)
    }

    fn run(&self, _: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        while let Some(piece) = input.next_piece()? {
            let mut counts = TextCounts::default();
            match piece {
                InputPiece::File { .. } => loop {
                    let bytes = input.read()?;
                    if bytes.is_empty() {
                        break;
                    }
                    counts = counts.then(TextCounts::of(bytes));
                },
                InputPiece::Partition => input.records(&mut |record| {
                    counts = counts.beside(TextCounts::of(record.value));
                    Ok(())
                })?,
            }
            out.emit(&counts.encode())?;
        }
        Ok(())
    }

    fn merge(
        &self,
        _: &[u8],
        input: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8> {
        let (names, is_text): (Vec<Vec<u8>>, bool) = match input {
            JobInput::Files(files) => (files.iter().map(|file| file.path.clone()).collect(), true),
            JobInput::Records(dataset) => (vec![dataset.clone().into_bytes()], false),
        };
        let mut counts = vec![TextCounts::default(); names.len()];
        while let Some(piece) = outputs.next()? {
            let corrupt = || Error::new(ErrorKind::Corrupt, "wc: a task's output makes no sense");
            let of = counts.get_mut(piece.file as usize).ok_or_else(corrupt)?;
            let found = TextCounts::decode(piece.bytes).ok_or_else(corrupt)?;
            *of = if is_text { of.then(found) } else { of.beside(found) };
        }
        let total = counts.iter().fold(TextCounts::default(), |total, one| total.beside(*one));
        let has_total = counts.len() > 1;
        let rows = counts.iter().zip(&names).map(|(counts, name)| (counts, name.as_slice()));
        let total = has_total.then_some((&total, &b"total"[..]));
        for (TextCounts { lines, words, bytes, .. }, name) in rows.chain(total) {
            let line = format!("{lines:>7} {words:>7} {bytes:>7} ");
            let written = out.write_all(line.as_bytes());
            let written = written.and_then(|()| out.write_all(name));
            written
                .and_then(|()| out.write_all(b"\n"))
                .map_err(|error| Error::new(ErrorKind::Io, format!("write the output: {error}")))?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_of_parts_join_to_those_of_the_whole(
            text in proptest::collection::vec(prop_oneof![Just(b' '), Just(b'\n'), Just(b'a')], 0..60),
            cuts in proptest::collection::vec(0..60_usize, 0..4),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let joined = cuts.windows(2).fold(TextCounts::default(), |counts, cut| {
                let part = TextCounts::of(&text[cut[0]..cut[1]]);
                counts.then(TextCounts::decode(&part.encode()).unwrap())
            });
            let string = String::from_utf8(text.clone()).unwrap();
            prop_assert_eq!(joined.lines, string.matches('\n').count() as u64);
            prop_assert_eq!(joined.words, string.split_whitespace().count() as u64);
            prop_assert_eq!(joined.bytes, text.len() as u64);
        }
    }
}
