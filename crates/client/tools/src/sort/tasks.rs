//! The parts of a sort, as modules.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write;

use samite_modules::TextPiece;
use samite_modules::sort::{
    LineOrder, OrderCheck, RecordCursor, RecordOrder, SortedRun, SortedSource, merge,
};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::{TaskFile, TaskInput};
use samite_worker::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};

use super::{ItemOrder, MergeOrder, RunLengths, RunOrder, SortRule, run_path};
use crate::call::{decode, encode};
use crate::frames::{self, corrupt};
use crate::lines::{each_lines, each_records};
use crate::pieces::{files_of, next_file_piece, write};

/// Bytes written at a time.
const WRITTEN_LEN: usize = 256 << 10;
/// Samples of a piece for each MiB, and at least.
const SAMPLES_PER_MIB: u64 = 4;
const SAMPLES_MIN: u64 = 8;
/// A sample is no longer.
const SAMPLE_LEN_MAX: usize = 4 << 10;

fn by_itself() -> Error {
    Error::new(ErrorKind::Unsupported, "this is a part of `samite sort`")
}

/// The module `sort-check`.
#[derive(Debug)]
pub struct CheckModule;

impl Module for CheckModule {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn about(&self) -> &'static str {
        "whether lines are in order (by `samite sort -c`)"
    }

    fn parse(&self, _: &[OsString]) -> Result<ModuleCall> {
        Err(by_itself())
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        let (rule, _): (SortRule, bool) = decode(arguments)?;
        let ItemOrder::Lines(order) = rule.order()? else { return Err(corrupt()) };
        while let Some((_, piece)) = next_file_piece(input)? {
            let mut check = OrderCheck::default();
            each_lines(input, piece, &mut |bytes| {
                let lines = TextPiece { bytes, offset: 0, before: None };
                let Ok(next) = OrderCheck::of(&order, &lines, &mut |_| Ok::<_, Infallible>(false));
                check.join(next, &order);
                Ok(())
            })?;
            frames::emit(out, 0, &encode(&check))?;
        }
        Ok(())
    }

    fn merge(
        &self,
        arguments: &[u8],
        input: &JobInput,
        outputs: &mut dyn PieceOutputs,
        _: &mut dyn Write,
    ) -> Result<u8> {
        let (rule, is_quiet): (SortRule, bool) = decode(arguments)?;
        let ItemOrder::Lines(order) = rule.order()? else { return Err(corrupt()) };
        let mut check = OrderCheck::default();
        while let Some(piece) = outputs.next()? {
            frames::each(piece.bytes, &mut |_, bytes| {
                check.join(decode(bytes)?, &order);
                Ok(())
            })?;
        }
        let Some((number, line)) = check.disorder() else { return Ok(0) };
        if !is_quiet {
            let path = files_of(input)?.first().map_or(&b""[..], |file| &file.path);
            let path = String::from_utf8_lossy(path);
            let words = format!("samite: sort: {path}:{number}: disorder: ");
            let whole = [words.as_bytes(), line, b"\n"].concat();
            // A closed stderr is no reason to fail.
            let _ = std::io::stderr().lock().write_all(&whole);
        }
        Ok(1)
    }
}

/// The module `sort-sample`.
#[derive(Debug)]
pub struct SampleModule;

impl Module for SampleModule {
    fn name(&self) -> &'static str {
        "sort-sample"
    }

    fn about(&self) -> &'static str {
        "the first part of `samite sort`"
    }

    fn parse(&self, _: &[OsString]) -> Result<ModuleCall> {
        Err(by_itself())
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        let (rule, _): (SortRule, usize) = decode(arguments)?;
        while let Some((_, piece)) = next_file_piece(input)? {
            let count = ((piece.len * SAMPLES_PER_MIB) >> 20).max(SAMPLES_MIN);
            let bytes = input.read()?;
            for sample in samples(&rule, bytes, piece.offset, count as usize) {
                frames::emit(out, 0, &sample[..sample.len().min(SAMPLE_LEN_MAX)])?;
            }
        }
        Ok(())
    }

    fn merge(
        &self,
        arguments: &[u8],
        _: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8> {
        let (rule, parts): (SortRule, usize) = decode(arguments)?;
        let mut samples = Vec::new();
        while let Some(piece) = outputs.next()? {
            frames::each(piece.bytes, &mut |_, sample| {
                let is_whole = rule.record.is_none_or(|(len, ..)| sample.len() == len);
                if !is_whole {
                    return Err(corrupt());
                }
                samples.push(sample.to_vec());
                Ok(())
            })?;
        }
        write(out, &encode(&rule.order()?.splitters(samples, parts)))?;
        Ok(0)
    }
}

