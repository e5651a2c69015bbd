//! `valsort`: whether the records of the sort benchmark in a file are in order, and their checksum.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use clap::Parser;
use samite_modules::gensort::RECORD_LEN;
use samite_modules::valsort::SortSummary;
use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::TaskInput;
use samite_worker::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};

use crate::call::{ToolCall, checked_paths, decode, encode};
use crate::lines::each_records;
use crate::pieces::{files_of, join_by_file, next_file_piece, write};

/// The words after `valsort`.
#[derive(Clone, Debug, Parser)]
#[command(name = "valsort", disable_version_flag = true)]
pub struct ValsortArgs {
    /// The file
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
}

impl ValsortArgs {
    /// What they ask for.
    ///
    /// # Errors
    /// `Invalid`: the path.
    pub fn call(&self) -> Result<ToolCall> {
        let paths = self.path.iter().cloned().map(OsString::into_vec).collect();
        Ok(ToolCall::new(&ValsortModule, checked_paths(paths)?))
    }
}

/// The module `valsort`.
#[derive(Debug)]
pub struct ValsortModule;

impl Module for ValsortModule {
    fn name(&self) -> &'static str {
        "valsort"
    }

    fn about(&self) -> &'static str {
        "whether the records of the sort benchmark are in order"
    }

    fn parse(&self, words: &[OsString]) -> Result<ModuleCall> {
        let words = std::iter::once(OsString::from("valsort")).chain(words.iter().cloned());
        let args = ValsortArgs::try_parse_from(words)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        let ToolCall { arguments, paths, is_recursive, .. } = args.call()?;
        Ok(ModuleCall { arguments, paths, is_recursive })
    }

    fn run(&self, _: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        while let Some((_, piece)) = next_file_piece(input)? {
            let mut summary = SortSummary::default();
            each_records(input, piece, RECORD_LEN, &mut |records| {
                summary.join(&SortSummary::of(records));
                Ok(())
            })?;
            out.emit(&encode(&summary))?;
        }
        Ok(())
    }

    fn merge(
        &self,
        _: &[u8],
        input: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8> {
        let files = files_of(input)?;
        let joined = join_by_file(files.len(), outputs, |sum: &mut SortSummary, bytes| {
            sum.join(&decode(bytes)?);
            Ok(())
        })?;
        for summary in &joined {
            write(out, summary.report().as_bytes())?;
        }
        Ok(u8::from(joined.iter().any(|summary| summary.unordered > 0)))
    }
}
