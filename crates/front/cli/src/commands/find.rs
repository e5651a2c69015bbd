//! `samite find`: the names below directories that predicates hold for.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use samite_fs::{FileAttributes, FileKind};
use samite_types::{Clock, SystemClock};

use super::walk::{StoreWalk, WalkStep};
use crate::cluster::{ClusterFiles, ClusterTarget};
use crate::failure::{CommandFailure, ExitCode};
use crate::output::{CommandOutput, escaped};

const DAY: Duration = Duration::from_secs(86_400);

/// Print the names below directories for which predicates hold
///
/// Predicates are those of GNU find: `-name GLOB`, `-iname GLOB`, `-type f|d|l|p|s|b|c`, `-size [+-]N[bckMG]`, `-mtime [+-]DAYS`, `-newer PATH`, `-empty`, `-links [+-]N`, `-uid [+-]N`, `-gid [+-]N`, `-perm OCTAL`, `-true`, `-maxdepth N`, `-mindepth N`, `-print`, `-print0`; `!` or `-not` before one, `-o` between some. Names come in the order of path bytes of each directory; links are not followed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite find /data -name '*.csv' -size +1M
  samite find /data -type d -empty -print0")]
pub struct FindArgs {
    /// Directories, then predicates
    #[arg(
        value_name = "PATH|PREDICATE",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

/// Whether a number is more than, less than, or as said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumberTest {
    number: u64,
    order: std::cmp::Ordering,
}

