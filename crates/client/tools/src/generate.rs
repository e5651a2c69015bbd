//! `gen`: makes the records of the sort benchmark, each part of the file where it will lie.

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use samite_modules::gensort::{RECORD_LEN, RecordStyle, fill_range};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::TaskInput;
use samite_worker::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};
use serde::{Deserialize, Serialize};

use crate::call::{decode, encode};
use crate::pieces::next_file_piece;

/// Bytes made at a time.
const MADE_LEN: usize = 256 << 10;

/// The words after `gen`.
#[derive(Clone, Debug, Parser)]
#[command(name = "gen", disable_version_flag = true)]
pub struct GenArgs {
    /// Make records of printing characters, a line each
    #[arg(short = 'a', long)]
    ascii: bool,
    /// Number of the first record: other records for other numbers
    #[arg(short = 'b', long, value_name = "NUMBER", default_value_t = 0)]
    begin: u128,
    /// How many records, of 100 bytes each
    #[arg(value_name = "RECORDS")]
    records: u64,
    /// The file
    #[arg(value_name = "PATH")]
    path: OsString,
}

/// What tasks need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct GenOrder {
    is_ascii: bool,
    begin: u128,
    /// The file, under the name that it has while it is made.
    path: Vec<u8>,
    ino: u64,
}

impl GenArgs {
    /// The file that is to be.
    #[must_use]
    pub fn path(&self) -> &OsString {
        &self.path
    }

    /// Its length, in bytes.
    ///
    /// # Errors
    /// `TooLarge`: that is no length of a file.
    pub fn file_len(&self) -> Result<u64> {
        let len = self.records.checked_mul(RECORD_LEN as u64);
        let len = len.filter(|len| *len <= samite_fs::FILE_LEN_MAX);
        len.ok_or_else(|| Error::new(ErrorKind::TooLarge, "so many records fit no file"))
    }

    /// For the tasks that fill the file `path`, which has its length already.
    #[must_use]
    pub fn arguments(&self, path: &[u8], ino: u64) -> Vec<u8> {
        let (is_ascii, begin, path) = (self.ascii, self.begin, path.to_vec());
        encode(&GenOrder { is_ascii, begin, path, ino })
    }
}

/// The module `gen`.
#[derive(Debug)]
pub struct GenModule;

impl Module for GenModule {
    fn name(&self) -> &'static str {
        "gen"
    }

    fn about(&self) -> &'static str {
        "records of the sort benchmark (by `samite gen`)"
    }

    fn parse(&self, _: &[OsString]) -> Result<ModuleCall> {
        Err(Error::new(ErrorKind::Unsupported, "gen makes a file: use `samite gen`"))
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, _: &mut dyn TaskOutput) -> Result<()> {
        let order: GenOrder = decode(arguments)?;
        let style = if order.is_ascii { RecordStyle::Ascii } else { RecordStyle::Binary };
        let file = input.open_for_writing(&order.path, Some(order.ino))?;
        let mut made = vec![0; MADE_LEN];
        while let Some((_, piece)) = next_file_piece(input)? {
            let end = piece.offset + piece.len;
            let mut at = piece.offset;
            while at < end {
                let len = usize::try_from(end - at).unwrap_or(MADE_LEN).min(MADE_LEN);
                fill_range(style, order.begin, at, &mut made[..len]);
                file.write_at(&made[..len], at)?;
                at += len as u64;
            }
        }
        file.close()
    }

    fn merge(
        &self,
        _: &[u8],
        _: &JobInput,
        outputs: &mut dyn PieceOutputs,
        _: &mut dyn Write,
    ) -> Result<u8> {
        while outputs.next()?.is_some() {}
        Ok(0)
    }
}
