//! `samite cat`, `put` and `get`: bytes between the store and here.

use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use samite_fs::{FileAttributes, FileKind, OpenFile, OpenFlags};
use samite_stage::{DraftFile, FileTree, LocalTree, StoreTree};
use samite_types::ErrorKind;

use super::room;
use crate::cluster::{ClusterFiles, ClusterTarget};
use crate::failure::{CommandFailure, IoContext};
use crate::output::{CommandOutput, complain};
use crate::paths::{StorePath, store_path};

/// Bytes that are moved at a time.
const BUFFER_LEN: usize = 1 << 20;

/// Print files of the store
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  samite cat /data/part-1 /data/part-2 | sort")]
pub struct CatArgs {
    /// Files in the store
    #[arg(required = true, value_name = "PATH", value_parser = store_path())]
    paths: Vec<StorePath>,
}

/// Prints the files; files that cannot be read are named, and the others printed.
pub fn cat(args: &CatArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    let mut out = CommandOutput::new();
    let mut worst = None;
    for path in &args.paths {
        let printed =
            open_to_read(&files, path).and_then(|file| read_all(&file, |bytes| out.bytes(bytes)));
        if let Err(failure) = printed {
            complain(&failure.message);
            worst = Some(failure.code);
        }
    }
    out.finish()?;
    worst.map_or(Ok(()), |code| Err(CommandFailure::new(code, "")))
}

/// Copy one local file, or standard input, into the store
///
/// An existing file is replaced when the new one is whole, and keeps its mode; into an existing directory the file goes under its own name.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite put notes.txt /notes.txt
  date | samite put - /stamp")]
pub struct PutArgs {
    /// Local file; `-` for standard input
    #[arg(value_name = "LOCAL")]
    local: PathBuf,
    /// Path in the store
    #[arg(value_name = "PATH", value_parser = store_path())]
    path: StorePath,
    /// Begin even if there seems to be too little room
    #[arg(long)]
    force: bool,
}

/// Copies the file in.
pub fn put(args: &PutArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let is_stdin = args.local == Path::new("-");
    let (mut source, perm, need): (Box<dyn Read>, u32, u64) = if is_stdin {
        (Box::new(std::io::stdin().lock()), 0o666, 0)
    } else {
        let what = format!("open {}", args.local.display());
        let file = File::open(&args.local).doing(&what)?;
        let metadata = file.metadata().doing(&what)?;
        if metadata.is_dir() {
            return Err(CommandFailure::failed(format!(
                "{}: is a directory; `samite stage in` copies trees",
                args.local.display()
            )));
        }
        (Box::new(file), metadata.permissions().mode() & 0o777, room::data_len(&metadata))
    };
    let files = target.files()?;
    let name = args.local.file_name().map(std::os::unix::ffi::OsStrExt::as_bytes);
    let path = into_directory(&files, &args.path, name.filter(|_| !is_stdin))?;
    let (path, there) = replaced(&files, &path)?;
    let tree = StoreTree::new(files.fs.clone(), files.context.clone());
    let perm = perm & !files.context.umask;
    // The fragment that a killed copy has left goes with it, and takes no room any more.
    let new = DraftFile::create(&tree, path.bytes(), perm)?;
    if !args.force {
        room::check_files(&files, need).inspect_err(|_| new.give_up(&tree))?;
    }
    fill(&tree, &new, &mut *source, &args.local, &path)
        .and_then(|()| settle(&files, &new.file, there.as_ref()))
        .inspect_err(|_| new.give_up(&tree))?;
    Ok(new.place(&tree)?)
}

/// The file that is to be replaced at `path`, and its path: a link's target, not the link.
fn replaced(
    files: &ClusterFiles,
    path: &StorePath,
) -> Result<(StorePath, Option<FileAttributes>), CommandFailure> {
    let (fs, context) = (&files.fs, &files.context);
    let attr = match fs.stat(context, path.bytes(), false) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((path.clone(), None)),
        Ok(attr) if attr.kind != FileKind::Symlink => (path.clone(), attr),
        Ok(_) => {
            let target = StorePath(fs.canonicalize(context, path.bytes())?);
            let attr = fs.stat(context, target.bytes(), false)?;
            (target, attr)
        }
        Err(error) => return Err(error.into()),
    };
    if attr.1.kind != FileKind::File {
        return Err(CommandFailure::failed(format!("{}: is not a regular file", path.show())));
    }
    Ok((attr.0, Some(attr.1)))
}

/// Gives the new file the owner, where that is allowed, and mode of the one that it replaces.
fn settle(
    files: &ClusterFiles,
    new: &OpenFile,
    there: Option<&FileAttributes>,
) -> Result<(), CommandFailure> {
    if let Some(there) = there {
        let made = new.attr()?;
        if (made.uid, made.gid) != (there.uid, there.gid) {
            // Only root may give files away.
            let _ = new.chown(&files.context, Some(there.uid), Some(there.gid));
        }
        new.chmod(&files.context, there.perm & 0o777)?;
    }
    Ok(new.close()?)
}

