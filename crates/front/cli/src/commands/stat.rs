//! `samite stat`: all that is known of a file.

use samite_fs::{FileAttributes, FileKind, Timestamp};

use super::ls::{attr_json, kind_name};
use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;
use crate::output::{CommandOutput, complain, escaped, mode_text};
use crate::paths::{StorePath, store_path};

/// Show what is known of files
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite stat /data/part-1
  samite stat --json /data | python3 -m json.tool")]
pub struct StatArgs {
    /// Follow a symbolic link
    #[arg(short = 'L', long)]
    dereference: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Files in the store
    #[arg(required = true, value_name = "PATH", value_parser = store_path())]
    paths: Vec<StorePath>,
}

/// Shows them.
pub fn run(args: &StatArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    let (fs, context) = (&files.fs, &files.context);
    let mut out = CommandOutput::new();
    let mut first = None;
    for path in &args.paths {
        let attr = match fs.stat(context, path.bytes(), args.dereference) {
            Ok(attr) => attr,
            Err(error) => {
                let failure = CommandFailure::from(error);
                complain(&failure.message);
                first.get_or_insert(failure.code);
                continue;
            }
        };
        let link_target = if attr.kind == FileKind::Symlink {
            Some(fs.readlink(context, path.bytes())?)
        } else {
            None
        };
        let has_semantics = matches!(attr.kind, FileKind::Directory | FileKind::File);
        let semantics = has_semantics.then(|| fs.semantics(context, path.bytes())).transpose()?;
        if args.json {
            let mut json = attr_json(path.bytes(), &attr, link_target.as_deref());
            if let Some(semantics) = semantics {
                json["semantics"] = semantics.name().into();
            }
            out.json(&json)?;
            continue;
        }
        out.bytes(b"  path: ")?;
        out.name(path.bytes())?;
        if let Some(link_target) = &link_target {
            out.line(format!(" -> {}", escaped(link_target)))?;
        } else {
            out.line("")?;
        }
        out.line(format!(
            "  kind: {}   inode: {}   links: {}",
            kind_name(attr.kind),
            attr.ino,
            attr.nlink
        ))?;
        out.line(format!(
            "  size: {}   blocks: {}   unit: {}",
            attr.size, attr.blocks, attr.block_len
        ))?;
        out.line(format!(
            "  mode: {:04o} {}   uid: {}   gid: {}",
            attr.perm,
            mode_text(attr.mode()),
            attr.uid,
            attr.gid
        ))?;
        if let Some(semantics) = semantics {
            out.line(format!("semantics: {semantics}"))?;
        }
        for (label, time) in times(&attr) {
            out.line(format!("{label}: {}", time_text(time)))?;
        }
    }
    out.finish()?;
    first.map_or(Ok(()), |code| Err(CommandFailure::new(code, "")))
}

fn times(attr: &FileAttributes) -> [(&'static str, Timestamp); 4] {
    [("access", attr.atime), ("modify", attr.mtime), ("change", attr.ctime), (" birth", attr.btime)]
}

/// UTC with nanoseconds.
fn time_text(time: Timestamp) -> String {
    let text = samite_types::utc(time.seconds());
    format!("{}.{:09}Z", text.trim_end_matches('Z'), time.nanoseconds())
}
