//! `samite cp`, `mv`, `rm` and `mkdir`: names and trees within the store.

use samite_fs::{FileKind, RenameFlags};
use samite_stage::{CopyOptions, CopyProgress, CopySummary, StoreTree, copy_tree, join};
use samite_types::ErrorKind;

use super::data::into_directory;
use crate::cluster::{ClusterFiles, ClusterTarget};
use crate::failure::{CommandFailure, ExitCode, IoContext};
use crate::output::complain;
use crate::paths::{StorePath, store_path};

/// Copy files within the store
///
/// Modes, times and links are kept. Into an existing directory a file or tree goes under its own name.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite cp /data/a /data/b
  samite cp -r /data /backup")]
pub struct CpArgs {
    /// Copy directories and what is in them
    #[arg(short, short_alias = 'R', long)]
    recursive: bool,
    /// What to copy, then where to
    #[arg(required = true, num_args = 2.., value_name = "PATH", value_parser = store_path())]
    paths: Vec<StorePath>,
}

/// Copies.
pub fn cp(args: &CpArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    each_into(&files, &args.paths, |from, to| copy_one(&files, args.recursive, from, to))
}

fn copy_one(
    files: &ClusterFiles,
    recursive: bool,
    from: &StorePath,
    to: &StorePath,
) -> Result<(), CommandFailure> {
    let (fs, context) = (&files.fs, &files.context);
    // A symbolic link given by name means what it points to, as with cp.
    let source = fs.canonicalize(context, from.bytes())?;
    let attr = fs.stat(context, &source, true)?;
    if attr.kind == FileKind::Directory && !recursive {
        return Err(CommandFailure::failed(format!("{}: is a directory; use -r", from.show())));
    }
    if let Ok(there) = fs.stat(context, to.bytes(), true)
        && there.ino == attr.ino
    {
        let message = format!("{} and {} are the same file", from.show(), to.show());
        return Err(CommandFailure::failed(message));
    }
    if attr.kind == FileKind::Directory && is_within(files, to, attr.ino) {
        let message = format!("{}: cannot be copied into itself ({})", from.show(), to.show());
        return Err(CommandFailure::failed(message));
    }
    let tree = StoreTree::new(fs.clone(), context.clone());
    let options = CopyOptions { resume: false, ..CopyOptions::default() };
    let summary = copy_tree(
        (&tree, &source),
        (&tree, to.bytes()),
        &options,
        &CopyProgress::default(),
        &|error| complain(error.message()),
    )?;
    match summary {
        CopySummary { stopped_by: Some(_), .. } => Err(super::stage::stopped(&summary)),
        CopySummary { given_up: true, .. } => {
            Err(CommandFailure::new(ExitCode::Unreachable, "given up: a node cannot be reached"))
        }
        CopySummary { errors: 0, .. } => Ok(()),
        _ => Err(CommandFailure::reported()),
    }
}

/// Whether the directory with inode `ino` lies on the way to `path`.
fn is_within(files: &ClusterFiles, path: &StorePath, ino: u64) -> bool {
    path.prefixes().iter().any(|prefix| {
        files.fs.stat(&files.context, *prefix, true).is_ok_and(|attr| attr.ino == ino)
    })
}

/// Rename files and directories within the store
///
/// Into an existing directory a file or tree goes under its own name.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite mv /draft /final
  samite mv /a /b /archive")]
pub struct MvArgs {
    /// Leave what exists under the new name
    #[arg(short, long)]
    no_clobber: bool,
    /// What to rename, then what to
    #[arg(required = true, num_args = 2.., value_name = "PATH", value_parser = store_path())]
    paths: Vec<StorePath>,
}

/// Renames.
pub fn mv(args: &MvArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    let flags = RenameFlags { no_replace: args.no_clobber, ..RenameFlags::default() };
    each_into(&files, &args.paths, |from, to| {
        Ok(files.fs.rename(&files.context, from.bytes(), to.bytes(), flags)?)
    })
}

/// Carries out `act` for each path but the last, which says where to. Failures are told; the first one's code counts.
fn each_into(
    files: &ClusterFiles,
    paths: &[StorePath],
    act: impl Fn(&StorePath, &StorePath) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let Some((to, sources)) = paths.split_last() else {
        return Err(CommandFailure::usage("no paths given"));
    };
    if let [from] = sources {
        return act(from, &into_directory(files, to, Some(from.base()))?);
    }
    let attr = files.fs.stat(&files.context, to.bytes(), true);
    if !attr.is_ok_and(|attr| attr.kind == FileKind::Directory) {
        return Err(CommandFailure::failed(format!("{}: is not a directory", to.show())));
    }
    each(sources, |from| act(from, &StorePath(join(to.bytes(), from.base()))))
}

