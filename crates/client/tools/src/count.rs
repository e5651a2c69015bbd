//! `count`: how often each word is in files.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use clap::Parser;
use samite_modules::TextPiece;
use samite_modules::count::WordCounts;
use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::TaskInput;
use samite_worker::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};

use crate::call::{ToolCall, checked_paths, decode, encode};
use crate::frames::{self, corrupt};
use crate::pieces::{next_file_piece, write};

/// Where a piece begins: 8 bytes.
const START: u8 = 0;
/// Bytes up to the first white space.
const HEAD: u8 = 1;
/// Bytes behind the last white space.
const TAIL: u8 = 2;
/// 8 bytes with a count, and the word.
const COUNT: u8 = 3;

/// The words after `count`.
#[derive(Clone, Debug, Parser)]
#[command(name = "count", disable_version_flag = true)]
pub struct CountArgs {
    /// Print so many words, the most frequent ones; 0: all
    #[arg(short = 'k', long, value_name = "N", default_value_t = 10)]
    top: u64,
    /// Count the files below directories
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Files
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

impl CountArgs {
    /// What they ask for.
    ///
    /// # Errors
    /// `Invalid`: a path.
    pub fn call(&self) -> Result<ToolCall> {
        let paths = self.paths.iter().cloned().map(OsString::into_vec).collect();
        let mut call = ToolCall::new(&CountModule, checked_paths(paths)?);
        call.arguments = encode(&self.top);
        call.is_recursive = self.recursive;
        Ok(call)
    }
}

/// The module `count`.
#[derive(Debug)]
pub struct CountModule;

impl Module for CountModule {
    fn name(&self) -> &'static str {
        "count"
    }

    fn about(&self) -> &'static str {
        "count how often each word is in files"
    }

    fn parse(&self, words: &[OsString]) -> Result<ModuleCall> {
        let words = std::iter::once(OsString::from("count")).chain(words.iter().cloned());
        let args = CountArgs::try_parse_from(words)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        let ToolCall { arguments, paths, is_recursive, .. } = args.call()?;
        Ok(ModuleCall { arguments, paths, is_recursive })
    }

    fn run(&self, _: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        let mut counts = WordCounts::default();
        while let Some((_, piece)) = next_file_piece(input)? {
            frames::emit(out, START, &piece.offset.to_le_bytes())?;
            let is_last = piece.offset + piece.len >= piece.size;
            count_piece(input, &mut counts, (piece.offset > 0, is_last), out)?;
        }
        // Told with the last piece: it does not matter which.
        for (word, count) in counts.iter() {
            frames::emit(out, COUNT, &[&count.to_le_bytes()[..], &word].concat())?;
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
        let top: u64 = decode(arguments)?;
        let mut counts = WordCounts::default();
        let mut file = None;
        let mut word: Vec<u8> = Vec::new();
        while let Some(piece) = outputs.next()? {
            if file.replace(piece.file) != Some(piece.file) {
                add(&mut counts, &mut word);
            }
            frames::each(piece.bytes, &mut |tag, bytes| {
                match tag {
                    START => {}
                    HEAD => {
                        word.extend_from_slice(bytes);
                        if bytes.last().is_some_and(|byte| is_space(*byte)) {
                            word.pop();
                            add(&mut counts, &mut word);
                        }
                    }
                    TAIL => word.extend_from_slice(bytes),
                    COUNT => {
                        let (count, known) = bytes.split_first_chunk().ok_or_else(corrupt)?;
                        let is_word = !known.is_empty() && !known.iter().any(|b| is_space(*b));
                        if !is_word {
                            return Err(corrupt());
                        }
                        counts.add_word(known, u64::from_le_bytes(*count));
                    }
                    _ => return Err(corrupt()),
                }
                Ok(())
            })?;
        }
        add(&mut counts, &mut word);
        let top = if top == 0 { usize::MAX } else { usize::try_from(top).unwrap_or(usize::MAX) };
        write(out, &counts.report(top))?;
        Ok(0)
    }
}

/// Counts a word that lay in several pieces.
fn add(counts: &mut WordCounts, word: &mut Vec<u8>) {
    if !word.is_empty() {
        counts.add_word(word, 1);
        word.clear();
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte.wrapping_sub(9) < 5
}

fn count_piece(
    input: &mut TaskInput,
    counts: &mut WordCounts,
    (has_head, is_last): (bool, bool),
    out: &mut dyn TaskOutput,
) -> Result<()> {
    let mut in_head = has_head;
    let mut carried: Vec<u8> = Vec::new();
    let mut count = |bytes: &[u8]| {
        let piece = TextPiece { bytes, offset: 0, before: None };
        let Ok(()) = counts.add(&piece, &mut |_| Ok::<_, Infallible>(false));
    };
    loop {
        let bytes = input.read()?;
        if bytes.is_empty() {
            break;
        }
        let mut rest = bytes;
        if in_head {
            let end = rest.iter().position(|byte| is_space(*byte)).map(|end| end + 1);
            in_head = end.is_none();
            frames::emit(out, HEAD, &rest[..end.unwrap_or(rest.len())])?;
            rest = &rest[end.unwrap_or(rest.len())..];
        }
        if !carried.is_empty() {
            let end = rest.iter().position(|byte| is_space(*byte)).map(|end| end + 1);
            carried.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            rest = &rest[end.unwrap_or(rest.len())..];
            if end.is_some() {
                count(&carried);
                carried.clear();
            }
        }
        let whole = rest.iter().rposition(|byte| is_space(*byte)).map_or(0, |last| last + 1);
        count(&rest[..whole]);
        carried.extend_from_slice(&rest[whole..]);
    }
    match is_last {
        true => count(&carried),
        false => frames::emit(out, TAIL, &carried)?,
    }
    Ok(())
}