/// Some lines or records, evenly spread over bytes that begin at `offset` of a file.
fn samples(rule: &SortRule, bytes: &[u8], offset: u64, count: usize) -> Vec<Vec<u8>> {
    if let Some((len, ..)) = rule.record {
        let skip = (offset.next_multiple_of(len as u64) - offset) as usize;
        let records = bytes.get(skip..).unwrap_or_default().chunks_exact(len);
        let step = records.len().div_ceil(count).max(1);
        // Longer ones than may be given are cut, and would be no records.
        let is_short = len <= SAMPLE_LEN_MAX;
        return records.step_by(step).filter(|_| is_short).map(<[u8]>::to_vec).collect();
    }
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    // The first may begin before, and the last goes on.
    lines.pop();
    let lines = if offset > 0 { lines.get(1..).unwrap_or_default() } else { &lines[..] };
    let step = lines.len().div_ceil(count).max(1);
    lines.iter().step_by(step).map(|line| line.to_vec()).collect()
}

/// The module `sort-run`.
#[derive(Debug)]
pub struct RunModule;

impl Module for RunModule {
    fn name(&self) -> &'static str {
        "sort-run"
    }

    fn about(&self) -> &'static str {
        "the second part of `samite sort`"
    }

    fn parse(&self, _: &[OsString]) -> Result<ModuleCall> {
        Err(by_itself())
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        let RunOrder { rule, splitters, prefix } = decode(arguments)?;
        let path = run_path(&prefix, input.first_piece());
        let number = input.first_piece();
        let lens = match rule.order()? {
            ItemOrder::Lines(order) => run_of_lines(&order, &splitters, input, &path)?,
            ItemOrder::Records(order) => run_of_records(&order, &splitters, input, &path)?,
        };
        frames::emit(out, 0, &encode(&(number, lens)))
    }

    fn merge(
        &self,
        _: &[u8],
        _: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8> {
        let mut runs = RunLengths::new();
        while let Some(piece) = outputs.next()? {
            frames::each(piece.bytes, &mut |_, bytes| {
                let (number, lens) = decode(bytes)?;
                runs.insert(number, lens);
                Ok(())
            })?;
        }
        write(out, &encode(&runs))?;
        Ok(0)
    }
}

fn run_of_lines(
    order: &LineOrder,
    splitters: &[Vec<u8>],
    input: &mut TaskInput,
    path: &[u8],
) -> Result<Vec<u64>> {
    let mut run = SortedRun::new(order);
    while let Some((_, piece)) = next_file_piece(input)? {
        each_lines(input, piece, &mut |bytes| {
            let lines = TextPiece { bytes, offset: 0, before: None };
            let Ok(()) = run.add(&lines, &mut |_| Ok::<_, Infallible>(false));
            Ok(())
        })?;
    }
    run.sort();
    let mut writer = TaskFileWriter::new(input.open_for_writing(path, None)?, 0);
    let mut lens = Vec::with_capacity(splitters.len() + 1);
    for range in run.ranges(splitters) {
        let start = writer.at();
        for index in range {
            writer.line(run.line(index))?;
        }
        lens.push(writer.at() - start);
    }
    writer.finish()?;
    Ok(lens)
}

fn run_of_records(
    order: &RecordOrder,
    splitters: &[Vec<u8>],
    input: &mut TaskInput,
    path: &[u8],
) -> Result<Vec<u64>> {
    let mut records = Vec::new();
    while let Some((_, piece)) = next_file_piece(input)? {
        records.reserve(usize::try_from(piece.len).unwrap_or(0));
        each_records(input, piece, order.record_len(), &mut |bytes| {
            records.extend_from_slice(bytes);
            Ok(())
        })?;
    }
    let mut sorted = vec![0; records.len()];
    order.sort(&records, &mut sorted);
    drop(records);
    let file = input.open_for_writing(path, None)?;
    file.write_at(&sorted, 0)?;
    file.close()?;
    Ok(order.ranges(&sorted, splitters).into_iter().map(|range| range.len() as u64).collect())
}

/// Writes to a file from some offset on, many bytes at a time.
struct TaskFileWriter {
    file: TaskFile,
    sent: u64,
    buffer: Vec<u8>,
}

impl TaskFileWriter {
    fn new(file: TaskFile, at: u64) -> Self {
        Self { file, sent: at, buffer: Vec::with_capacity(WRITTEN_LEN + 4096) }
    }

    /// Where the next bytes will lie.
    fn at(&self) -> u64 {
        self.sent + self.buffer.len() as u64
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITTEN_LEN { self.send() } else { Ok(()) }
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(line);
        self.bytes(b"\n")
    }

    fn send(&mut self) -> Result<()> {
        self.file.write_at(&self.buffer, self.sent)?;
        self.sent += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.send()?;
        self.file.close()
    }
}

/// The module `sort-merge`.
#[derive(Debug)]
pub struct MergeModule;