/// Carries out `act` for each path. Failures are told; the first one's code counts.
fn each(
    paths: &[StorePath],
    act: impl Fn(&StorePath) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut first = None;
    for path in paths {
        if let Err(failure) = act(path) {
            if failure.code == ExitCode::Unreachable {
                // The others would wait for the node again.
                return Err(failure);
            }
            if !failure.message.is_empty() {
                complain(&failure.message);
            }
            first.get_or_insert(failure.code);
        }
    }
    first.map_or(Ok(()), |code| Err(CommandFailure::new(code, "")))
}

/// Remove files and directories of the store
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  samite rm -r /data/old")]
pub struct RmArgs {
    /// Remove directories and what is in them
    #[arg(short, short_alias = 'R', long)]
    recursive: bool,
    /// Say nothing of what does not exist
    #[arg(short, long)]
    force: bool,
    /// What to remove
    #[arg(required = true, value_name = "PATH", value_parser = store_path())]
    paths: Vec<StorePath>,
}

/// Removes.
pub fn rm(args: &RmArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    each(&args.paths, |path| {
        if path.base().is_empty() || matches!(path.base(), b"." | b"..") {
            return Err(CommandFailure::failed(format!("{}: cannot be removed", path.show())));
        }
        let removed = match files.fs.stat(&files.context, path.bytes(), false) {
            Ok(attr) if attr.kind != FileKind::Directory => {
                files.fs.unlink(&files.context, path.bytes())
            }
            Ok(_) if !args.recursive => {
                return Err(CommandFailure::failed(format!(
                    "{}: is a directory; use -r",
                    path.show()
                )));
            }
            Ok(_) => remove_tree(&files, path.bytes()),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if args.force && error.kind() == ErrorKind::NotFound => Ok(()),
            removed => Ok(removed?),
        }
    })
}

fn remove_tree(files: &ClusterFiles, root: &[u8]) -> samite_types::Result<()> {
    let (fs, context) = (&files.fs, &files.context);
    // A directory is met twice: to empty it, and again when all below it is gone.
    let mut waiting = vec![(root.to_vec(), false)];
    while let Some((dir, is_empty)) = waiting.pop() {
        if is_empty {
            fs.rmdir(context, &dir)?;
            continue;
        }
        waiting.push((dir.clone(), true));
        let mut listing = fs.read_dir(context, &dir)?;
        while let Some(entry) = listing.next_entry()? {
            if matches!(&*entry.name, b"." | b"..") {
                continue;
            }
            let path = join(&dir, &entry.name);
            if entry.kind == FileKind::Directory {
                waiting.push((path, false));
                continue;
            }
            match fs.unlink(context, &path) {
                // Someone else was faster.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    Ok(())
}

/// Make directories in the store
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  samite mkdir -p /data/2026/03")]
pub struct MkdirArgs {
    /// Make missing directories on the way too; one that exists is no error
    #[arg(short, long)]
    parents: bool,
    /// Permissions, octal [default: 777 less the umask]
    #[arg(short, long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
    /// Directories to make
    #[arg(required = true, value_name = "PATH", value_parser = store_path())]
    paths: Vec<StorePath>,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "expected an octal mode such as 755".to_owned())
}

/// Makes them.
pub fn mkdir(args: &MkdirArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    let (fs, context) = (&files.fs, &files.context);
    each(&args.paths, |path| {
        if args.parents {
            make_parents(&files, path)?;
        }
        match fs.mkdir(context, path.bytes(), 0o777) {
            Ok(()) => {}
            Err(error) if args.parents && error.kind() == ErrorKind::Exists => {
                let attr = fs.stat(context, path.bytes(), true)?;
                if attr.kind != FileKind::Directory {
                    let message = format!("{}: exists, and is no directory", path.show());
                    return Err(CommandFailure::failed(message));
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        match args.mode {
            Some(mode) => Ok(fs.chmod(context, path.bytes(), mode, true)?),
            None => Ok(()),
        }
    })
}

/// Makes the directories above `path` that are missing.
pub fn make_parents(files: &ClusterFiles, path: &StorePath) -> Result<(), CommandFailure> {
    let mut prefixes = path.prefixes();
    prefixes.pop();
    for prefix in prefixes {
        match files.fs.mkdir(&files.context, prefix, 0o777) {
            Err(error) if error.kind() != ErrorKind::Exists => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the local directories above `path` that are missing.
pub fn make_local_parents(path: &std::path::Path) -> Result<(), CommandFailure> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::create_dir_all(parent)
            .doing(format_args!("make directory {}", parent.display())),
        _ => Ok(()),
    }
}
