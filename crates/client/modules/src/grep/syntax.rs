//! Patterns as GNU grep reads them, translated to the syntax tree that regex-automata compiles.
//!
//! GNU grep reads a pattern twice: by its own automaton, which selects lines, and by the regular
//! expressions of the C library, which say where a match is and complain. They differ in what a
//! repetition does that has nothing to repeat: [`PatternReader`] names the two.

use regex_syntax::hir::{Hir, Look, Repetition};

use super::bracket;
use super::bytes::{ByteSet, is_space, is_word, literal};
use super::options::{GrepOptions, PatternError, PatternSyntax};

/// Largest count of a repetition, as in the C library.
const REPEAT_MAX: u32 = 0x7fff;
/// Deepest nesting of groups: GNU grep has no limit but its stack.
const DEPTH_MAX: usize = 200;

const UNMATCHED_OPEN: PatternError = PatternError::Invalid("Unmatched ( or \\(");
const UNMATCHED_CLOSE: PatternError = PatternError::Invalid("Unmatched ) or \\)");
const UNMATCHED_BRACE: PatternError = PatternError::Invalid("Unmatched \\{");
const BAD_REPEAT: PatternError = PatternError::Invalid("Invalid content of \\{\\}");
const TOO_BIG: PatternError = PatternError::Invalid("Regular expression too big");
const TRAILING: PatternError = PatternError::Invalid("Trailing backslash");

/// Which of GNU grep's two readers of patterns is followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PatternReader {
    /// The automaton that selects lines.
    Automaton,
    /// The C library, which finds the parts of lines that match.
    Library,
}

/// Whether GNU grep's automaton leaves patterns to the library: where `[=a=]` or `[.a.]` are in
/// brackets, whose meaning the locale knows.
pub(super) fn is_left_to_library(pattern: &[u8]) -> bool {
    pattern.windows(2).any(|pair| matches!(pair, b"[=" | b"[."))
}

/// Translates a basic or extended pattern without newlines.
pub(super) fn parse(
    pattern: &[u8],
    options: &GrepOptions,
    reader: PatternReader,
) -> Result<Hir, PatternError> {
    let mut parser = PatternParser {
        pattern,
        at: 0,
        extended: options.syntax == PatternSyntax::Extended,
        icase: options.ignore_case,
        bounded: options.words || options.whole_lines,
        reader,
    };
    parser.alternation(0)
}

struct PatternParser<'a> {
    pattern: &'a [u8],
    at: usize,
    extended: bool,
    icase: bool,
    /// GNU grep puts the pattern in a group of its own.
    bounded: bool,
    reader: PatternReader,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PatternToken {
    End,
    Or,
    Open,
    Close,
    Repeat(u8),
    Brace,
    Any,
    Bracket,
    Caret,
    Dollar,
    Look(Look),
    Class(u8),
    BackReference,
    Byte(u8),
}

