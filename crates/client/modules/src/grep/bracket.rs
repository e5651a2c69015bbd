//! Bracket expressions of POSIX, in the C locale.

use super::bytes::{self, ByteSet};
use super::options::PatternError;

const UNMATCHED: PatternError = PatternError::Invalid("Unmatched [, [^, [:, [., or [=");
const RANGE: PatternError = PatternError::Invalid("Invalid range end");
const COLLATION: PatternError = PatternError::Invalid("Invalid collation character");
const CLASS: PatternError = PatternError::Invalid("Invalid character class name");
const COLONS: PatternError =
    PatternError::Invalid("character class syntax is [[:space:]], not [:space:]");

enum BracketElement {
    Byte(u8),
    Class(Box<ByteSet>),
}

/// Reads the expression whose `[` is before `pattern[*at]`; leaves `*at` behind its `]`.
pub(super) fn parse(pattern: &[u8], at: &mut usize, icase: bool) -> Result<ByteSet, PatternError> {
    let mut set = ByteSet::EMPTY;
    let negated = pattern.get(*at) == Some(&b'^');
    *at += usize::from(negated);
    let start = *at;
    let mut plain = true;
    loop {
        let first = *at == start;
        let byte = *pattern.get(*at).ok_or(UNMATCHED)?;
        if byte == b']' && !first {
            break;
        }
        if byte == b'-' && !first && *pattern.get(*at + 1).ok_or(UNMATCHED)? != b']' {
            return Err(RANGE);
        }
        let element = element(pattern, at)?;
        let is_range =
            pattern.get(*at) == Some(&b'-') && *pattern.get(*at + 1).ok_or(UNMATCHED)? != b']';
        plain &= !is_range && matches!(element, BracketElement::Byte(_));
        match (element, is_range) {
            (BracketElement::Byte(low), true) => {
                *at += 1;
                let BracketElement::Byte(high) = self::element(pattern, at)? else {
                    return Err(RANGE);
                };
                add_range(&mut set, low, high, icase)?;
            }
            (BracketElement::Class(_), true) => return Err(RANGE),
            (BracketElement::Byte(byte), false) => set.add(byte),
            (BracketElement::Class(class), false) => set.join(&class),
        }
    }
    let inside = &pattern[start..*at];
    if plain && inside.len() > 2 && inside.starts_with(b":") && inside.ends_with(b":") {
        return Err(COLONS);
    }
    *at += 1;
    if icase {
        set.fold_case();
    }
    if negated {
        set.negate();
    }
    Ok(set)
}

fn add_range(set: &mut ByteSet, low: u8, high: u8, icase: bool) -> Result<(), PatternError> {
    let is_empty = match icase {
        true => low.to_ascii_uppercase() > high.to_ascii_uppercase(),
        false => low > high,
    };
    if is_empty {
        return Err(RANGE);
    }
    (low..=high).for_each(|byte| set.add(byte));
    Ok(())
}

/// One byte, `[.x.]`, `[=x=]` or `[:class:]`.
fn element(pattern: &[u8], at: &mut usize) -> Result<BracketElement, PatternError> {
    let byte = *pattern.get(*at).ok_or(UNMATCHED)?;
    let kind = match (byte, pattern.get(*at + 1)) {
        (b'[', Some(kind @ (b'.' | b'=' | b':'))) => *kind,
        _ => {
            *at += 1;
            return Ok(BracketElement::Byte(byte));
        }
    };
    let rest = &pattern[*at + 2..];
    let Some(len) = rest.windows(2).position(|pair| pair == [kind, b']']) else {
        return Err(UNMATCHED);
    };
    *at += 2 + len + 2;
    let name = &rest[..len];
    match (kind, name) {
        (b':', name) => Ok(BracketElement::Class(Box::new(class(name).ok_or(CLASS)?))),
        (b'.', [byte]) => Ok(BracketElement::Byte(*byte)),
        (b'=', [byte]) => {
            let mut set = ByteSet::EMPTY;
            set.add(*byte);
            Ok(BracketElement::Class(Box::new(set)))
        }
        _ => Err(COLLATION),
    }
}

fn class(name: &[u8]) -> Option<ByteSet> {
    let is: fn(u8) -> bool = match name {
        b"alpha" => |byte| byte.is_ascii_alphabetic(),
        b"upper" => |byte| byte.is_ascii_uppercase(),
        b"lower" => |byte| byte.is_ascii_lowercase(),
        b"digit" => |byte| byte.is_ascii_digit(),
        b"xdigit" => |byte| byte.is_ascii_hexdigit(),
        b"alnum" => |byte| byte.is_ascii_alphanumeric(),
        b"punct" => |byte| byte.is_ascii_punctuation(),
        b"graph" => |byte| byte.is_ascii_graphic(),
        b"print" => |byte| byte.is_ascii_graphic() || byte == b' ',
        b"blank" => |byte| byte == b' ' || byte == b'\t',
        b"space" => bytes::is_space,
        b"cntrl" => |byte| byte.is_ascii_control(),
        _ => return None,
    };
    Some(ByteSet::of(is))
}
