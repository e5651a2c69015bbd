//! The words after `grep`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::{ArgAction, Parser};
use samite_modules::grep::{FileGlobs, GrepOptions, GrepReport, PatternSyntax, patterns_of_file};
use samite_types::{Error, ErrorKind, Result};

use super::{GrepModule, GrepOrder};
use crate::call::{ToolCall, checked_paths, encode};

/// Print the lines of files that match patterns
///
/// Options, output and exit codes are those of GNU grep under LC_ALL=C. The search runs where the files lie.
/// Patterns with back-references are refused. A file with a NUL in its first 32 KiB is no text.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "grep",
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    after_help = "\
Examples:
  samite grep -n error /logs/today
  samite grep -rc --include='*.rs' 'fn main' /src
  samite grep -A2 -E 'warn|error' /logs/a /logs/b"
)]
pub struct GrepArgs {
    /// Patterns are extended regular expressions
    #[arg(short = 'E', long, overrides_with_all = ["fixed_strings", "basic_regexp"])]
    extended_regexp: bool,
    /// Patterns are strings
    #[arg(short = 'F', long, overrides_with_all = ["extended_regexp", "basic_regexp"])]
    fixed_strings: bool,
    /// Patterns are basic regular expressions, as without an option
    #[arg(short = 'G', long, overrides_with_all = ["extended_regexp", "fixed_strings"])]
    basic_regexp: bool,
    /// A pattern; may be given several times
    #[arg(short = 'e', long = "regexp", value_name = "PATTERN", allow_hyphen_values = true)]
    patterns: Vec<OsString>,
    /// Patterns from a file of this host, one a line
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pattern_files: Vec<PathBuf>,
    /// Large and small letters are the same
    #[arg(short = 'i', short_alias = 'y', long, overrides_with = "no_ignore_case")]
    ignore_case: bool,
    /// Large and small letters are not the same
    #[arg(long, overrides_with = "ignore_case")]
    no_ignore_case: bool,
    /// Lines that do not match
    #[arg(short = 'v', long)]
    invert_match: bool,
    /// Only whole words match
    #[arg(short = 'w', long)]
    word_regexp: bool,
    /// Only whole lines match
    #[arg(short = 'x', long)]
    line_regexp: bool,
    /// Print how many lines are selected
    #[arg(short = 'c', long)]
    count: bool,
    /// Print the names of files with a selected line
    #[arg(short = 'l', long, overrides_with = "files_without_match")]
    files_with_matches: bool,
    /// Print the names of files without a selected line
    #[arg(short = 'L', long, overrides_with = "files_with_matches")]
    files_without_match: bool,
    /// Print only the parts of lines that match
    #[arg(short = 'o', long)]
    only_matching: bool,
    /// Print nothing, and end with the first selected line
    #[arg(short = 'q', long, alias = "silent")]
    quiet: bool,
    /// Say nothing of files that cannot be read
    #[arg(short = 's', long)]
    no_messages: bool,
    /// Stop reading a file after so many selected lines
    #[arg(short = 'm', long, value_name = "NUM", value_parser = parse_most, allow_negative_numbers = true)]
    max_count: Option<MostLines>,
    /// Print the offset of what is printed
    #[arg(short = 'b', long)]
    byte_offset: bool,
    /// Print the numbers of lines
    #[arg(short = 'n', long)]
    line_number: bool,
    /// Print the names of files, as with several
    #[arg(short = 'H', long, overrides_with = "no_filename")]
    with_filename: bool,
    /// Print no names of files
    #[arg(short = 'h', long, overrides_with = "with_filename")]
    no_filename: bool,
    /// Lines to print after a selected one
    #[arg(short = 'A', long, value_name = "NUM", value_parser = parse_context)]
    after_context: Option<u64>,
    /// Lines to print before a selected one
    #[arg(short = 'B', long, value_name = "NUM", value_parser = parse_context)]
    before_context: Option<u64>,
    /// Lines to print before and after a selected one
    #[arg(short = 'C', long, value_name = "NUM", value_parser = parse_context)]
    context: Option<u64>,
    /// Read every file as text
    #[arg(short = 'a', long)]
    text: bool,
    /// Search the files below directories
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Only files whose names match
    #[arg(long, value_name = "GLOB")]
    include: Vec<OsString>,
    /// No files whose names match
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Nothing is ever coloured
    #[arg(long, alias = "colour", value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "auto", value_parser = ["never", "auto"])]
    color: Option<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// The pattern, unless given by -e or -f; then files and directories
    #[arg(value_name = "PATTERN_OR_PATH")]
    words: Vec<OsString>,
}

/// As `-m` has it: less than 0 is no limit.
#[derive(Clone, Copy, Debug)]
struct MostLines(Option<u64>);

fn parse_most(text: &str) -> std::result::Result<MostLines, String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let count = whole_number(digits).ok_or("invalid max count")?;
    Ok(MostLines(if text.starts_with('-') { None } else { Some(count) }))
}

fn parse_context(text: &str) -> std::result::Result<u64, String> {
    whole_number(text).ok_or_else(|| format!("{text}: invalid context length argument"))
}

/// What is too large is the largest there is.
fn whole_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

