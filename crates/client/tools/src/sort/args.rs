//! The words after `sort`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::{ArgAction, Parser};
use samite_types::{Error, ErrorKind, Result};

use super::{CheckModule, SortRule};
use crate::call::{ToolCall, checked_paths, encode};

/// The words after `sort`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "sort",
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true
)]
pub struct SortArgs {
    /// Compare by a key: F[.C][OPTS][,F[.C][OPTS]]; may be given several times
    #[arg(short = 'k', long = "key", value_name = "KEYDEF|FROM:TO")]
    keys: Vec<String>,
    /// Compare numbers
    #[arg(short = 'n', long)]
    numeric_sort: bool,
    /// Compare numbers with units, such as 2K
    #[arg(short = 'h', long)]
    human_numeric_sort: bool,
    /// Compare versions
    #[arg(short = 'V', long)]
    version_sort: bool,
    /// Small letters count as large ones
    #[arg(short = 'f', long)]
    ignore_case: bool,
    /// Blanks at the start do not count
    #[arg(short = 'b', long)]
    ignore_leading_blanks: bool,
    /// From the last to the first
    #[arg(short = 'r', long)]
    reverse: bool,
    /// Fields are separated by this character
    #[arg(short = 't', long, value_name = "CHAR", allow_hyphen_values = true)]
    field_separator: Option<OsString>,
    /// Lines whose keys are equal keep their order
    #[arg(short = 's', long)]
    stable: bool,
    /// Of equal lines, the first stays
    #[arg(short = 'u', long)]
    unique: bool,
    /// Do not sort: say whether the file is in order
    #[arg(short = 'c', long)]
    check: bool,
    /// The same, without words
    #[arg(short = 'C')]
    check_quietly: bool,
    /// Write the result to this file of the store; its name appears when it is whole
    #[arg(short = 'o', long, value_name = "PATH")]
    output: Option<OsString>,
    /// Directory of the store for what lies between; else that of the result, or the root
    #[arg(short = 'T', long, value_name = "PATH")]
    temporary_directory: Option<OsString>,
    /// Sort records of so many bytes by the bytes --key FROM:TO, and not lines
    #[arg(long, value_name = "BYTES")]
    record: Option<usize>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Files
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

/// What a sort is to do.
pub struct SortCall {
    /// Its input; the tool is that which checks.
    pub tool: ToolCall,
    /// The order.
    pub rule: SortRule,
    /// It only checks.
    pub is_check: bool,
    /// The result.
    pub output: Option<Vec<u8>>,
    /// The directory for what lies between, with a slash at its end.
    pub directory: Vec<u8>,
}

impl SortArgs {
    /// What they ask for.
    ///
    /// # Errors
    /// `Invalid`: a key or a path.
    pub fn call(&self) -> Result<SortCall> {
        let invalid = |words: &str| Error::new(ErrorKind::Invalid, words.to_owned());
        let rule = self.rule()?;
        rule.order()?;
        let paths: Vec<Vec<u8>> = self.paths.iter().cloned().map(OsString::into_vec).collect();
        let is_check = self.check || self.check_quietly;
        if is_check && paths.len() > 1 {
            return Err(invalid("extra operand: one file is checked at a time"));
        }
        if is_check && self.record.is_some() {
            return Err(invalid("records are not checked: use valsort"));
        }
        let mut tool = ToolCall::new(&CheckModule, checked_paths(paths)?);
        tool.arguments = encode(&(&rule, self.check_quietly));
        tool.trouble_code = 2;
        let output = self.output.clone().map(OsString::into_vec);
        if output.as_ref().is_some_and(|path| path.first() != Some(&b'/')) {
            return Err(invalid("-o: a path in the store starts at its root"));
        }
        let named = self.temporary_directory.clone().map(OsString::into_vec);
        let mut directory = named.unwrap_or_else(|| {
            let path = output.as_deref().unwrap_or(b"/");
            let split = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
            path[..split].to_vec()
        });
        if directory.last() != Some(&b'/') {
            directory.push(b'/');
        }
        Ok(SortCall { tool, rule, is_check, output, directory })
    }

    fn rule(&self) -> Result<SortRule> {
        let invalid = |words: &str| Error::new(ErrorKind::Invalid, words.to_owned());
        let record = match (self.record, self.keys.as_slice()) {
            (None, _) => None,
            (Some(len), []) => Some((len, 0, len)),
            (Some(len), [key]) => {
                let bounds = key.split_once(':');
                let bounds = bounds.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                let (start, end) =
                    bounds.ok_or_else(|| invalid("the key of records is FROM:TO, such as 0:10"))?;
                Some((len, start, end))
            }
            (Some(_), _) => return Err(invalid("records have one key")),
        };
        let has_text_options = self.numeric_sort
            || self.human_numeric_sort
            || self.version_sort
            || self.ignore_case
            || self.ignore_leading_blanks
            || self.reverse
            || self.unique
            || self.field_separator.is_some();
        if record.is_some() && has_text_options {
            return Err(invalid(
                "records are sorted by their bytes: of the options, only -k and -s",
            ));
        }
        let separator = match &self.field_separator {
            None => None,
            Some(text) => match text.as_encoded_bytes() {
                b"\\0" => Some(0),
                [byte] => Some(*byte),
                [] => return Err(invalid("empty tab")),
                _ => return Err(invalid("multi-character tab")),
            },
        };
        Ok(SortRule {
            keys: if record.is_some() { Vec::new() } else { self.keys.clone() },
            numeric: self.numeric_sort,
            human: self.human_numeric_sort,
            version: self.version_sort,
            folds_case: self.ignore_case,
            skips_blanks: self.ignore_leading_blanks,
            reverse: self.reverse,
            separator,
            stable: self.stable,
            unique: self.unique,
            record,
        })
    }
}
