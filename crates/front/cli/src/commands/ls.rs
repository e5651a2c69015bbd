//! `samite ls`: the entries of a directory.

use samite_fs::{DirEntry, FileAttributes, FileKind};
use samite_stage::join;
use samite_types::{ErrorKind, utc};

use crate::cluster::{ClusterFiles, ClusterTarget};
use crate::failure::{CommandFailure, ExitCode};
use crate::output::{CommandOutput, complain, mode_text};
use crate::paths::{StorePath, store_path};

/// List directories and files of the store
///
/// One name a line, sorted by bytes. Names go out as they are, except onto a terminal, where control characters are escaped.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite ls /data
  samite ls -lR /data
  samite ls --json /data | jq .size")]
pub struct LsArgs {
    /// Mode, links, owner, group, size and time of change, too
    #[arg(short)]
    long: bool,
    /// Names that begin with a dot, too
    #[arg(short, long)]
    all: bool,
    /// What is in directories below, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// The directory itself, not what is in it
    #[arg(short, long)]
    directory: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Directories or files
    #[arg(value_name = "PATH", default_value = "/", value_parser = store_path())]
    paths: Vec<StorePath>,
}

/// Lists.
pub fn run(args: &LsArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let mut listing =
        LsListing { args, files: target.files()?, out: CommandOutput::new(), worst: None };
    let titled = args.recursive || args.paths.len() > 1;
    for (number, path) in args.paths.iter().enumerate() {
        match listing.files.fs.stat(&listing.files.context, path.bytes(), false) {
            Ok(attr) if attr.kind == FileKind::Directory && !args.directory => {
                listing.tree(path.bytes(), titled, number == 0)?;
            }
            Ok(attr) => listing.entry(path.bytes(), path.bytes(), &attr)?,
            Err(error) => listing.failed(error)?,
        }
    }
    listing.out.finish()?;
    listing.worst.map_or(Ok(()), |code| Err(CommandFailure::new(code, "")))
}

struct LsListing<'a> {
    args: &'a LsArgs,
    files: ClusterFiles,
    out: CommandOutput,
    worst: Option<ExitCode>,
}

impl LsListing<'_> {
    fn failed(&mut self, error: samite_types::Error) -> Result<(), CommandFailure> {
        let failure = CommandFailure::from(error);
        if failure.code == ExitCode::Unreachable {
            // Each further entry would wait for the node again.
            return Err(failure);
        }
        complain(&failure.message);
        self.worst.get_or_insert(failure.code);
        Ok(())
    }

    fn tree(&mut self, root: &[u8], titled: bool, first: bool) -> Result<(), CommandFailure> {
        let mut waiting = vec![root.to_vec()];
        let mut first = first;
        while let Some(dir) = waiting.pop() {
            let mut entries = Vec::new();
            if let Err(error) = self.read(&dir, &mut entries) {
                let is_in_part = error.kind() == ErrorKind::Lost;
                self.failed(error)?;
                if !is_in_part {
                    continue;
                }
            }
            if titled && !self.args.json {
                self.out.bytes(if first { b"" } else { b"\n" })?;
                self.out.name(&dir)?;
                self.out.bytes(b":\n")?;
            }
            first = false;
            let mut below = Vec::new();
            for entry in entries {
                let path = join(&dir, &entry.name);
                if self.args.long || self.args.json {
                    // The listing's own attributes may lag behind a writer.
                    match self.files.fs.stat(&self.files.context, &path, false) {
                        Ok(attr) => self.entry(&entry.name, &path, &attr)?,
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => self.failed(error)?,
                    }
                } else {
                    self.out.name(&entry.name)?;
                    self.out.bytes(b"\n")?;
                }
                if self.args.recursive && entry.kind == FileKind::Directory {
                    below.push(path);
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// The entries of a directory; also the entries that are left of one of which some may be lost.
    fn read(&self, dir: &[u8], entries: &mut Vec<DirEntry>) -> samite_types::Result<()> {
        let mut handle = self.files.fs.read_dir(&self.files.context, dir)?;
        let end = loop {
            let entry = match handle.next_entry() {
                Ok(Some(entry)) => entry,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let hidden = entry.name.starts_with(b".");
            if !matches!(&*entry.name, b"." | b"..") && (!hidden || self.args.all) {
                entries.push(entry);
            }
        };
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        end.map_err(|error| error.context(format_args!("list {:?}", String::from_utf8_lossy(dir))))
    }

    fn entry(
        &mut self,
        name: &[u8],
        path: &[u8],
        attr: &FileAttributes,
    ) -> Result<(), CommandFailure> {
        let link_target = if attr.kind == FileKind::Symlink && (self.args.long || self.args.json) {
            self.files.fs.readlink(&self.files.context, path).ok()
        } else {
            None
        };
        if self.args.json {
            return self.out.json(&attr_json(path, attr, link_target.as_deref()));
        }
        if self.args.long {
            self.out.bytes(
                format!(
                    "{} {:>3} {:>5} {:>5} {:>12} {} ",
                    mode_text(attr.mode()),
                    attr.nlink,
                    attr.uid,
                    attr.gid,
                    attr.size,
                    utc(attr.mtime.seconds()),
                )
                .as_bytes(),
            )?;
        }
        self.out.name(name)?;
        if let Some(link_target) = link_target {
            self.out.bytes(b" -> ")?;
            self.out.name(&link_target)?;
        }
        self.out.bytes(b"\n")
    }
}

/// A file as JSON: names as text, and as hexadecimal bytes when they are not UTF-8.
pub fn attr_json(
    path: &[u8],
    attr: &FileAttributes,
    link_target: Option<&[u8]>,
) -> serde_json::Value {
    let mut value = serde_json::json!({
        "path": String::from_utf8_lossy(path),
        "kind": kind_name(attr.kind),
        "ino": attr.ino,
        "mode": format!("{:04o}", attr.perm),
        "nlink": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "blocks": attr.blocks,
        "atime_ns": attr.atime.0,
        "mtime_ns": attr.mtime.0,
        "ctime_ns": attr.ctime.0,
        "btime_ns": attr.btime.0,
    });
    if std::str::from_utf8(path).is_err() {
        value["path_hex"] = hex(path).into();
    }
    if let Some(link_target) = link_target {
        value["target"] = String::from_utf8_lossy(link_target).into();
    }
    value
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A kind in words.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}