fn fill(
    tree: &StoreTree,
    new: &DraftFile<OpenFile>,
    source: &mut dyn Read,
    local: &Path,
    path: &StorePath,
) -> Result<(), CommandFailure> {
    let mut buffer = vec![0; BUFFER_LEN];
    let mut offset = 0;
    loop {
        let len = read_full(source, &mut buffer).doing(format_args!("read {}", local.display()))?;
        if len == 0 {
            return Ok(());
        }
        tree.write_at(&new.file, path.bytes(), &buffer[..len], offset)?;
        offset += len as u64;
    }
}

/// Copy one file of the store to a local file, or to standard output
///
/// An existing file is replaced when the new one is whole, and keeps its mode.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite get /notes.txt notes.txt
  samite get /stamp -")]
pub struct GetArgs {
    /// File in the store
    #[arg(value_name = "PATH", value_parser = store_path())]
    path: StorePath,
    /// Local file or directory; `-` for standard output
    #[arg(value_name = "LOCAL", default_value = ".")]
    local: PathBuf,
    /// Begin even if there seems to be too little room
    #[arg(long)]
    force: bool,
}

/// Copies the file out.
pub fn get(args: &GetArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    let source = open_to_read(&files, &args.path)?;
    if args.local == Path::new("-") {
        let mut out = CommandOutput::new();
        read_all(&source, |bytes| out.bytes(bytes))?;
        return out.finish();
    }
    let local = if args.local.is_dir() {
        let name = std::os::unix::ffi::OsStrExt::from_bytes(args.path.base());
        args.local.join::<&std::ffi::OsStr>(name)
    } else {
        args.local.clone()
    };
    let attr = source.attr()?;
    let need = if args.force { 0 } else { attr.size };
    write_local(&local, (attr.perm & 0o777, need), |sink| read_all(&source, sink))
}

/// Makes or replaces a local file by what `fill` gives to its argument, if there is room for so many bytes; a device or pipe is written to.
pub fn write_local(
    local: &Path,
    (perm, need): (u32, u64),
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), CommandFailure>) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let what = format!("write {}", local.display());
    let there = match std::fs::symlink_metadata(local) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        there => Some(there.doing(&what)?),
    };
    // A link's target is replaced, not the link.
    let (local, there) = match there {
        Some(there) if there.is_symlink() => {
            let target = std::fs::canonicalize(local).doing(&what)?;
            let there = std::fs::symlink_metadata(&target).doing(&what)?;
            (target, Some(there))
        }
        there => (local.to_path_buf(), there),
    };
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        let mut device = File::options().write(true).open(&local).doing(&what)?;
        return fill(&mut |bytes| device.write_all(bytes).doing(&what));
    }
    // The fragment that a killed copy has left goes with it, and takes no room any more.
    let new = DraftFile::create(&LocalTree, local.as_os_str().as_bytes(), perm)?;
    room::check_local(&local, need).inspect_err(|_| new.give_up(&LocalTree))?;
    fill(&mut |bytes| (&new.file).write_all(bytes).doing(&what))
        .and_then(|()| settle_local(&new.file, there.as_ref()).doing(&what))
        .inspect_err(|_| new.give_up(&LocalTree))?;
    Ok(new.place(&LocalTree)?)
}

/// Gives the new file the owner, where that is allowed, and mode of the one that it replaces.
fn settle_local(new: &File, there: Option<&Metadata>) -> std::io::Result<()> {
    let Some(there) = there else { return Ok(()) };
    let made = new.metadata()?;
    if (made.uid(), made.gid()) != (there.uid(), there.gid()) {
        // Only root may give files away.
        let _ = fchown(new, Some(there.uid()), Some(there.gid()));
    }
    new.set_permissions(PermissionsExt::from_mode(there.mode() & 0o777))
}

/// `path`, or `path/name` when it is a directory.
pub fn into_directory(
    files: &ClusterFiles,
    path: &StorePath,
    name: Option<&[u8]>,
) -> Result<StorePath, CommandFailure> {
    match files.fs.stat(&files.context, path.bytes(), true) {
        Ok(attr) if attr.kind == FileKind::Directory => {
            let name = name.ok_or_else(|| {
                CommandFailure::failed(format!(
                    "{}: is a directory; give a file's path",
                    path.show()
                ))
            })?;
            Ok(StorePath(samite_stage::join(path.bytes(), name)))
        }
        Ok(_) => Ok(path.clone()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.clone()),
        Err(error) => Err(error.into()),
    }
}

fn open_to_read(files: &ClusterFiles, path: &StorePath) -> Result<OpenFile, CommandFailure> {
    let file = files.fs.open_file(&files.context, path.bytes(), OpenFlags::reading(), 0)?;
    if file.kind() == FileKind::Directory {
        return Err(CommandFailure::failed(format!("{}: is a directory", path.show())));
    }
    Ok(file)
}

fn read_all(
    file: &OpenFile,
    mut sink: impl FnMut(&[u8]) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut buffer = vec![0; BUFFER_LEN];
    let mut offset = 0;
    loop {
        match file.read_at(&mut buffer, offset)? {
            0 => return Ok(()),
            len => {
                sink(&buffer[..len])?;
                offset += len as u64;
            }
        }
    }
}

/// Fills the buffer as far as the source goes, so that pipes do not make small writes.
pub fn read_full(source: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match source.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
