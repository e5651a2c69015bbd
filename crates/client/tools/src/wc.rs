//! `wc`: lines, words and bytes of files, or of the values of a dataset.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use clap::Parser;
use samite_modules::wc::{WcCounts, WcFields, WcPartial, number_width};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::{InputPiece, TaskInput};
use samite_worker::{JobInput, Module, ModuleCall, PieceOutputs, TaskOutput};
use serde::{Deserialize, Serialize};

use crate::call::{ToolCall, checked_paths, decode, encode};
use crate::pieces::{join_by_file, write};

/// The words after `wc`.
#[derive(Clone, Debug, Parser)]
#[command(name = "wc", disable_version_flag = true, args_override_self = true)]
pub struct WcArgs {
    /// Print the bytes
    #[arg(short = 'c', long)]
    bytes: bool,
    /// Print the characters, which are bytes under LC_ALL=C
    #[arg(short = 'm', long)]
    chars: bool,
    /// Print the lines
    #[arg(short = 'l', long)]
    lines: bool,
    /// Print the words
    #[arg(short = 'w', long)]
    words: bool,
    /// Print the columns of the longest line
    #[arg(short = 'L', long)]
    max_line_length: bool,
    /// Count the files below directories
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Files
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

/// What is counted, and of how many that were named.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct WcOrder {
    /// Lines, words, characters, bytes, longest.
    fields: [bool; 5],
    named: usize,
}

impl WcOrder {
    /// Nothing is what wc counts where nothing is said.
    fn read(arguments: &[u8]) -> Result<Self> {
        if arguments.is_empty() {
            return Ok(Self { fields: [true, true, false, true, false], named: 1 });
        }
        decode(arguments)
    }

    fn fields(self) -> WcFields {
        let [lines, words, chars, bytes, longest] = self.fields;
        WcFields { lines, words, chars, bytes, longest }
    }

    /// The lengths of the pieces say it all.
    fn is_length(self) -> bool {
        let [lines, words, _, _, longest] = self.fields;
        !lines && !words && !longest
    }
}

impl WcArgs {
    /// What they ask for.
    ///
    /// # Errors
    /// `Invalid`: a path.
    pub fn call(&self) -> Result<ToolCall> {
        let paths = self.paths.iter().cloned().map(OsString::into_vec).collect();
        let call = self.order_of(checked_paths(paths)?);
        Ok(call)
    }

    fn order_of(&self, paths: Vec<Vec<u8>>) -> ToolCall {
        let mut fields = [self.lines, self.words, self.chars, self.bytes, self.max_line_length];
        if fields == [false; 5] {
            fields = [true, true, false, true, false];
        }
        let order = WcOrder { fields, named: paths.len() };
        ToolCall {
            arguments: encode(&order),
            is_recursive: self.recursive,
            keeps_directories: true,
            ..ToolCall::new(&WcModule, paths)
        }
    }
}

/// The module `wc`.
#[derive(Debug)]
pub struct WcModule;

impl Module for WcModule {
    fn name(&self) -> &'static str {
        "wc"
    }

    fn about(&self) -> &'static str {
        "count lines, words and bytes of files, or of the values of a dataset"
    }

    fn parse(&self, words: &[OsString]) -> Result<ModuleCall> {
        let words = std::iter::once(OsString::from("wc")).chain(words.iter().cloned());
        let args = WcArgs::try_parse_from(words)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        let paths = args.paths.iter().cloned().map(OsString::into_vec).collect();
        let ToolCall { arguments, paths, is_recursive, .. } = args.order_of(paths);
        Ok(ModuleCall { arguments, paths, is_recursive })
    }

    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()> {
        let order = WcOrder::read(arguments)?;
        let fields = order.fields();
        while let Some(piece) = input.next_piece()? {
            let mut counts = WcPartial::default();
            match piece {
                InputPiece::File { len, .. } if order.is_length() => {
                    out.emit(&encode(&len))?;
                    continue;
                }
                InputPiece::File { .. } => loop {
                    let bytes = input.read()?;
                    if bytes.is_empty() {
                        break;
                    }
                    counts.join(&WcPartial::of(bytes, fields));
                },
                InputPiece::Partition => {
                    let mut sum = WcCounts::default();
                    input.records(&mut |record| {
                        sum.add(&WcPartial::of(record.value, fields).counts());
                        Ok(())
                    })?;
                    let WcCounts { lines, words, bytes, longest } = sum;
                    out.emit(&encode(&[lines, words, bytes, longest]))?;
                    continue;
                }
            }
            out.emit(&encode(&counts))?;
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
        let order = WcOrder::read(arguments)?;
        let fields = order.fields();
        let files = match input {
            JobInput::Files(files) => files,
            JobInput::Records(dataset) => {
                let sum = sum_of_records(outputs)?;
                let line = sum.line(fields, number_width(fields, &[None]), Some(dataset));
                write(out, format!("{line}\n").as_bytes())?;
                return Ok(0);
            }
        };
        let counts = if order.is_length() {
            let lens = join_by_file(files.len(), outputs, |sum: &mut u64, bytes| {
                *sum += decode::<u64>(bytes)?;
                Ok(())
            })?;
            lens.iter().map(|bytes| WcCounts { bytes: *bytes, ..WcCounts::default() }).collect()
        } else {
            let joined = join_by_file(files.len(), outputs, |sum: &mut WcPartial, bytes| {
                sum.join(&decode(bytes)?);
                Ok(())
            })?;
            joined.iter().map(WcPartial::counts).collect::<Vec<_>>()
        };
        let size = |file: &samite_worker::JobFile| (!file.is_directory).then_some(file.size);
        let mut sizes: Vec<Option<u64>> = files.iter().map(size).collect();
        if sizes.len() == 1 && order.named > 1 {
            // A file that was named and is not there makes it more than one, too.
            sizes.push(Some(0));
        }
        let width = number_width(fields, &sizes);
        let mut total = WcCounts::default();
        for (file, counts) in files.iter().zip(&counts) {
            total.add(counts);
            write(out, counts.line(fields, width, None).as_bytes())?;
            write(out, b" ")?;
            write(out, &file.path)?;
            write(out, b"\n")?;
        }
        if files.len() > 1 || order.named > 1 {
            write(out, format!("{}\n", total.line(fields, width, Some("total"))).as_bytes())?;
        }
        Ok(0)
    }
}

fn sum_of_records(outputs: &mut dyn PieceOutputs) -> Result<WcCounts> {
    let mut sum = WcCounts::default();
    while let Some(piece) = outputs.next()? {
        let [lines, words, bytes, longest] = decode(piece.bytes)?;
        sum.add(&WcCounts { lines, words, bytes, longest });
    }
    Ok(sum)
}