impl PatternParser<'_> {
    /// The token at `at` and its length, whatever is around it.
    fn token(&self) -> Result<(PatternToken, usize), PatternError> {
        let Some(&byte) = self.pattern.get(self.at) else { return Ok((PatternToken::End, 0)) };
        if byte == b'\\' {
            let escaped = *self.pattern.get(self.at + 1).ok_or(TRAILING)?;
            return Ok((self.escaped(escaped), 2));
        }
        let token = match byte {
            b'*' => PatternToken::Repeat(byte),
            b'.' => PatternToken::Any,
            b'[' => PatternToken::Bracket,
            b'^' => PatternToken::Caret,
            b'$' => PatternToken::Dollar,
            b'+' | b'?' | b'{' | b'(' | b')' | b'|' if self.extended => operator(byte),
            _ => PatternToken::Byte(byte),
        };
        Ok((token, 1))
    }

    fn escaped(&self, byte: u8) -> PatternToken {
        match byte {
            b'+' | b'?' | b'{' | b'(' | b')' | b'|' if !self.extended => operator(byte),
            b'<' => PatternToken::Look(Look::WordStartAscii),
            b'>' => PatternToken::Look(Look::WordEndAscii),
            b'b' => PatternToken::Look(Look::WordAscii),
            b'B' => PatternToken::Look(Look::WordAsciiNegate),
            b'`' => PatternToken::Look(Look::StartLF),
            b'\'' => PatternToken::Look(Look::EndLF),
            b'w' | b'W' | b's' | b'S' => PatternToken::Class(byte),
            b'1'..=b'9' => PatternToken::BackReference,
            _ => PatternToken::Byte(byte),
        }
    }

    fn alternation(&mut self, depth: usize) -> Result<Hir, PatternError> {
        if depth > DEPTH_MAX {
            return Err(PatternError::NeedsRealGrep("groups in so many groups"));
        }
        let mut branches = vec![self.branch(depth)?];
        loop {
            match self.token()? {
                (PatternToken::Or, len) => {
                    self.at += len;
                    branches.push(self.branch(depth)?);
                }
                (PatternToken::End, _) if depth > 0 => return Err(UNMATCHED_OPEN),
                (_, len) => {
                    self.at += len;
                    return Ok(Hir::alternation(branches));
                }
            }
        }
    }

    /// Reads up to an operator that ends the branch, which is left.
    fn branch(&mut self, depth: usize) -> Result<Hir, PatternError> {
        let mut items: Vec<Hir> = Vec::new();
        let mut nothing_to_repeat = true;
        let mut close_is_byte = false;
        let mut first = true;
        loop {
            let (token, len) = self.token()?;
            let is_first = std::mem::replace(&mut first, false);
            let close = token == PatternToken::Close;
            match token {
                PatternToken::End | PatternToken::Or => break,
                PatternToken::Close if depth > 0 && !close_is_byte => break,
                PatternToken::Close if !self.extended => return Err(UNMATCHED_CLOSE),
                PatternToken::Close if depth == 0 && self.bounded => {
                    return Err(PatternError::NeedsRealGrep("a ) without ( under -w or -x"));
                }
                _ => self.at += len,
            }
            close_is_byte = false;
            if let PatternToken::Repeat(_) | PatternToken::Brace = token {
                let skips = self.extended && self.reader == PatternReader::Library;
                if nothing_to_repeat && skips {
                    close_is_byte = true;
                    continue;
                }
                if let Some((min, max)) = self.counts(token, nothing_to_repeat)? {
                    let item = items.pop();
                    items.extend(item.map(|item| repeated(item, min, max)));
                    continue;
                }
            }
            let (item, is_empty) = match token {
                _ if close => (literal(b')', self.icase), false),
                token => self.atom(token, is_first, depth)?,
            };
            // The library never repeats what takes no byte.
            nothing_to_repeat =
                is_empty && (nothing_to_repeat || self.reader == PatternReader::Library);
            items.push(item);
        }
        Ok(Hir::concat(items))
    }

    /// The bounds of a repetition; `None` if the token stands for itself.
    fn counts(
        &mut self,
        token: PatternToken,
        nothing_to_repeat: bool,
    ) -> Result<Option<(u32, Option<u32>)>, PatternError> {
        if nothing_to_repeat && !self.extended {
            return Ok(None);
        }
        match token {
            PatternToken::Repeat(b'*') => Ok(Some((0, None))),
            PatternToken::Repeat(b'+') => Ok(Some((1, None))),
            PatternToken::Repeat(_) => Ok(Some((0, Some(1)))),
            _ => self.interval(),
        }
    }

    /// Reads `1,2}` or `1,2\}`. In an extended pattern, a `{` that starts no interval is a byte.
    fn interval(&mut self) -> Result<Option<(u32, Option<u32>)>, PatternError> {
        let start = self.at;
        let mut at = start;
        let low = self.number(&mut at);
        let comma = self.pattern.get(at) == Some(&b',');
        at += usize::from(comma);
        let high = if comma { self.number(&mut at) } else { low };
        let end: &[u8] = if self.extended { b"}" } else { b"\\}" };
        let rest = &self.pattern[at..];
        if !rest.starts_with(end) || (low.is_none() && !comma) {
            return match self.extended {
                true => Ok(None),
                false if rest.is_empty() => Err(UNMATCHED_BRACE),
                false => Err(BAD_REPEAT),
            };
        }
        self.at = at + end.len();
        let low = low.unwrap_or(0);
        if high.is_some_and(|high| high < low) {
            if self.extended && self.reader == PatternReader::Automaton {
                self.at = start;
                return Ok(None);
            }
            return Err(BAD_REPEAT);
        }
        if low.max(high.unwrap_or(0)) > REPEAT_MAX {
            return Err(TOO_BIG);
        }
        Ok(Some((low, high)))
    }

    fn number(&self, at: &mut usize) -> Option<u32> {
        let digits = self.pattern[*at..].iter().take_while(|byte| byte.is_ascii_digit());
        let mut value = None;
        for digit in digits {
            let before: u32 = value.unwrap_or(0);
            value = Some((before * 10 + u32::from(digit - b'0')).min(REPEAT_MAX + 1));
            *at += 1;
        }
        value
    }

    /// What one token stands for, and whether it takes no byte by itself.
    fn atom(
        &mut self,
        token: PatternToken,
        is_first: bool,
        depth: usize,
    ) -> Result<(Hir, bool), PatternError> {
        let look = |look| Ok((Hir::look(look), true));
        let atom = match token {
            PatternToken::Open => self.alternation(depth + 1)?,
            PatternToken::Caret if self.extended || is_first => return look(Look::StartLF),
            PatternToken::Caret => literal(b'^', false),
            PatternToken::Dollar if self.extended || self.at_branch_end() => {
                return look(Look::EndLF);
            }
            PatternToken::Dollar => literal(b'$', false),
            PatternToken::Look(kind) => return look(kind),
            PatternToken::Any => ByteSet::of(|_| true).into_hir(),
            PatternToken::Bracket => {
                bracket::parse(self.pattern, &mut self.at, self.icase)?.into_hir()
            }
            PatternToken::Class(b'w') => ByteSet::of(is_word).into_hir(),
            PatternToken::Class(b'W') => ByteSet::of(|byte| !is_word(byte)).into_hir(),
            PatternToken::Class(b's') => ByteSet::of(is_space).into_hir(),
            PatternToken::Class(_) => ByteSet::of(|byte| !is_space(byte)).into_hir(),
            PatternToken::BackReference => {
                return Err(PatternError::NeedsRealGrep("a back-reference"));
            }
            PatternToken::Byte(byte) | PatternToken::Repeat(byte) => literal(byte, self.icase),
            PatternToken::Brace => literal(b'{', false),
            PatternToken::End | PatternToken::Or | PatternToken::Close => Hir::empty(),
        };
        Ok((atom, false))
    }

    /// Whether a `$` before `at` is the last of its branch. The automaton takes `)` and `|` for
    /// what ends one, backslash or not, if they are not the last byte.
    fn at_branch_end(&self) -> bool {
        let rest = &self.pattern[self.at..];
        let plain = self.reader == PatternReader::Automaton && rest.len() > 1;
        rest.is_empty()
            || rest.starts_with(b"\\)")
            || rest.starts_with(b"\\|")
            || (plain && matches!(rest[0], b')' | b'|'))
    }
}

fn operator(byte: u8) -> PatternToken {
    match byte {
        b'(' => PatternToken::Open,
        b')' => PatternToken::Close,
        b'|' => PatternToken::Or,
        b'{' => PatternToken::Brace,
        _ => PatternToken::Repeat(byte),
    }
}

fn repeated(item: Hir, min: u32, max: Option<u32>) -> Hir {
    Hir::repetition(Repetition { min, max, greedy: true, sub: Box::new(item) })
}
