//! `samite du`: the space that trees take.

use std::collections::HashSet;

use samite_fs::{FileAttributes, FileKind, STAT_BLOCK_LEN};

use super::walk::{StoreWalk, WalkStep};
use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::CommandOutput;
use crate::paths::{StorePath, store_path};

/// Print the space that directories take
///
/// In KiB, each directory behind those below it, as GNU du; a file with several names counts once. The copies of mirrors do not count.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  samite du -s /data\n  samite du -ab /data"
)]
pub struct DuArgs {
    /// Files, too
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// Only what is named
    #[arg(short, long)]
    summarize: bool,
    /// A line with the sum of all that is named
    #[arg(short = 'c', long)]
    total: bool,
    /// The lengths of files in bytes, and not the space that they take
    #[arg(short, long)]
    bytes: bool,
    /// Sizes with units
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Only directories so deep below what is named
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Directories or files
    #[arg(value_name = "PATH", default_value = "/", value_parser = store_path())]
    paths: Vec<StorePath>,
}

impl DuArgs {
    fn size(&self, attr: &FileAttributes) -> u64 {
        if self.bytes { attr.size } else { attr.blocks * STAT_BLOCK_LEN }
    }

    fn line(&self, out: &mut CommandOutput, size: u64, path: &[u8]) -> Result<(), CommandFailure> {
        let text = match (self.human_readable, self.bytes) {
            (true, _) => with_unit(size),
            (false, true) => size.to_string(),
            (false, false) => size.div_ceil(1024).to_string(),
        };
        out.bytes(text.as_bytes())?;
        out.bytes(b"\t")?;
        out.name(path)?;
        out.bytes(b"\n")
    }
}

/// A size as du has it: rounded up, with a digit behind the point below 10.
fn with_unit(size: u64) -> String {
    if size < 1024 {
        return size.to_string();
    }
    let mut shift = 10;
    while shift < 60 && size.div_ceil(1 << shift) >= 1024 {
        shift += 10;
    }
    let unit = char::from(b"KMGTPE"[shift / 10 - 1]);
    let tenths = (u128::from(size) * 10).div_ceil(1 << shift);
    match tenths {
        ..100 => format!("{}.{}{unit}", tenths / 10, tenths % 10),
        _ => format!("{}{unit}", size.div_ceil(1 << shift)),
    }
}

/// Adds up.
pub fn run(args: &DuArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    let mut out = CommandOutput::new();
    let mut walk = StoreWalk::new("du", &files, usize::MAX);
    let mut known = HashSet::new();
    let mut total = 0;
    let deepest = if args.summarize { 0 } else { args.max_depth.unwrap_or(usize::MAX) };
    for path in &args.paths {
        // The sums of the directories in which the walk is.
        let mut sums: Vec<u64> = Vec::new();
        walk.tree(path.bytes(), &mut |_, step| match step {
            WalkStep::Enter { path, attr, depth, .. } => {
                let is_new =
                    attr.nlink < 2 || attr.kind == FileKind::Directory || known.insert(attr.ino);
                let size = if is_new { args.size(attr) } else { 0 };
                if attr.kind == FileKind::Directory {
                    sums.push(size);
                    return Ok(());
                }
                match sums.last_mut() {
                    Some(sum) => *sum += size,
                    None => total += size,
                }
                if is_new && depth <= deepest && (args.all || depth == 0) {
                    args.line(&mut out, size, path)?;
                }
                Ok(())
            }
            WalkStep::Leave { path, depth, .. } => {
                let sum = sums.pop().unwrap_or(0);
                match sums.last_mut() {
                    Some(above) => *above += sum,
                    None => total += sum,
                }
                if depth <= deepest { args.line(&mut out, sum, path) } else { Ok(()) }
            }
        })?;
    }
    if args.total {
        args.line(&mut out, total, b"total")?;
    }
    out.finish()?;
    if walk.has_failed() { Err(CommandFailure::new(ExitCode::Failed, "")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_rounded_up() {
        let cases = [(0, "0"), (1023, "1023"), (1024, "1.0K"), (1025, "1.1K"), (10 << 10, "10K")];
        for (size, text) in cases.into_iter().chain([((1 << 20) - 1, "1.0M"), (5 << 30, "5.0G")]) {
            assert_eq!(super::with_unit(size), text);
        }
    }
}
