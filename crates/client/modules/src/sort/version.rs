//! The order of versions and of file names with versions in them, as GNU sort has it.

use std::cmp::Ordering;

/// Compares two names: without their suffixes first, then with them.
pub(super) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    rank(one).cmp(&rank(other)).then_with(|| {
        let (one_len, other_len) = (prefix_len(one), prefix_len(other));
        let parts = compare_parts(&one[..one_len], &other[..other_len]);
        parts.then_with(|| compare_parts(one, other))
    })
}

/// Nothing, `.`, `..`, names with a point in front, others.
fn rank(name: &[u8]) -> u8 {
    match name {
        b"" => 0,
        b"." => 1,
        b".." => 2,
        [b'.', ..] => 3,
        _ => 4,
    }
}

/// Length of `name` without its suffixes: points, each followed by a letter or `~`, then letters,
/// digits and `~`, up to the end.
fn prefix_len(name: &[u8]) -> usize {
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'~';
    let (mut at, mut len) = (0, 0);
    loop {
        while at + 1 < name.len()
            && name[at] == b'.'
            && (name[at + 1].is_ascii_alphabetic() || name[at + 1] == b'~')
        {
            at += 2;
            at += name[at..].iter().take_while(|byte| is_inner(byte)).count();
        }
        if at == name.len() {
            return len;
        }
        at += 1;
        len = at;
    }
}

/// Order of a byte that is no digit; the end of a name is before all but `~`.
fn order(byte: Option<&u8>) -> i32 {
    match byte {
        None => -1,
        Some(byte) if byte.is_ascii_digit() => 0,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(*byte),
        Some(b'~') => -2,
        Some(byte) => i32::from(*byte) + 256,
    }
}

/// Parts without digits are compared by bytes, numbers by value, in turn.
fn compare_parts(mut one: &[u8], mut other: &[u8]) -> Ordering {
    let is_text = |bytes: &[u8]| bytes.first().is_some_and(|byte| !byte.is_ascii_digit());
    while !one.is_empty() || !other.is_empty() {
        while is_text(one) || is_text(other) {
            let ordering = order(one.first()).cmp(&order(other.first()));
            if ordering.is_ne() {
                return ordering;
            }
            one = one.get(1..).unwrap_or_default();
            other = other.get(1..).unwrap_or_default();
        }
        let (one_number, other_number);
        (one_number, one) = number(one);
        (other_number, other) = number(other);
        let len = one_number.len().cmp(&other_number.len());
        let ordering = len.then_with(|| one_number.cmp(other_number));
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

/// The digits in front without zeros in front of them, and the rest.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let zeros = text.iter().take_while(|byte| **byte == b'0').count();
    let text = &text[zeros..];
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}
