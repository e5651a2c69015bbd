//! Opening files and directories.

use samite_types::{Epoch, ErrorKind, Result};

use crate::at::At;
use crate::cache::permits;
use crate::filesystem::named;
use crate::make::{Blueprint, Made};
use crate::store::{Node, fail};
use crate::walk::{READ, WRITE, Walk};
use crate::{Context, FileKind, FileSystem, OpenFile, OpenFlags};

impl FileSystem {
    /// Opens a file or directory, or makes a file with `perm` (less the umask) when `flags` say so.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the path; `Exists` with `create` and `excl`;
    /// `IsDirectory`: opened for writing;
    /// `Unsupported`: a fifo, socket or device, unless only named; `CrossDevice`: see [`FileSystem::way_out`].
    pub fn open_file<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<OpenFile> {
        named("open", at, |at| self.under_lease(|epoch| self.try_open(ctx, at, flags, perm, epoch)))
    }

    fn try_open(
        &self,
        ctx: &Context,
        at: At<'_>,
        flags: OpenFlags,
        perm: u32,
        epoch: Epoch,
    ) -> Result<OpenFile> {
        let mut walk = Walk::start(self, ctx, at, epoch)?;
        if !flags.create {
            let node = walk.find(!flags.nofollow)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
            return self.open_node(ctx, &walk, node, flags);
        }
        let new = Blueprint { kind: FileKind::File, perm, rdev: 0, data: b"" };
        while walk.advance()? {
            if walk.wants_directory || flags.directory {
                return Err(fail(if flags.directory {
                    ErrorKind::Invalid
                } else {
                    ErrorKind::IsDirectory
                }));
            }
            match self.make_entry(ctx, &mut walk, &new)? {
                Made::New(node) => return Ok(OpenFile::new(self, node, flags, None)),
                Made::Exists(_) if flags.excl => return Err(fail(ErrorKind::Exists)),
                Made::Exists(node) => match &node.target {
                    Some(target) if !flags.nofollow => walk.follow(target)?,
                    _ => return self.open_node(ctx, &walk, node, flags),
                },
            }
        }
        Err(fail(if flags.excl { ErrorKind::Exists } else { ErrorKind::IsDirectory }))
    }

    fn open_node(
        &self,
        ctx: &Context,
        walk: &Walk<'_>,
        node: Node,
        flags: OpenFlags,
    ) -> Result<OpenFile> {
        let inode = node.inode;
        let names_only = !flags.read && !flags.write;
        match inode.kind {
            FileKind::Symlink if !names_only => return Err(fail(ErrorKind::Loop)),
            FileKind::Directory if flags.write || flags.create || flags.truncate => {
                return Err(fail(ErrorKind::IsDirectory));
            }
            FileKind::Directory | FileKind::File => {}
            _ if flags.directory => return Err(fail(ErrorKind::NotDirectory)),
            FileKind::Symlink => {}
            _ if names_only => {}
            _ => return Err(fail(ErrorKind::Unsupported)),
        }
        if flags.directory && !inode.is_directory() {
            return Err(fail(ErrorKind::NotDirectory));
        }
        let mask = if flags.read { READ } else { 0 }
            | if flags.write || flags.truncate { WRITE } else { 0 };
        if !permits(ctx, inode.perm, inode.uid, inode.gid, inode.is_directory(), mask) {
            return Err(fail(ErrorKind::Denied));
        }
        let path = inode
            .is_directory()
            .then(|| if walk.dir().ino == inode.ino { walk.dir_path() } else { walk.entry_path() });
        let is_empty = !node.is_chunked() && node.data_len == 0;
        let file = OpenFile::new(self, node, flags, path);
        if flags.truncate && inode.kind == FileKind::File && !is_empty {
            file.cut(0)?;
        }
        Ok(file)
    }
}
