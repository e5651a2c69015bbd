//! Decimal numbers of any length in text, with units or without.

use std::cmp::Ordering;

use super::compare::blanks;

/// A number that text begins with: digits without zeros in front, or at the end of a fraction.
#[derive(Clone, Copy, Debug, Default)]
struct DecimalText<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    /// Order of its unit.
    unit: i8,
}

impl<'a> DecimalText<'a> {
    /// Text that is no number is zero.
    fn parse(text: &'a [u8]) -> Self {
        let text = &text[blanks(text)..];
        let negative = text.first() == Some(&b'-');
        let text = &text[usize::from(negative)..];
        let (digits, rest) = digits(text);
        let (fraction, rest) = match rest.first() {
            Some(b'.') => self::digits(&rest[1..]),
            _ => (&rest[..0], rest),
        };
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        let whole = &digits[zeros..];
        let len = fraction.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
        let fraction = &fraction[..len];
        let is_zero = whole.is_empty() && fraction.is_empty();
        let unit = if is_zero { 0 } else { rest.first().map_or(0, |unit| unit_order(*unit)) };
        let unit = if negative { -unit } else { unit };
        DecimalText { negative: negative && !is_zero, whole, fraction, unit }
    }

    fn compare(&self, other: &Self) -> Ordering {
        let magnitude = || {
            let whole = self.whole.len().cmp(&other.whole.len());
            whole.then_with(|| self.whole.cmp(other.whole)).then(self.fraction.cmp(other.fraction))
        };
        match (self.negative, other.negative) {
            (false, false) => magnitude(),
            (true, true) => magnitude().reverse(),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let len = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(len)
}

fn unit_order(unit: u8) -> i8 {
    match unit {
        b'k' | b'K' => 1,
        b'M' => 2,
        b'G' => 3,
        b'T' => 4,
        b'P' => 5,
        b'E' => 6,
        b'Z' => 7,
        b'Y' => 8,
        _ => 0,
    }
}

/// Compares the numbers that two texts begin with.
pub(super) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    DecimalText::parse(one).compare(&DecimalText::parse(other))
}

/// The same with units: these decide first.
pub(super) fn compare_human(one: &[u8], other: &[u8]) -> Ordering {
    let (one, other) = (DecimalText::parse(one), DecimalText::parse(other));
    one.unit.cmp(&other.unit).then_with(|| one.compare(&other))
}

/// How many digits before the point a prefix tells apart.
const WHOLE_MAX: usize = 127;
/// Digits in a prefix.
const DIGITS: usize = 14;

/// Sign, count of digits before the point, and the first digits, as a number that orders as
/// [`compare`] does, where it differs.
pub(super) fn prefix(text: &[u8]) -> u64 {
    let number = DecimalText::parse(text);
    let len = number.whole.len().min(WHOLE_MAX);
    let mut magnitude = (len as u64) << (4 * DIGITS);
    if len < WHOLE_MAX {
        let digits = number.whole.iter().chain(number.fraction).take(DIGITS);
        for (index, digit) in digits.enumerate() {
            magnitude |= u64::from(digit - b'0') << (4 * (DIGITS - 1 - index));
        }
    }
    let positive = 1_u64 << 63;
    if number.negative { positive - 1 - magnitude } else { positive | magnitude }
}
