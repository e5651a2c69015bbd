//! Opening files and directories.

use samite_types::{Epoch, ErrorKind, Result, Version};
use samite_wire::op::{Action, Operation, ValueData};

use crate::files::set_id::SET_ID;
use crate::names::at::{RelativePath, named};
use crate::names::cache::{DirNode, permits};
use crate::names::make::{MadeInode, NewInode};
use crate::names::walk::{PathWalk, READ, SEARCH, WRITE};
use crate::records::inode::FLAG_NAMEABLE;
use crate::records::key;
use crate::records::store::{FoundInode, RecordLocation, fail};
use crate::{CallerContext, FileKind, FileSystem, OpenFile, OpenFlags, Timestamp};

impl FileSystem {
    /// Opens a file or directory, or makes a file with `perm` (less the umask) when `flags` say so.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the path; `Exists` with `create` and `excl`;
    /// `IsDirectory`: opened for writing;
    /// `Unsupported`: a fifo, socket or device, unless only named; `CrossDevice`: see [`FileSystem::way_out`].
    pub fn open_file<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<OpenFile> {
        named("open", at, |at| {
            self.under_lease(|epoch| {
                let mut walk = PathWalk::start(self, ctx, at, epoch)?;
                self.open_at(ctx, &mut walk, flags, perm)
            })
        })
    }

    /// Opens, or makes, what the walk leads to.
    pub(crate) fn open_at(
        &self,
        ctx: &CallerContext,
        walk: &mut PathWalk<'_>,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<OpenFile> {
        walk.opens = true;
        if !flags.create {
            walk.reads = flags.read && !flags.write && !flags.truncate && !flags.directory;
            let node = walk.find(!flags.nofollow)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
            return self.open_walked(ctx, walk, node, flags);
        }
        let new = NewInode { kind: FileKind::File, perm, rdev: 0, data: b"" };
        while walk.advance()? {
            if walk.wants_directory || flags.directory {
                return Err(fail(if flags.directory {
                    ErrorKind::Invalid
                } else {
                    ErrorKind::IsDirectory
                }));
            }
            if let Some(file) = self.defer(ctx, walk, &new, flags)? {
                return Ok(file.minding(ctx, without_bits(perm, walk.epoch)));
            }
            match self.make_entry(ctx, walk, &new)? {
                MadeInode::New(node) => {
                    let completed = walk.made.and_then(|made| made.completed);
                    let file = OpenFile::new(self, node, flags, None).made_by(completed);
                    return Ok(file.minding(ctx, without_bits(perm, walk.epoch)));
                }
                MadeInode::Exists(_) if flags.excl => return Err(fail(ErrorKind::Exists)),
                MadeInode::Exists(node) => match &node.target {
                    Some(target) if !flags.nofollow => walk.follow(target)?,
                    _ => {
                        walk.reads = flags.read && !flags.write && !flags.truncate;
                        let location = walk.entry();
                        // Gone again: from the start.
                        let node =
                            walk.look_up(&location)?.ok_or_else(|| fail(ErrorKind::StaleLease))?;
                        return self.open_walked(ctx, walk, node, flags);
                    }
                },
            }
        }
        Err(fail(if flags.excl { ErrorKind::Exists } else { ErrorKind::IsDirectory }))
    }