impl GrepArgs {
    /// Reads words.
    ///
    /// # Errors
    /// `Invalid`: they make no sense.
    pub fn of_words(words: &[OsString]) -> Result<Self> {
        let words = std::iter::once(OsString::from("grep")).chain(words.iter().cloned());
        Self::try_parse_from(words)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
    }

    /// What they ask for.
    ///
    /// # Errors
    /// `Invalid`: a pattern, or no path; `NotFound`, `Io`: of a file with patterns.
    pub fn call(&self) -> Result<ToolCall> {
        let invalid = |words: &str| Error::new(ErrorKind::Invalid, words.to_owned());
        let mut words = self.words.iter().cloned().map(OsString::into_vec);
        let mut patterns: Vec<Vec<u8>> =
            self.patterns.iter().cloned().map(OsString::into_vec).collect();
        for path in &self.pattern_files {
            let text = std::fs::read(path).map_err(|error| {
                let words = format!("{}: {error}", path.display());
                Error::new(ErrorKind::Io, words)
            })?;
            patterns.extend(patterns_of_file(&text).map(<[u8]>::to_vec));
        }
        if self.patterns.is_empty() && self.pattern_files.is_empty() {
            patterns.push(words.next().ok_or_else(|| invalid("name a pattern, and a file"))?);
        }
        let paths = checked_paths(words.collect())?;
        let paths: Vec<Vec<u8>> = paths.into_iter().map(|path| self.trimmed(path)).collect();
        let has_names = self.recursive || paths.len() > 1;
        let options = self.options(has_names && !self.no_filename || self.with_filename);
        let order = GrepOrder { patterns, options, is_text: self.text };
        // Patterns are refused here, not in tasks.
        order.matcher()?;
        let globs = self.globs();
        Ok(ToolCall {
            arguments: encode(&order),
            is_recursive: self.recursive,
            keeps_directories: true,
            globs,
            is_silent: self.no_messages,
            trouble_code: 2,
            success_stands: self.quiet,
            unneeded: order.can_end_early().then_some(GrepModule::unneeded),
            ..ToolCall::new(&GrepModule, paths)
        })
    }

    /// Directories are named without slashes at their ends, as what is found in them is.
    fn trimmed(&self, mut path: Vec<u8>) -> Vec<u8> {
        while self.recursive && path.ends_with(b"//") {
            path.pop();
        }
        path
    }

    fn options(&self, names: bool) -> GrepOptions {
        let report = match self {
            Self { quiet: true, .. } => GrepReport::Quiet,
            Self { files_with_matches: true, .. } => GrepReport::NamesWith,
            Self { files_without_match: true, .. } => GrepReport::NamesWithout,
            Self { count: true, .. } => GrepReport::Count,
            Self { only_matching: true, .. } => GrepReport::Parts,
            _ => GrepReport::Lines,
        };
        GrepOptions {
            syntax: match self {
                Self { extended_regexp: true, .. } => PatternSyntax::Extended,
                Self { fixed_strings: true, .. } => PatternSyntax::Fixed,
                _ => PatternSyntax::Basic,
            },
            ignore_case: self.ignore_case,
            invert: self.invert_match,
            words: self.word_regexp,
            whole_lines: self.line_regexp,
            report,
            max_count: self.max_count.and_then(|most| most.0),
            before: self.before_context.or(self.context),
            after: self.after_context.or(self.context),
            line_numbers: self.line_number,
            byte_offsets: self.byte_offset,
            names,
        }
    }

    /// Include and exclude in one order: that of the command line is not known between the two.
    fn globs(&self) -> FileGlobs {
        let mut globs = FileGlobs::default();
        for (includes, list) in [(true, &self.include), (false, &self.exclude)] {
            for glob in list {
                globs.add(includes, glob.as_encoded_bytes());
            }
        }
        globs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &str) -> Result<(GrepOrder, ToolCall)> {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let call = GrepArgs::of_words(&words)?.call()?;
        Ok((crate::call::decode(&call.arguments)?, call))
    }

    #[test]
    fn words_are_read_as_grep_reads_them() {
        let (order, tool) = call("-nc -A2 -C 1 -E -F foo /a /b").unwrap();
        assert_eq!(order.patterns, [b"foo"]);
        assert_eq!(order.options.syntax, PatternSyntax::Fixed);
        assert_eq!((order.options.after, order.options.before), (Some(2), Some(1)));
        assert_eq!(order.options.report, GrepReport::Count);
        assert!(order.options.names && order.options.line_numbers);
        assert_eq!(tool.paths, [b"/a", b"/b"]);
        let (order, _) = call("-e a -e -b /a -h -H -n -n -q -l").unwrap();
        assert_eq!(order.patterns, [&b"a"[..], b"-b"]);
        assert_eq!((order.options.names, order.options.report), (true, GrepReport::Quiet));
        let (order, tool) = call("-r -m -1 foo //").unwrap();
        assert_eq!((order.options.max_count, tool.paths), (None, vec![b"/".to_vec()]));
        let (order, _) = call("-m 99999999999999999999 foo /a").unwrap();
        assert_eq!(order.options.max_count, Some(u64::MAX));
    }

    #[test]
    fn words_without_sense_are_refused() {
        for words in
            ["foo", "foo a", "-A x foo /a", "-e", "\\( /a", "\\(a\\)\\1 /a", "--color=always a /a"]
        {
            assert!(call(words).is_err(), "{words}");
        }
    }
}
