//! What is printed: the results of pieces, joined.

use std::io::Write;

use samite_modules::TextPiece;
use samite_modules::grep::{GrepMatcher, GrepPartial, GrepPrinter, GrepScanner};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::{JobFile, JobInput, PieceOutputs};

use super::task::scan;
use super::{
    BINARY_DECIDING_LEN, GrepOrder, HEAD, NUL, PieceStart, REGION, RegionResult, START, TAIL,
};
use crate::call::decode;
use crate::frames::{corrupt, each};

/// Bytes after which what is printed goes out.
const PRINTED_MAX: usize = 256 << 10;

pub(super) fn merge(
    order: &GrepOrder,
    input: &JobInput,
    outputs: &mut dyn PieceOutputs,
    out: &mut dyn Write,
) -> Result<u8> {
    let JobInput::Files(files) = input else {
        return Err(Error::new(ErrorKind::Invalid, "grep reads files, not records"));
    };
    let matcher = order.matcher()?;
    let mut joiner = FileJoiner::new(&matcher, out);
    let mut next: Option<u32> = None;
    while let Some(piece) = outputs.next()? {
        if next != Some(piece.file) {
            let first = next.map_or(0, |file| file + 1);
            joiner.end_file(next.and_then(|file| files.get(file as usize)))?;
            for file in files.get(first as usize..piece.file as usize).unwrap_or_default() {
                joiner.end_file(Some(file))?;
            }
            next = Some(piece.file);
        }
        let file = files.get(piece.file as usize).ok_or_else(corrupt)?;
        joiner.piece(file, piece.bytes)?;
    }
    joiner.end_file(next.and_then(|file| files.get(file as usize)))?;
    let first = next.map_or(0, |file| file as usize + 1);
    for file in files.get(first..).unwrap_or_default() {
        joiner.end_file(Some(file))?;
    }
    joiner.send(0)?;
    Ok(joiner.printer.exit_code())
}

/// Joins the results of one file after the other.
struct FileJoiner<'a> {
    printer: GrepPrinter,
    scanner: GrepScanner<'a>,
    out: &'a mut dyn Write,
    printed: Vec<u8>,
    /// Results of pieces that lie where it is decided whether the file is text.
    undecided: Vec<Vec<u8>>,
    is_begun: bool,
    is_binary: bool,
    goes_on: bool,
    /// A line that began in a piece before, and where.
    line: Vec<u8>,
    line_at: u64,
}

impl<'a> FileJoiner<'a> {
    fn new(matcher: &'a GrepMatcher, out: &'a mut dyn Write) -> Self {
        Self {
            printer: GrepPrinter::new(matcher),
            scanner: GrepScanner::new(matcher),
            out,
            printed: Vec::new(),
            undecided: Vec::new(),
            is_begun: false,
            is_binary: false,
            goes_on: true,
            line: Vec::new(),
            line_at: 0,
        }
    }

    fn piece(&mut self, file: &JobFile, bytes: &[u8]) -> Result<()> {
        if !self.goes_on {
            return Ok(());
        }
        if !self.is_begun {
            let (start, nul) = beginning(bytes)?;
            let is_early = start.is_none_or(|start| start.offset < BINARY_DECIDING_LEN);
            if is_early {
                self.is_binary |= nul.is_some_and(|at| at < BINARY_DECIDING_LEN);
                self.undecided.push(bytes.to_vec());
                return Ok(());
            }
            self.begin(file)?;
        }
        self.join(bytes)
    }

    fn begin(&mut self, file: &JobFile) -> Result<()> {
        self.is_begun = true;
        self.printer.begin_file(&file.path, self.is_binary);
        std::mem::take(&mut self.undecided).iter().try_for_each(|bytes| self.join(bytes))
    }

    fn join(&mut self, bytes: &[u8]) -> Result<()> {
        let mut end = 0;
        each(bytes, &mut |tag, part| {
            if !self.goes_on {
                return Ok(());
            }
            match tag {
                START => {
                    let PieceStart { offset, len } = decode(part)?;
                    end = offset.saturating_add(len);
                    if self.line.is_empty() {
                        self.line_at = offset;
                    }
                }
                HEAD => {
                    self.line.extend_from_slice(part);
                    if part.last() == Some(&b'\n') {
                        self.crossing_line();
                    }
                }
                REGION => {
                    let RegionResult { mut partial, binary_selected } = decode(part)?;
                    if self.is_binary {
                        let selected = binary_selected.unwrap_or(partial.selected);
                        partial = GrepPartial { selected, ..GrepPartial::default() };
                    }
                    self.goes_on = self.printer.join(&partial, &mut self.printed);
                }
                TAIL if !part.is_empty() => {
                    self.line_at = end.saturating_sub(part.len() as u64);
                    self.line.extend_from_slice(part);
                }
                TAIL | NUL => {}
                _ => return Err(corrupt()),
            }
            Ok(())
        })?;
        self.send(PRINTED_MAX)
    }

    /// Searches a line that lies in several pieces.
    fn crossing_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let region = TextPiece { bytes: &line, offset: self.line_at, before: Some(b'\n') };
        let result = scan(&mut self.scanner, &region, (false, self.is_binary));
        self.goes_on = self.printer.join(&result.partial, &mut self.printed);
    }

    /// `None`: there was no file yet.
    fn end_file(&mut self, file: Option<&JobFile>) -> Result<()> {
        let Some(file) = file else { return Ok(()) };
        if !self.is_begun {
            self.begin(file)?;
        }
        if self.goes_on && !self.line.is_empty() {
            self.crossing_line();
        }
        let outcome = self.printer.end_file(&mut self.printed);
        if outcome.binary_matches {
            self.send(0)?;
            let name = String::from_utf8_lossy(&file.path);
            // A closed stderr is no reason to fail.
            let words = samite_modules::grep::binary_matches(&name);
            let _ = writeln!(std::io::stderr().lock(), "samite: {words}");
        }
        (self.is_begun, self.is_binary, self.goes_on) = (false, false, true);
        self.line.clear();
        self.send(PRINTED_MAX)
    }

    /// Writes what is printed, if it is more than so many bytes.
    fn send(&mut self, most: usize) -> Result<()> {
        if self.printed.len() <= most {
            return Ok(());
        }
        let written = self.out.write_all(&self.printed);
        self.printed.clear();
        written.map_err(|error| Error::new(ErrorKind::Io, format!("write the output: {error}")))
    }
}

/// Where a piece lies, and its first NUL; nothing if it was not searched.
fn beginning(bytes: &[u8]) -> Result<(Option<PieceStart>, Option<u64>)> {
    let (mut start, mut nul) = (None, None);
    each(bytes, &mut |tag, part| {
        match tag {
            START => start = Some(decode(part)?),
            NUL => nul = part.first_chunk().map(|at| u64::from_le_bytes(*at)),
            _ => {}
        }
        Ok(())
    })?;
    Ok((start, nul))
}
