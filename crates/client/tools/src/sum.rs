//! `sum`: checksums of files.
//!
//! The CRC-32C of a file is joined of those of its pieces; for the others, one task reads a whole
//! file, from its first byte to its last.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use clap::{Parser, ValueEnum};
use samite_modules::sum::{CrcPartial, SequentialSum};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::TaskInput;
use samite_worker::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};
use serde::{Deserialize, Serialize};

use crate::call::{ToolCall, checked_paths, decode, encode};
use crate::pieces::{files_of, join_by_file, next_file_piece, write};

/// Which sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum SumAlgorithm {
    /// CRC-32C: each node sums up what it has
    Crc32c,
    /// XXH3 of 64 bits: one task reads a file
    Xxh3,
    /// SHA-256: one task reads a file
    Sha256,
}

/// The words after `sum`.
#[derive(Clone, Debug, Parser)]
#[command(name = "sum", disable_version_flag = true)]
pub struct SumArgs {
    /// Which sum
    #[arg(short = 'a', long, value_name = "NAME", value_enum, default_value_t = SumAlgorithm::Crc32c)]
    algorithm: SumAlgorithm,
    /// Sum up the files below directories
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Files
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

impl SumArgs {
    /// What they ask for.
    ///
    /// # Errors
    /// `Invalid`: a path.
    pub fn call(&self) -> Result<ToolCall> {
        let paths = self.paths.iter().cloned().map(OsString::into_vec).collect();
        let mut call = ToolCall::new(&SumModule, checked_paths(paths)?);
        call.arguments = encode(&self.algorithm);
        call.is_recursive = self.recursive;
        call.needs_whole_files = self.algorithm != SumAlgorithm::Crc32c;
        Ok(call)
    }
}

/// The module `sum`.
#[derive(Debug)]
pub struct SumModule;

fn sequential(algorithm: SumAlgorithm) -> SequentialSum {
    match algorithm {
        SumAlgorithm::Sha256 => SequentialSum::sha256(),
        SumAlgorithm::Xxh3 | SumAlgorithm::Crc32c => SequentialSum::xxh3(),
    }
}

impl Module for SumModule {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn about(&self) -> &'static str {
        "checksums of files (by `samite job run`, CRC-32C only)"
    }

    fn parse(&self, words: &[OsString]) -> Result<ModuleCall> {
        let words = std::iter::once(OsString::from("sum")).chain(words.iter().cloned());
        let args = SumArgs::try_parse_from(words)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        if args.algorithm != SumAlgorithm::Crc32c {
            let words = "sum: as a job of its own it makes CRC-32C only; use `samite sum`";
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        let ToolCall { arguments, paths, is_recursive, .. } = args.call()?;
        Ok(ModuleCall { arguments, paths, is_recursive })
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        let algorithm: SumAlgorithm = decode(arguments)?;
        while let Some((_, piece)) = next_file_piece(input)? {
            let is_whole = piece.offset == 0 && piece.len == piece.size;
            if algorithm != SumAlgorithm::Crc32c && !is_whole {
                return Err(Error::new(ErrorKind::Internal, "the sum is of whole files"));
            }
            let (mut crc, mut sum) = (CrcPartial::default(), sequential(algorithm));
            loop {
                let bytes = input.read()?;
                if bytes.is_empty() {
                    break;
                }
                match algorithm {
                    SumAlgorithm::Crc32c => crc.join(&CrcPartial::of(bytes)),
                    SumAlgorithm::Xxh3 | SumAlgorithm::Sha256 => sum.update(bytes),
                }
            }
            match algorithm {
                SumAlgorithm::Crc32c => out.emit(&encode(&crc))?,
                SumAlgorithm::Xxh3 | SumAlgorithm::Sha256 => out.emit(sum.hex().as_bytes())?,
            }
        }
        Ok(())
    }

    fn merge(
        &self,
        arguments: &[u8],
        input: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8> {
        let algorithm: SumAlgorithm = decode(arguments)?;
        let files = files_of(input)?;
        let sums: Vec<String> = if algorithm == SumAlgorithm::Crc32c {
            let joined = join_by_file(files.len(), outputs, |sum: &mut CrcPartial, bytes| {
                sum.join(&decode(bytes)?);
                Ok(())
            })?;
            joined.iter().map(|sum| format!("{:08x}", sum.crc())).collect()
        } else {
            let none = sequential(algorithm).hex();
            let joined = join_by_file(files.len(), outputs, |sum: &mut String, bytes| {
                *sum = String::from_utf8_lossy(bytes).into_owned();
                Ok(())
            })?;
            let filled = |sum: String| if sum.is_empty() { none.clone() } else { sum };
            joined.into_iter().map(filled).collect()
        };
        for (file, sum) in files.iter().zip(sums) {
            write(out, format!("{sum}  ").as_bytes())?;
            write(out, &file.path)?;
            write(out, b"\n")?;
        }
        Ok(0)
    }
}