impl Module for MergeModule {
    fn name(&self) -> &'static str {
        "sort-merge"
    }

    fn about(&self) -> &'static str {
        "the last part of `samite sort`"
    }

    fn parse(&self, _: &[OsString]) -> Result<ModuleCall> {
        Err(by_itself())
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        let MergeOrder { rule, output, offsets } = decode(arguments)?;
        let mut range = 0;
        let mut segments: Vec<Vec<u8>> = Vec::new();
        while let Some((number, piece)) = next_file_piece(input)? {
            range = number as usize;
            let mut segment = Vec::with_capacity(usize::try_from(piece.len).unwrap_or(0));
            loop {
                let bytes = input.read()?;
                if bytes.is_empty() {
                    break;
                }
                segment.extend_from_slice(bytes);
            }
            if segment.len() as u64 != piece.len {
                return Err(Error::new(ErrorKind::Corrupt, "a run of the sort is cut short"));
            }
            segments.push(segment);
        }
        let order = rule.order()?;
        let Some((path, ino)) = output else {
            let mut buffer = Vec::with_capacity(WRITTEN_LEN);
            merge_segments(&order, &segments, &mut |bytes| {
                buffer.extend_from_slice(bytes);
                if buffer.len() >= WRITTEN_LEN {
                    out.emit(&buffer)?;
                    buffer.clear();
                }
                Ok(())
            })?;
            return out.emit(&buffer);
        };
        let at = *offsets.get(range).ok_or_else(corrupt)?;
        let mut writer = TaskFileWriter::new(input.open_for_writing(&path, Some(ino))?, at);
        merge_segments(&order, &segments, &mut |bytes| writer.bytes(bytes))?;
        let whole: u64 = segments.iter().map(|segment| segment.len() as u64).sum();
        if writer.at() != at + whole {
            return Err(Error::new(
                ErrorKind::Internal,
                "a range of the sort has changed in length",
            ));
        }
        writer.finish()
    }

    fn merge(
        &self,
        _: &[u8],
        _: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8> {
        while let Some(piece) = outputs.next()? {
            write(out, piece.bytes)?;
        }
        Ok(0)
    }
}

fn merge_segments(
    order: &ItemOrder,
    segments: &[Vec<u8>],
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    match order {
        ItemOrder::Lines(order) => {
            let mut sources: Vec<LineCursor<'_>> =
                segments.iter().map(|segment| LineCursor::new(segment)).collect();
            merge(&mut sources, order, &mut |line| {
                sink(line)?;
                sink(b"\n")
            })
        }
        ItemOrder::Records(order) => {
            let cursor = |segment: &Vec<u8>| -> Result<()> {
                let is_whole = segment.len().is_multiple_of(order.record_len());
                if is_whole { Ok(()) } else { Err(corrupt()) }
            };
            segments.iter().try_for_each(cursor)?;
            let mut sources: Vec<RecordCursor<'_>> =
                segments.iter().map(|s| RecordCursor::new(s, order.record_len())).collect();
            merge(&mut sources, order, sink)
        }
    }
}

/// Lines of a text in memory.
struct LineCursor<'a> {
    line: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> LineCursor<'a> {
    fn new(text: &'a [u8]) -> Self {
        let mut cursor = Self { line: None, rest: text };
        cursor.step();
        cursor
    }

    fn step(&mut self) {
        if self.rest.is_empty() {
            self.line = None;
            return;
        }
        let end = memchr::memchr(b'\n', self.rest).unwrap_or(self.rest.len());
        self.line = Some(&self.rest[..end]);
        self.rest = self.rest.get(end + 1..).unwrap_or_default();
    }
}

impl SortedSource<Error> for LineCursor<'_> {
    fn current(&self) -> Option<&[u8]> {
        self.line
    }

    fn advance(&mut self) -> Result<()> {
        self.step();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_whole_lines_or_records() {
        let rule = SortRule::default();
        let text = b"rest\nab\nc\n\nde\ncut";
        assert_eq!(samples(&rule, text, 9, 9), [&b"ab"[..], b"c", b"", b"de"]);
        assert_eq!(samples(&rule, text, 0, 9)[0], b"rest");
        assert_eq!(samples(&rule, text, 9, 2), [&b"ab"[..], b""]);
        assert!(samples(&rule, b"no end", 0, 9).is_empty());
        let rule = SortRule { record: Some((3, 0, 2)), ..SortRule::default() };
        assert_eq!(samples(&rule, b"xabcdefx", 5, 9), [b"abc", b"def"]);
        assert!(samples(&rule, b"", 5, 9).is_empty());
    }

    #[test]
    fn lines_of_a_text_come_one_after_the_other() {
        for (text, expected) in [
            (&b""[..], &[][..]),
            (b"a", &[&b"a"[..]]),
            (b"a\n\nb\n", &[b"a", b"", b"b"]),
            (b"\n", &[b""]),
        ] {
            let mut cursor = LineCursor::new(text);
            let mut lines = Vec::new();
            while let Some(line) = cursor.current() {
                lines.push(line.to_vec());
                cursor.advance().unwrap();
            }
            assert_eq!(lines, expected);
        }
    }
}
