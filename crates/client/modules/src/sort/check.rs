//! Whether lines are in order, `-c`.

use std::cmp::Ordering;

use super::compare::SortOrder;
use super::order::LineOrder;
use crate::piece::{LineEnding, TextPiece};

/// What is known of the order of consecutive lines.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct OrderCheck {
    lines: u64,
    ends: Option<(Vec<u8>, Vec<u8>)>,
    disorder: Option<(u64, Vec<u8>)>,
}

impl OrderCheck {
    /// Checks the lines that start in `piece`. `more` appends bytes that follow it, and says
    /// whether there were any.
    ///
    /// # Errors
    /// Those of `more`.
    pub fn of<E>(
        order: &LineOrder,
        piece: &TextPiece<'_>,
        more: &mut dyn FnMut(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<OrderCheck, E> {
        let lines = piece.lines(LineEnding::Newline, more)?;
        let mut check = OrderCheck::default();
        let mut last: Option<&[u8]> = None;
        let all = lines.whole.split_inclusive(|byte| *byte == b'\n');
        let crossing = (!lines.crossing.is_empty()).then_some(&lines.crossing[..]);
        for line in all.chain(crossing) {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            if check.disorder.is_none() && last.is_some_and(|last| is_disorder(order, last, line)) {
                check.disorder = Some((check.lines, line.to_vec()));
            }
            if check.ends.is_none() {
                check.ends = Some((line.to_vec(), Vec::new()));
            }
            check.lines += 1;
            last = Some(line);
        }
        if let (Some((_, end)), Some(last)) = (&mut check.ends, last) {
            *end = last.to_vec();
        }
        Ok(check)
    }

    /// Appends what follows.
    pub fn join(&mut self, next: OrderCheck, order: &LineOrder) {
        let Some((first, last)) = next.ends else { return };
        if let (None, Some((_, before))) = (&self.disorder, &self.ends)
            && is_disorder(order, before, &first)
        {
            self.disorder = Some((self.lines, first.clone()));
        }
        let disorder = next.disorder.map(|(number, line)| (self.lines.wrapping_add(number), line));
        self.disorder = self.disorder.take().or(disorder);
        self.lines = self.lines.wrapping_add(next.lines);
        self.ends = Some((self.ends.take().map_or(first, |(first, _)| first), last));
    }

    /// The first line that is out of order: its number, from 1, and its text, for the words
    /// `sort: FILE:NUMBER: disorder: TEXT`. With one, the exit code is 1.
    #[must_use]
    pub fn disorder(&self) -> Option<(u64, &[u8])> {
        self.disorder.as_ref().map(|(number, line)| (number.wrapping_add(1), &line[..]))
    }
}

fn is_disorder(order: &LineOrder, before: &[u8], line: &[u8]) -> bool {
    match order.compare(before, line) {
        Ordering::Less => false,
        Ordering::Equal => order.is_unique(),
        Ordering::Greater => true,
    }
}
