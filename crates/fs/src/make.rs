//! Making files, directories, symbolic links and nodes: one operation each.

use samite_client::{Op, OwnedOutcome};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::op::{Guard, Operation};
use smallvec::SmallVec;

use crate::at::At;
use crate::cache::DirNode;
use crate::filesystem::named;
use crate::inode::{INODE_LEN, Inode};
use crate::key;
use crate::marks::EntryMark;
use crate::store::{LOOKUP_LEN, Node, fail};
use crate::walk::{LOOKUPS_MAX, SEARCH, WRITE, Walk};
use crate::{Context, FileKind, FileSystem, PATH_LEN_MAX, Timestamp};

/// What is to be made.
pub struct Blueprint<'a> {
    pub kind: FileKind,
    pub perm: u32,
    pub rdev: u64,
    /// Bytes after the inode.
    pub data: &'a [u8],
}

/// What came of it.
pub enum Made {
    /// It is there now.
    New(Node),
    /// This was there before.
    Exists(Node),
}

impl FileSystem {
    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`; `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the path; `NoSpace`.
    pub fn mkdir<'a>(&self, ctx: &Context, at: impl Into<At<'a>>, perm: u32) -> Result<()> {
        let new = Blueprint { kind: FileKind::Directory, perm, rdev: 0, data: b"" };
        named("mkdir", at, |at| self.make(ctx, at, &new))
    }

    /// Makes a fifo, socket or device node, or an empty regular file. `mode` has the kind in its `S_IFMT` bits
    /// (none: regular) and the permissions.
    ///
    /// # Errors
    /// As of [`FileSystem::mkdir`]; `NotOwner`: a device, and the caller is not root; `Invalid`: another kind.
    pub fn mknod<'a>(
        &self,
        ctx: &Context,
        at: impl Into<At<'a>>,
        mode: u32,
        rdev: u64,
    ) -> Result<()> {
        let kind = match mode & 0o170_000 {
            0 => Ok(FileKind::File),
            bits => [
                FileKind::File,
                FileKind::Fifo,
                FileKind::Socket,
                FileKind::CharDevice,
                FileKind::BlockDevice,
            ]
            .into_iter()
            .find(|kind| kind.mode_bits() == bits)
            .ok_or_else(|| fail(ErrorKind::Invalid)),
        };
        named("mknod", at, |at| {
            let kind = kind?;
            let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
            if is_device && ctx.uid != 0 {
                return Err(fail(ErrorKind::NotOwner));
            }
            let rdev = if is_device { rdev } else { 0 };
            self.make(ctx, at, &Blueprint { kind, perm: mode & 0o7777, rdev, data: b"" })
        })
    }

    /// Makes a symbolic link to `target`, any bytes but NUL.
    ///
    /// # Errors
    /// As of [`FileSystem::mkdir`]; `NotFound`: the target is empty; `NameTooLong`: it is longer than a path may be.
    pub fn symlink<'a>(&self, ctx: &Context, target: &[u8], at: impl Into<At<'a>>) -> Result<()> {
        named("symlink", at, |at| {
            if target.is_empty() {
                return Err(fail(ErrorKind::NotFound));
            }
            if target.len() > PATH_LEN_MAX {
                return Err(fail(ErrorKind::NameTooLong));
            }
            let everyone = Context { umask: 0, ..ctx.clone() };
            let new = Blueprint { kind: FileKind::Symlink, perm: 0o777, rdev: 0, data: target };
            self.make(&everyone, at, &new)
        })
    }

    fn make(&self, ctx: &Context, at: At<'_>, new: &Blueprint<'_>) -> Result<()> {
        self.under_lease(|epoch| {
            let mut walk = Walk::start(self, ctx, at, epoch)?;
            if !walk.advance()? {
                return Err(fail(ErrorKind::Exists));
            }
            if walk.wants_directory && new.kind != FileKind::Directory {
                return Err(match self.lookup_home(&walk.entry(), epoch)? {
                    Some(_) => fail(ErrorKind::Exists),
                    None => fail(ErrorKind::NotFound),
                });
            }
            match self.make_entry(ctx, &mut walk, new)? {
                Made::New(_) => Ok(()),
                Made::Exists(_) => Err(fail(ErrorKind::Exists)),
            }
        })
    }

    /// Makes the entry that the walk has come to, in one operation. When something is there already, says what.
    pub(crate) fn make_entry(
        &self,
        ctx: &Context,
        walk: &mut Walk<'_>,
        new: &Blueprint<'_>,
    ) -> Result<Made> {
        if !walk.dir().permits(ctx, WRITE | SEARCH)
            && let Err(denied) = walk.require(WRITE | SEARCH)
        {
            // An existing name is no matter of permission to write here.
            let existing = self.lookup_home(&walk.entry(), walk.epoch)?;
            return existing.map(Made::Exists).ok_or(denied);
        }
        let now = Timestamp::now();
        let inode = self.new_inode(ctx, walk.dir(), new, now)?;
        let mut value: SmallVec<[u8; INODE_LEN]> = SmallVec::from(inode.encode());
        value.extend_from_slice(new.data);
        let home = walk.entry();
        let seal = key::seal(walk.dir().ino);
        let mark = EntryMark::new(&home.key, now);
        let mut made = false;
        for _ in 0..LOOKUPS_MAX {
            let mut op = Operation::put(home.partition, &home.key, &value)
                .guard(Guard::Absent(&home.key))
                .guard(Guard::Absent(&seal))
                .reveal(LOOKUP_LEN as u32);
            op.actions.extend(mark.actions(i64::from(inode.is_directory())));
            let failure = match self.store().run(Op::new(op).under_lease(walk.epoch))? {
                OwnedOutcome::Done(_) => {
                    made = true;
                    break;
                }
                OwnedOutcome::Failed(failure) => failure,
            };
            match &failure.current {
                _ if failure.index == 1 => {
                    self.outlast_seal(walk.dir().ino, home.partition)?;
                    return Err(fail(ErrorKind::StaleLease));
                }
                Some(found) => {
                    if let Some(node) = self.settled(self.store().node_of_reveal(&home, found)?)? {
                        return Ok(Made::Exists(node));
                    }
                }
                None => return Err(failure.into_error("make entry")),
            }
        }
        if !made {
            return Err(fail(ErrorKind::Busy));
        }
        if inode.is_directory() {
            self.inner.cache.insert(walk.epoch, &home.key, DirNode::of(&inode));
        }
        // The version is not asked for: whoever needs it reads the record again.
        let data_len = new.data.len() as u64;
        Ok(Made::New(Node { home, inode, data_len, version: Version(0), target: None }))
    }

    fn new_inode(
        &self,
        ctx: &Context,
        parent: DirNode,
        new: &Blueprint<'_>,
        now: Timestamp,
    ) -> Result<Inode, Error> {
        let mut perm = new.perm & 0o7777 & !ctx.umask;
        let mut gid = ctx.gid;
        if parent.is_setgid() {
            gid = parent.gid;
            if new.kind == FileKind::Directory {
                perm |= 0o2000;
            }
        }
        let mut inode = Inode::new(new.kind, self.new_ino()?, perm, ctx.uid, gid, now);
        inode.rdev = new.rdev;
        Ok(inode)
    }
}
