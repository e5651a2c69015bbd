//! How often each word is in a text. A word is a run of bytes between white space; it belongs to
//! the piece in which it starts.

use std::io::Write;

use hashbrown::HashTable;

use crate::piece::TextPiece;

/// Words and how often each was seen. Those of pieces are joined in any order.
#[derive(Clone, Debug, Default)]
pub struct WordCounts {
    words: HashTable<CountedWord>,
    /// The words that are longer than eight bytes, one behind the other.
    text: Vec<u8>,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct CountedWord {
    /// The first eight bytes; zeros behind a shorter word.
    head: u64,
    count: u64,
    /// Where the word is in `text`, if it is longer.
    offset: usize,
    len: usize,
}

impl WordCounts {
    /// Counts the words that start in `piece`. `more` appends bytes that follow it, and says
    /// whether there were any; it bounds the length of words, by an error.
    ///
    /// # Errors
    /// Those of `more`.
    pub fn add<E>(
        &mut self,
        piece: &TextPiece<'_>,
        more: &mut dyn FnMut(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let bytes = piece.bytes;
        let inside = piece.before.is_some_and(|before| !is_space(before));
        let start = if inside { word_len(bytes) } else { 0 };
        let bytes = &bytes[start..];
        let ends_inside = bytes.iter().rposition(|byte| is_space(*byte));
        let (whole, rest) = bytes.split_at(ends_inside.map_or(0, |last| last + 1));
        self.add_words(whole);
        if rest.is_empty() {
            return Ok(());
        }
        let mut word = rest.to_vec();
        loop {
            let from = word.len();
            let any = more(&mut word)?;
            let len = from + word_len(&word[from..]);
            if !any || len < word.len() {
                word.truncate(len);
                break;
            }
        }
        self.add_word(&word, 1);
        Ok(())
    }

    /// Adds what was counted elsewhere.
    pub fn join(&mut self, other: &WordCounts) {
        other.iter().for_each(|(word, count)| self.add_word(&word, count));
    }

    /// All words, in no order, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<u8>, u64)> {
        self.words.iter().map(|word| (self.bytes(word), word.count))
    }

    /// Adds `count` of one word, which has no white space in it and is not empty.
    pub fn add_word(&mut self, word: &[u8], count: u64) {
        let head = first_bytes(word);
        self.add_hashed(word, head, hash(word, head), count);
    }

    /// How many different words there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many words were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The `count` words that are most frequent, those first; equally frequent ones by bytes.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<(Vec<u8>, u64)> {
        let before = |one: &CountedWord, other: &CountedWord| {
            let counts = other.count.cmp(&one.count);
            counts.then_with(|| self.bytes(one).cmp(&self.bytes(other)))
        };
        let mut words: Vec<&CountedWord> = self.words.iter().collect();
        if count < words.len() {
            words.select_nth_unstable_by(count, |one, other| before(one, other));
            words.truncate(count);
        }
        words.sort_unstable_by(|one, other| before(one, other));
        words.into_iter().map(|word| (self.bytes(word), word.count)).collect()
    }

    /// The lines that are printed of the `count` most frequent words: `count word`.
    #[must_use]
    pub fn report(&self, count: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (word, count) in self.top(count) {
            // A vector takes all that is written.
            let _ = write!(out, "{count} ");
            out.extend_from_slice(&word);
            out.push(b'\n');
        }
        out
    }

    fn bytes(&self, word: &CountedWord) -> Vec<u8> {
        match word.len {
            len @ ..=8 => word.head.to_le_bytes()[..len].to_vec(),
            len => self.text[word.offset..word.offset + len].to_vec(),
        }
    }

    /// Counts the words of a text that ends with white space.
    fn add_words(&mut self, text: &[u8]) {
        let mut at = 0;
        while at < text.len() {
            let Some(chunk) = text[at..].first_chunk::<8>() else {
                let len = word_len(&text[at..]);
                if len > 0 {
                    self.add_word(&text[at..at + len], 1);
                }
                at += len + 1;
                continue;
            };
            let bytes = u64::from_le_bytes(*chunk);
            let spaces = spaces_of(bytes);
            match spaces.trailing_zeros() / 8 {
                0 => at += 1,
                8 => {
                    let len = 8 + word_len(&text[at + 8..]);
                    let word = &text[at..at + len];
                    self.add_hashed(word, bytes, hash(word, bytes), 1);
                    at += len + 1;
                }
                len => {
                    let head = bytes & (u64::MAX >> (64 - 8 * len));
                    let word = &text[at..at + len as usize];
                    self.add_hashed(word, head, hash(word, head), 1);
                    at += len as usize + 1;
                }
            }
        }
    }

