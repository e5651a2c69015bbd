//! Making files, directories, symbolic links and nodes: one operation each.

use samite_client::{ClientOperation, CompletedChange, OwnedOutcome, ReadStamp};
use samite_types::{Error, ErrorKind, Result, Version};
use smallvec::SmallVec;

use crate::names::at::{RelativePath, named};
use crate::names::cache::DirNode;
use crate::names::entry_operations::NewEntry;
use crate::names::walk::{PathWalk, SEARCH, WRITE, WalkEnd};
use crate::records::change_stamps::EntryMark;
use crate::records::inode::{INODE_LEN, Inode};
use crate::records::key;
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::store::{FoundInode, LOOKUP_LEN, RecordLocation, fail};
use crate::sharing::delegated::DelegationStamp;
use crate::{CallerContext, FileKind, FileSemantics, FileSystem, PATH_LEN_MAX, Timestamp};

/// The entry that is to be made.
pub struct NewInode<'a> {
    pub kind: FileKind,
    pub perm: u32,
    pub rdev: u64,
    /// Bytes after the inode.
    pub data: &'a [u8],
}

impl<'a> NewInode<'a> {
    /// For mknod: `mode` has the kind in its `S_IFMT` bits (none: regular) and the permissions.
    pub fn node(ctx: &CallerContext, mode: u32, rdev: u64) -> Result<Self> {
        let kinds = [
            FileKind::File,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ];
        let kind = match mode & 0o170_000 {
            0 => Some(FileKind::File),
            bits => kinds.into_iter().find(|kind| kind.mode_bits() == bits),
        };
        let kind = kind.ok_or_else(|| fail(ErrorKind::Invalid))?;
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        if is_device && !ctx.may_all() {
            return Err(fail(ErrorKind::NotOwner));
        }
        let rdev = if is_device { rdev } else { 0 };
        Ok(Self { kind, perm: mode & 0o7777, rdev, data: b"" })
    }

    /// For a symbolic link.
    pub fn link_to(target: &'a [u8]) -> Result<Self> {
        match target.len() {
            0 => Err(fail(ErrorKind::NotFound)),
            len if len > PATH_LEN_MAX => Err(fail(ErrorKind::NameTooLong)),
            _ => Ok(Self { kind: FileKind::Symlink, perm: 0o777, rdev: 0, data: target }),
        }
    }
}

/// The outcome of making it.
pub enum MadeInode {
    /// It is there now.
    New(FoundInode),
    /// This was there before.
    Exists(FoundInode),
}

/// The outcome of asking for it.
enum MakeAnswer {
    /// It is there now; the caller may have a delegation on it, and the node need not have been
    /// asked.
    Made(Option<DelegationStamp>, Option<CompletedChange>),
    /// This was there before.
    Exists(FoundInode),
}