    /// Opens a new file that has no name (`O_TMPFILE`), as a file of the directory `at`. It goes with its last close, unless it is
    /// given a name before ([`OpenFile::link`]), which `excl` forbids.
    ///
    /// # Errors
    /// As of [`FileSystem::open_file`] for making a file in the directory; `NotDirectory`; `Invalid`: not for writing.
    pub fn open_unnamed<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<OpenFile> {
        named("open", at, |at| {
            if !flags.write {
                return Err(fail(ErrorKind::Invalid));
            }
            let found = self.resolve(ctx, at, true)?.inode;
            let dir = DirNode::of(&found);
            if !found.is_directory() {
                return Err(fail(ErrorKind::NotDirectory));
            }
            if !dir.permits(ctx, WRITE | SEARCH) {
                return Err(fail(ErrorKind::Denied));
            }
            let new = NewInode { kind: FileKind::File, perm, rdev: 0, data: b"" };
            let mut inode = self.new_inode(ctx, dir, &new, Timestamp::now())?;
            inode.flags |= if flags.excl { 0 } else { FLAG_NAMEABLE };
            let value = inode.encode();
            let open_reference = self.token();
            let key = key::orphan(self.token());
            let partition = self.store().own(inode.ino).partition;
            let op = Operation::new(
                partition,
                [
                    Action::Put { key: &key, data: ValueData::Inline(&value) },
                    Action::Hold { key: &key, token: open_reference },
                    Action::Detach { key: &key, to: &key },
                ],
            );
            self.store().run(op)?.into_results("make")?;
            let location = RecordLocation { key, partition };
            let version = Version(0);
            inode.nlink = 0;
            let node =
                FoundInode { location, inode, data_len: 0, version, target: None, open_reference };
            let flags = OpenFlags { create: false, ..flags };
            Ok(OpenFile::new(self, node, flags, None).minding(ctx, None))
        })
    }

    fn open_walked(
        &self,
        ctx: &CallerContext,
        walk: &mut PathWalk<'_>,
        node: FoundInode,
        flags: OpenFlags,
    ) -> Result<OpenFile> {
        let path = node.inode.is_directory().then(|| {
            if walk.dir().ino == node.inode.ino { walk.dir_path() } else { walk.entry_path() }
        });
        let snapshot = walk.snapshot.take();
        let epoch = Some(walk.epoch);
        Ok(self.open_node(ctx, node, flags, (path, epoch))?.keeping(snapshot))
    }

    /// Opens a file that was found, with its open reference; `path` is a directory's, and `epoch`
    /// the name-space generation at which it was found, if that is known.
    pub(crate) fn open_node(
        &self,
        ctx: &CallerContext,
        node: FoundInode,
        flags: OpenFlags,
        (path, epoch): (Option<Box<[u8]>>, Option<Epoch>),
    ) -> Result<OpenFile> {
        let checked = may_open(ctx, &node, flags);
        if checked.is_err() {
            self.let_go(&node)?;
        }
        checked?;
        let inode = node.inode;
        let epoch = epoch.and_then(|epoch| without_bits(u32::from(inode.perm), epoch));
        let file = OpenFile::new(self, node, flags, path).minding(ctx, epoch);
        if flags.truncate && inode.kind == FileKind::File {
            file.cut(0)?;
            file.strip_set_id()?;
        }
        Ok(file)
    }
}

/// The epoch at which a file had no set-id bits, if these are its permission bits.
fn without_bits(perm: u32, epoch: Epoch) -> Option<Epoch> {
    (perm & u32::from(SET_ID) == 0).then_some(epoch)
}

/// Fails unless the caller may open `node` with these flags.
fn may_open(ctx: &CallerContext, node: &FoundInode, flags: OpenFlags) -> Result<()> {
    let inode = node.inode;
    let names_only = !flags.read && !flags.write;
    match inode.kind {
        _ if flags.directory && !inode.is_directory() => {
            return Err(fail(ErrorKind::NotDirectory));
        }
        FileKind::Symlink if !names_only => return Err(fail(ErrorKind::Loop)),
        FileKind::Directory if flags.write || flags.create || flags.truncate => {
            return Err(fail(ErrorKind::IsDirectory));
        }
        FileKind::Directory | FileKind::File | FileKind::Symlink => {}
        _ if names_only => {}
        _ => return Err(fail(ErrorKind::Unsupported)),
    }
    let mask =
        if flags.read { READ } else { 0 } | if flags.write || flags.truncate { WRITE } else { 0 };
    if !permits(ctx, inode.perm, inode.uid, inode.gid, inode.is_directory(), mask) {
        return Err(fail(ErrorKind::Denied));
    }
    Ok(())
}