    fn add_hashed(&mut self, word: &[u8], head: u64, hash: u64, count: u64) {
        self.total += count;
        let text = &self.text;
        let is_same = |known: &CountedWord| {
            known.head == head
                && known.len == word.len()
                && (known.len <= 8 || text[known.offset..known.offset + known.len] == *word)
        };
        if let Some(known) = self.words.find_mut(hash, is_same) {
            known.count += count;
            return;
        }
        let offset = self.text.len();
        if word.len() > 8 {
            self.text.extend_from_slice(word);
        }
        let counted = CountedWord { head, count, offset, len: word.len() };
        let text = &self.text;
        self.words.insert_unique(hash, counted, |known| {
            let rest =
                if known.len > 8 { known.offset + 8..known.offset + known.len } else { 0..0 };
            hash_parts(known.head, known.len, &text[rest])
        });
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte.wrapping_sub(9) < 5
}

/// How many bytes are before the first white space.
fn word_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| is_space(*byte)).unwrap_or(bytes.len())
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The highest bit of each byte that is white space.
fn spaces_of(bytes: u64) -> u64 {
    let low = bytes & !HIGH;
    let from_tab = low + LOW * (0x80 - 9);
    let above_return = low + LOW * (0x80 - 14);
    let not_blank = (low ^ (LOW * 0x20)) + LOW * 0x7f;
    ((from_tab & !above_return) | !not_blank) & HIGH & !bytes
}

fn first_bytes(word: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = word.len().min(8);
    head[..len].copy_from_slice(&word[..len]);
    u64::from_le_bytes(head)
}

/// Both halves of the product count: the table takes bits of both ends.
fn hash(word: &[u8], head: u64) -> u64 {
    hash_parts(head, word.len(), word.get(8..).unwrap_or_default())
}

/// The hash of a word of `len` bytes that begins with `head` and goes on with `rest`.
fn hash_parts(head: u64, len: usize, rest: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |one: u64, other: u64| {
        let product = u128::from(one) * u128::from(other);
        (product as u64) ^ (product >> 64) as u64
    };
    let mut state = mix(head ^ FACTOR, FACTOR ^ len as u64);
    for chunk in rest.chunks(8) {
        state = mix(state ^ first_bytes(chunk), FACTOR);
    }
    state
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn white_space_is_found_in_all_bytes() {
        for byte in 0..=255_u8 {
            for other in [0, b'a', b' ', 0x80, 0xff] {
                let mut bytes = [other; 8];
                bytes[3] = byte;
                let found = spaces_of(u64::from_le_bytes(bytes)) >> 31 & 1;
                assert_eq!(found == 1, is_space(byte), "{byte} beside {other}");
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_have_the_counts_of_the_whole(
            text in prop::collection::vec(prop::sample::select(b"aab\0\xff \n\t".to_vec()), 0..200),
            cuts in prop::collection::vec(0..200_usize, 0..8),
            step in 1..5_usize,
            top in 0..8_usize,
        ) {
            let mut expected: BTreeMap<&[u8], u64> = BTreeMap::new();
            for word in text.split(|byte| is_space(*byte)).filter(|word| !word.is_empty()) {
                *expected.entry(word).or_default() += 1;
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut joined = WordCounts::default();
            for pair in cuts.windows(2) {
                let mut counts = WordCounts::default();
                let bytes = &text[pair[0]..pair[1]];
                let before = pair[0].checked_sub(1).map(|before| text[before]);
                let mut next = pair[1];
                let mut more = |into: &mut Vec<u8>| {
                    let end = text.len().min(next + step);
                    into.extend_from_slice(&text[next..end]);
                    let any = end > next;
                    next = end;
                    Ok::<_, Infallible>(any)
                };
                let piece = TextPiece { bytes, offset: pair[0] as u64, before };
                let Ok(()) = counts.add(&piece, &mut more);
                joined.join(&counts);
            }
            prop_assert_eq!(joined.total(), expected.values().sum::<u64>());
            prop_assert_eq!(joined.len(), expected.len());
            let mut sorted: Vec<_> = expected.into_iter().collect();
            sorted.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
            let lines = sorted.iter().take(top).map(|(word, count)| {
                [format!("{count} ").as_bytes(), word, b"\n"].concat()
            });
            prop_assert_eq!(joined.report(top), lines.collect::<Vec<_>>().concat());
        }
    }
}