impl NumberTest {
    fn parse(text: &str) -> Option<Self> {
        use std::cmp::Ordering;
        let (order, digits) = match text.as_bytes().first()? {
            b'+' => (Ordering::Greater, &text[1..]),
            b'-' => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        Some(Self { number: digits.parse().ok()?, order })
    }

    fn holds(self, number: u64) -> bool {
        number.cmp(&self.number) == self.order
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FindTest {
    Name { glob: Vec<u8>, folds_case: bool },
    Kind(FileKind),
    Size { unit: u64, number: NumberTest },
    Days(NumberTest),
    Newer(i64),
    Links(NumberTest),
    Uid(NumberTest),
    Gid(NumberTest),
    Mode(u32),
    Empty,
    True,
}

/// What is to be found, and how it is printed.
#[derive(Debug)]
struct FindRule {
    /// One of these alternatives: all of its tests hold, or do not where they are negated.
    alternatives: Vec<Vec<(bool, FindTest)>>,
    depths: (usize, usize),
    end: &'static [u8],
}

/// Finds.
pub fn run(args: &FindArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let words: Vec<Vec<u8>> = args.words.iter().cloned().map(OsString::into_vec).collect();
    let is_rule = |word: &Vec<u8>| word.starts_with(b"-") || word.as_slice() == b"!";
    let split = words.iter().position(is_rule).unwrap_or(words.len());
    let (paths, predicates) = words.split_at(split);
    if let Some(path) = paths.iter().find(|path| path.first() != Some(&b'/')) {
        let path = escaped(path);
        let words = format!("{path}: a path in the store starts at its root: /{path}");
        return Err(CommandFailure::usage(words));
    }
    if paths.is_empty() {
        return Err(CommandFailure::usage("find: name a directory of the store"));
    }
    let files = target.files()?;
    let rule = FindRule::parse(&files, predicates)?;
    let now = SystemClock.realtime();
    let mut out = CommandOutput::new();
    let mut walk = StoreWalk::new("find", &files, rule.depths.1);
    for path in paths {
        walk.tree(path, &mut |walk, step| {
            let WalkStep::Enter { path, name, attr, depth } = step else { return Ok(()) };
            if depth < rule.depths.0 || !rule.holds(walk, path, name, attr, now)? {
                return Ok(());
            }
            out.bytes(path)?;
            out.bytes(rule.end)
        })?;
    }
    out.finish()?;
    if walk.has_failed() { Err(CommandFailure::new(ExitCode::Failed, "")) } else { Ok(()) }
}

impl FindRule {
    fn parse(files: &ClusterFiles, words: &[Vec<u8>]) -> Result<Self, CommandFailure> {
        let mut rule = Self { alternatives: vec![Vec::new()], depths: (0, usize::MAX), end: b"\n" };
        let mut words = words.iter();
        let mut is_negated = false;
        while let Some(word) = words.next() {
            let name = String::from_utf8_lossy(word).into_owned();
            let mut value = || {
                let missing = || CommandFailure::usage(format!("find: {name} needs a value"));
                words.next().ok_or_else(missing)
            };
            let test = match name.as_str() {
                "!" | "-not" => {
                    is_negated = !is_negated;
                    continue;
                }
                "-a" | "-and" | "-print" => continue,
                "-print0" => {
                    rule.end = b"\0";
                    continue;
                }
                "-o" | "-or" => {
                    rule.alternatives.push(Vec::new());
                    continue;
                }
                "-maxdepth" => {
                    rule.depths.1 = number(&name, value()?)?;
                    continue;
                }
                "-mindepth" => {
                    rule.depths.0 = number(&name, value()?)?;
                    continue;
                }
                "-empty" => FindTest::Empty,
                "-true" => FindTest::True,
                _ => test(files, &name, value()?)?,
            };
            if let Some(last) = rule.alternatives.last_mut() {
                last.push((is_negated, test));
            }
            is_negated = false;
        }
        Ok(rule)
    }

    fn holds(
        &self,
        walk: &StoreWalk<'_>,
        path: &[u8],
        name: &[u8],
        attr: &FileAttributes,
        now: Duration,
    ) -> Result<bool, CommandFailure> {
        for alternative in &self.alternatives {
            let mut all = true;
            for (is_negated, test) in alternative {
                if test.holds(walk, path, name, attr, now)? == *is_negated {
                    all = false;
                    break;
                }
            }
            if all {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &[u8]) -> Result<T, CommandFailure> {
    let text = String::from_utf8_lossy(value);
    text.parse().map_err(|_| invalid(name, value))
}

fn invalid(name: &str, value: &[u8]) -> CommandFailure {
    CommandFailure::usage(format!("find: {name} {}: makes no sense", escaped(value)))
}

fn test(files: &ClusterFiles, name: &str, value: &[u8]) -> Result<FindTest, CommandFailure> {
    let text = String::from_utf8_lossy(value).into_owned();
    let count = || NumberTest::parse(&text).ok_or_else(|| invalid(name, value));
    Ok(match name {
        "-name" | "-iname" => {
            let folds_case = name == "-iname";
            let glob = if folds_case { value.to_ascii_lowercase() } else { value.to_vec() };
            FindTest::Name { glob, folds_case }
        }
        "-type" => FindTest::Kind(match value {
            b"f" => FileKind::File,
            b"d" => FileKind::Directory,
            b"l" => FileKind::Symlink,
            b"p" => FileKind::Fifo,
            b"s" => FileKind::Socket,
            b"b" => FileKind::BlockDevice,
            b"c" => FileKind::CharDevice,
            _ => return Err(invalid(name, value)),
        }),
        "-size" => {
            let (unit, digits) = match value.last() {
                Some(b'c') => (1, &text[..text.len() - 1]),
                Some(b'k') => (1 << 10, &text[..text.len() - 1]),
                Some(b'M') => (1 << 20, &text[..text.len() - 1]),
                Some(b'G') => (1 << 30, &text[..text.len() - 1]),
                Some(b'b') => (512, &text[..text.len() - 1]),
                _ => (512, &text[..]),
            };
            let number = NumberTest::parse(digits).ok_or_else(|| invalid(name, value))?;
            FindTest::Size { unit, number }
        }
        "-mtime" => FindTest::Days(count()?),
        "-newer" => FindTest::Newer(files.fs.stat(&files.context, value, true)?.mtime.0),
        "-links" => FindTest::Links(count()?),
        "-uid" => FindTest::Uid(count()?),
        "-gid" => FindTest::Gid(count()?),
        "-perm" => FindTest::Mode(u32::from_str_radix(&text, 8).map_err(|_| invalid(name, value))?),
        _ => return Err(CommandFailure::usage(format!("find: unknown predicate {name}"))),
    })
}

impl FindTest {
    fn holds(
        &self,
        walk: &StoreWalk<'_>,
        path: &[u8],
        name: &[u8],
        attr: &FileAttributes,
        now: Duration,
    ) -> Result<bool, CommandFailure> {
        Ok(match self {
            Self::Name { glob, folds_case } => {
                let name = if *folds_case { name.to_ascii_lowercase() } else { name.to_vec() };
                samite_tools::is_like(glob, &name)
            }
            Self::Kind(kind) => attr.kind == *kind,
            Self::Size { unit, number } => number.holds(attr.size.div_ceil(*unit)),
            Self::Days(number) => {
                let changed = Duration::from_nanos(u64::try_from(attr.mtime.0).unwrap_or(0));
                number.holds(now.saturating_sub(changed).as_secs() / DAY.as_secs())
            }
            Self::Newer(time) => attr.mtime.0 > *time,
            Self::Links(number) => number.holds(attr.nlink.into()),
            Self::Uid(number) => number.holds(attr.uid.into()),
            Self::Gid(number) => number.holds(attr.gid.into()),
            Self::Mode(mode) => attr.perm == *mode,
            Self::Empty if attr.kind == FileKind::Directory => walk.is_empty(path)?,
            Self::Empty => attr.kind == FileKind::File && attr.size == 0,
            Self::True => true,
        })
    }
}
