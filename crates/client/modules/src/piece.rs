//! Pieces of files, and the lines that belong to them.

/// A contiguous range of the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct TextPiece<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Offset of the first of them in the file.
    pub offset: u64,
    /// The byte before the first; `None` at the start of the file.
    pub before: Option<u8>,
}

/// The bytes that end a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LineEnding {
    /// A line feed.
    Newline,
    /// A line feed or a NUL: how grep counts in files that are not text.
    NewlineOrNul,
}

impl LineEnding {
    /// Whether `byte` ends a line.
    #[must_use]
    pub fn ends(self, byte: u8) -> bool {
        byte == b'\n' || (byte == 0 && self == LineEnding::NewlineOrNul)
    }

    /// Where the first line of `bytes` ends.
    pub(crate) fn first(self, bytes: &[u8]) -> Option<usize> {
        match self {
            LineEnding::Newline => memchr::memchr(b'\n', bytes),
            LineEnding::NewlineOrNul => memchr::memchr2(b'\n', 0, bytes),
        }
    }

    fn last(self, bytes: &[u8]) -> Option<usize> {
        match self {
            LineEnding::Newline => memchr::memrchr(b'\n', bytes),
            LineEnding::NewlineOrNul => memchr::memrchr2(b'\n', 0, bytes),
        }
    }
}

/// The lines that start in a piece.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct PieceLines<'a> {
    /// Those that end in it, where they lie.
    pub(crate) whole: &'a [u8],
    /// Offset of `whole` in the file.
    pub(crate) whole_offset: u64,
    /// The one that crosses its end, complete; empty if none does.
    pub(crate) crossing: Vec<u8>,
}

impl PieceLines<'_> {
    /// Offset of `crossing` in the file.
    pub(crate) fn crossing_offset(&self) -> u64 {
        self.whole_offset + self.whole.len() as u64
    }
}

impl<'a> TextPiece<'a> {
    /// Finds the lines that start in the piece. `more` appends bytes of the file that follow what
    /// it gave before, at first those after the piece, and says whether there were any; it is
    /// called until the last line is complete. It bounds the length of lines, by an error.
    ///
    /// # Errors
    /// Those of `more`.
    pub(crate) fn lines<E>(
        &self,
        ending: LineEnding,
        more: &mut dyn FnMut(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<PieceLines<'a>, E> {
        let start = match self.before {
            Some(byte) if !ending.ends(byte) => match ending.first(self.bytes) {
                Some(end) => end + 1,
                None => self.bytes.len(),
            },
            _ => 0,
        };
        let own = &self.bytes[start..];
        let (whole, rest) = own.split_at(ending.last(own).map_or(0, |last| last + 1));
        let mut crossing = rest.to_vec();
        while !rest.is_empty() {
            let from = crossing.len();
            if !more(&mut crossing)? {
                break;
            }
            if let Some(end) = ending.first(&crossing[from..]) {
                crossing.truncate(from + end + 1);
                break;
            }
        }
        Ok(PieceLines { whole, whole_offset: self.offset + start as u64, crossing })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_line_belongs_to_one_piece(
            text in prop::collection::vec(prop::sample::select(b"ab\n\0".to_vec()), 0..60),
            cuts in prop::collection::vec(0..60_usize, 0..8),
            step in 1..5_usize,
            nul in any::<bool>(),
        ) {
            let ending = if nul { LineEnding::NewlineOrNul } else { LineEnding::Newline };
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut joined = Vec::new();
            for pair in cuts.windows(2) {
                let mut next = pair[1];
                let mut more = |into: &mut Vec<u8>| {
                    let end = text.len().min(next + step);
                    into.extend_from_slice(&text[next..end]);
                    let any = end > next;
                    next = end;
                    Ok::<_, Infallible>(any)
                };
                let piece = TextPiece {
                    bytes: &text[pair[0]..pair[1]],
                    offset: pair[0] as u64,
                    before: pair[0].checked_sub(1).map(|before| text[before]),
                };
                let lines = piece.lines(ending, &mut more).unwrap();
                for (bytes, offset) in
                    [(lines.whole, lines.whole_offset), (&lines.crossing, lines.crossing_offset())]
                {
                    if !bytes.is_empty() {
                        prop_assert_eq!(offset, joined.len() as u64);
                        joined.extend_from_slice(bytes);
                    }
                }
                let ends = lines.crossing.iter().filter(|byte| ending.ends(**byte)).count();
                prop_assert!(ends <= 1);
            }
            prop_assert_eq!(joined, text);
        }
    }
}