impl FileSystem {
    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`; `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the path; `NoSpace`.
    pub fn mkdir<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        perm: u32,
    ) -> Result<()> {
        let new = NewInode { kind: FileKind::Directory, perm, rdev: 0, data: b"" };
        named("mkdir", at, |at| self.make(ctx, at, &new).map(drop))
    }

    /// Makes a fifo, socket or device node, or an empty regular file. `mode` has the kind in its `S_IFMT` bits
    /// (none: regular) and the permissions.
    ///
    /// # Errors
    /// As of [`FileSystem::mkdir`]; `NotOwner`: a device, and the caller is not root; `Invalid`: another kind.
    pub fn mknod<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        mode: u32,
        rdev: u64,
    ) -> Result<()> {
        named("mknod", at, |at| self.make(ctx, at, &NewInode::node(ctx, mode, rdev)?).map(drop))
    }

    /// Makes a symbolic link to `target`, any bytes but NUL.
    ///
    /// # Errors
    /// As of [`FileSystem::mkdir`]; `NotFound`: the target is empty; `NameTooLong`: it is longer than a path may be.
    pub fn symlink<'a>(
        &self,
        ctx: &CallerContext,
        target: &[u8],
        at: impl Into<RelativePath<'a>>,
    ) -> Result<()> {
        named("symlink", at, |at| {
            let everyone = CallerContext { umask: 0, ..ctx.clone() };
            self.make(&everyone, at, &NewInode::link_to(target)?).map(drop)
        })
    }

    pub(crate) fn make(
        &self,
        ctx: &CallerContext,
        at: RelativePath<'_>,
        new: &NewInode<'_>,
    ) -> Result<FoundInode> {
        self.under_lease(|epoch| {
            let mut walk = PathWalk::start(self, ctx, at, epoch)?;
            self.make_walked(ctx, &mut walk, new)
        })
    }

    /// Makes what the walk leads to, where nothing may be.
    pub(crate) fn make_walked(
        &self,
        ctx: &CallerContext,
        walk: &mut PathWalk<'_>,
        new: &NewInode<'_>,
    ) -> Result<FoundInode> {
        if !walk.advance()? {
            return Err(fail(ErrorKind::Exists));
        }
        if walk.wants_directory && new.kind != FileKind::Directory {
            return Err(match self.store().lookup_location(&walk.entry(), walk.epoch)? {
                Some(_) => fail(ErrorKind::Exists),
                None => fail(ErrorKind::NotFound),
            });
        }
        match self.make_entry(ctx, walk, new)? {
            MadeInode::New(node) => Ok(node),
            MadeInode::Exists(_) => Err(fail(ErrorKind::Exists)),
        }
    }

    /// Makes the entry that the walk has come to, in one operation. When something is there already, says what.
    pub(crate) fn make_entry(
        &self,
        ctx: &CallerContext,
        walk: &mut PathWalk<'_>,
        new: &NewInode<'_>,
    ) -> Result<MadeInode> {
        if !walk.dir().permits(ctx, WRITE | SEARCH)
            && let Err(denied) = walk.require(WRITE | SEARCH)
        {
            // An existing name is no matter of permission to write here.
            let existing = self.store().lookup_location(&walk.entry(), walk.epoch)?;
            return existing.map(MadeInode::Exists).ok_or(denied);
        }
        let now = Timestamp::now();
        let inode = self.new_inode(ctx, walk.dir(), new, now)?;
        let mut value: SmallVec<[u8; INODE_LEN]> = SmallVec::from(inode.encode());
        value.extend_from_slice(new.data);
        let location = walk.entry();
        let open_reference = if walk.opens { self.token() } else { 0 };
        let entry = NewEntry {
            location: &location,
            value: &value,
            tombstone: &key::tombstone(walk.dir().ino),
            stamp: &EntryMark::new(&location.key, now),
            is_directory: inode.is_directory(),
            open_reference,
        };
        let (delegation, completed) = match self.ask_for_entry(walk, new.kind, &entry)? {
            MakeAnswer::Made(delegation, completed) => (delegation, completed),
            MakeAnswer::Exists(node) => return Ok(MadeInode::Exists(node)),
        };
        walk.made = Some(WalkEnd { inode, delegation, completed });
        if inode.is_directory() {
            self.inner.cache.insert(walk.epoch, &location.key, DirNode::of(&inode));
        }
        // The version is not asked for: a caller that needs it reads the record again.
        let data_len = new.data.len() as u64;
        Ok(MadeInode::New(FoundInode {
            location,
            inode,
            data_len,
            version: Version(0),
            target: None,
            open_reference,
        }))
    }

    /// Makes an entry, or says what is there.
    fn ask_for_entry(
        &self,
        walk: &PathWalk<'_>,
        kind: FileKind,
        entry: &NewEntry<'_>,
    ) -> Result<MakeAnswer> {
        let location = entry.location;
        let is_lasting = walk.dir().semantics != FileSemantics::Temporary;
        for _ in 0..LOOKUPS_MAX {
            let read_stamp = self.read_stamp_for(walk, location);
            let op = entry.operation(read_stamp.is_some()).reveal(LOOKUP_LEN as u32);
            let mut op = ClientOperation::new(op).under_lease(walk.epoch);
            if kind == FileKind::File && is_lasting {
                // A delegation that is asked for is granted for certain.
                if let Some(completed) = self.store().try_complete(&mut op) {
                    let delegation = read_stamp.and_then(DelegationStamp::of_completed_change);
                    return Ok(MakeAnswer::Made(delegation, Some(completed)));
                }
            }
            let failure = match self.store().run(op)? {
                OwnedOutcome::Done(results) => {
                    let delegation = match read_stamp {
                        Some(read_stamp) => DelegationStamp::of_change(read_stamp, results.last())?,
                        None => None,
                    };
                    return Ok(MakeAnswer::Made(delegation, None));
                }
                OwnedOutcome::Failed(failure) => failure,
            };
            match &failure.current {
                _ if failure.index == 1 => {
                    self.outlast_tombstone(walk.dir().ino, location.partition)?;
                    return Err(fail(ErrorKind::StaleLease));
                }
                Some(found) => {
                    if let Some(node) =
                        self.store().settled(self.store().node_of_reveal(location, found)?)?
                    {
                        return Ok(MakeAnswer::Exists(node));
                    }
                }
                None => return Err(failure.into_error("make entry")),
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// From when on changes of the new file can be told, if a delegation on it is wanted.
    fn read_stamp_for(&self, walk: &PathWalk<'_>, location: &RecordLocation) -> Option<ReadStamp> {
        walk.leases.then(|| self.store().dataset.read_stamp(location.partition)).flatten()
    }

    pub(crate) fn new_inode(
        &self,
        ctx: &CallerContext,
        parent: DirNode,
        new: &NewInode<'_>,
        now: Timestamp,
    ) -> Result<Inode, Error> {
        let mut perm = new.perm & 0o7777 & !ctx.umask;
        let mut gid = ctx.gid;
        if parent.is_setgid() {
            gid = parent.gid;
            if new.kind == FileKind::Directory {
                perm |= 0o2000;
            } else if perm & 0o2010 == 0o2010 && !ctx.in_group(gid) && !ctx.may_all() {
                perm &= !0o2000;
            }
        }
        let mut inode = Inode::new(new.kind, self.new_ino()?, perm, ctx.uid, gid, now);
        inode.rdev = new.rdev;
        if inode.is_directory() {
            inode.semantics = parent.semantics;
        }
        Ok(inode)
    }
}
