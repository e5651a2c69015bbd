//! The search of pieces.

use std::convert::Infallible;

use samite_modules::TextPiece;
use samite_modules::grep::{GrepPartial, GrepScanner};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::TaskOutput;
use samite_worker::input::{InputPiece, TaskInput};

use super::{
    BINARY_DECIDING_LEN, GrepOrder, HEAD, NUL, PieceStart, REGION, RegionResult, START, TAIL,
};
use crate::call::encode;
use crate::frames;

pub(super) fn run(
    order: &GrepOrder,
    input: &mut TaskInput,
    out: &mut dyn TaskOutput,
) -> Result<()> {
    let matcher = order.matcher()?;
    let mut file = None;
    let mut is_decided = false;
    while let Some(piece) = input.next_piece()? {
        let InputPiece::File { file: number, offset, len, size } = piece else {
            return Err(Error::new(ErrorKind::Invalid, "grep reads files, not records"));
        };
        if file != Some(number) {
            file = Some(number);
            is_decided = false;
        }
        if is_decided || matcher.selects_nothing() {
            continue;
        }
        let mut search = PieceSearch {
            order,
            scanner: GrepScanner::new(&matcher),
            out,
            at: offset,
            selected: 0,
            summed: (0, 0),
            is_binary: false,
        };
        frames::emit(search.out, START, &encode(&PieceStart { offset, len }))?;
        search.run(input, offset > 0, offset + len == size)?;
        is_decided = search.is_decided();
    }
    Ok(())
}

/// The search of one piece.
struct PieceSearch<'a> {
    order: &'a GrepOrder,
    scanner: GrepScanner<'a>,
    out: &'a mut dyn TaskOutput,
    /// Where the next lines begin.
    at: u64,
    /// Lines selected, however the file is read.
    selected: u64,
    /// Lines selected if it is text, and if it is none, where only they count.
    summed: (u64, u64),
    /// It is known to be no text.
    is_binary: bool,
}

impl PieceSearch<'_> {
    /// Whether what is behind does not matter.
    fn is_decided(&self) -> bool {
        let has_context = self.order.options.after.is_some_and(|lines| lines > 0);
        let one_decides = self.is_binary && self.order.prints_lines();
        let limit = if one_decides { 1 } else { self.order.limit() };
        (!has_context || one_decides) && self.selected >= limit
    }

    fn run(&mut self, input: &mut TaskInput, has_head: bool, is_last: bool) -> Result<()> {
        let mut in_head = has_head;
        let mut has_nul = false;
        let mut carried: Vec<u8> = Vec::new();
        let mut carried_nul = false;
        while !self.is_decided() {
            let bytes = input.read()?;
            if bytes.is_empty() {
                break;
            }
            let nul = if self.order.is_text { None } else { memchr::memchr(0, bytes) };
            if let Some(at) = nul.filter(|_| !has_nul) {
                has_nul = true;
                let at = self.at + (carried.len() + at) as u64;
                self.is_binary = at < BINARY_DECIDING_LEN;
                frames::emit(self.out, NUL, &at.to_le_bytes())?;
            }
            let mut rest = bytes;
            if in_head {
                let head = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
                in_head = rest.get(head - 1) != Some(&b'\n');
                frames::emit(self.out, HEAD, &rest[..head])?;
                self.at += head as u64;
                rest = &rest[head..];
            }
            if !carried.is_empty() {
                let end = memchr::memchr(b'\n', rest).map(|end| end + 1);
                carried.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
                carried_nul |= nul.is_some();
                rest = &rest[end.unwrap_or(rest.len())..];
                if end.is_some() {
                    self.region(&carried, carried_nul)?;
                    carried.clear();
                }
            }
            let whole = memchr::memrchr(b'\n', rest).map_or(0, |last| last + 1);
            if whole > 0 && !self.is_decided() {
                self.region(&rest[..whole], nul.is_some())?;
            }
            if whole < rest.len() {
                carried.extend_from_slice(&rest[whole..]);
                carried_nul = nul.is_some();
            }
        }
        if is_last && !carried.is_empty() && !self.is_decided() {
            self.region(&carried, carried_nul)?;
        } else if !is_last {
            frames::emit(self.out, TAIL, &carried)?;
        }
        self.finish()
    }

    /// Searches whole lines.
    fn region(&mut self, bytes: &[u8], has_nul: bool) -> Result<()> {
        let region = TextPiece { bytes, offset: self.at, before: Some(b'\n') };
        self.at += bytes.len() as u64;
        let result = scan(&mut self.scanner, &region, (has_nul, self.is_binary));
        let text = result.partial.selected;
        let binary = result.binary_selected.unwrap_or(text);
        self.selected = self.selected.saturating_add(text.min(binary));
        if !self.order.prints_lines() {
            self.summed.0 += text;
            self.summed.1 += binary;
            return Ok(());
        }
        let GrepPartial { lines, newlines, .. } = &result.partial;
        if lines.is_empty() && *newlines == 0 && text == 0 && binary == 0 {
            return Ok(());
        }
        frames::emit(self.out, REGION, &encode(&result))
    }

    fn finish(&mut self) -> Result<()> {
        let (text, binary) = self.summed;
        if text == 0 && binary == 0 {
            return Ok(());
        }
        let partial = GrepPartial { selected: text, ..GrepPartial::default() };
        let binary_selected = (binary != text).then_some(binary);
        frames::emit(self.out, REGION, &encode(&RegionResult { partial, binary_selected }))
    }
}

/// Searches whole lines, as text and as no text, as far as both are needed.
pub(super) fn scan(
    scanner: &mut GrepScanner<'_>,
    region: &TextPiece<'_>,
    (has_nul, is_binary): (bool, bool),
) -> RegionResult {
    let mut once = |is_binary: bool| {
        let Ok(partial) = scanner.scan(region, is_binary, &mut |_| Ok::<_, Infallible>(false));
        partial
    };
    if is_binary {
        let selected = once(true).selected;
        let partial = GrepPartial { selected, ..GrepPartial::default() };
        return RegionResult { partial, binary_selected: None };
    }
    let partial = once(false);
    let binary_selected = has_nul.then(|| once(true).selected);
    RegionResult { partial, binary_selected }
}
