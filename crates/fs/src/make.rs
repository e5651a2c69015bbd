//! Making files, directories, symbolic links and nodes: one operation each.

use samite_client::{Moment, Op, OwnedOutcome, Posted};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::op::{Action, Guard, Operation};
use smallvec::SmallVec;

use crate::at::At;
use crate::cache::DirNode;
use crate::filesystem::named;
use crate::inode::{INODE_LEN, Inode};
use crate::key;
use crate::leased::{Promise, long_lease};
use crate::marks::EntryMark;
use crate::store::{Home, LOOKUP_LEN, Node, fail};
use crate::walk::{LOOKUPS_MAX, New, SEARCH, WRITE, Walk};
use crate::{Context, FileKind, FileSystem, PATH_LEN_MAX, Semantics, Timestamp};

/// What is to be made.
pub struct Blueprint<'a> {
    pub kind: FileKind,
    pub perm: u32,
    pub rdev: u64,
    /// Bytes after the inode.
    pub data: &'a [u8],
}

impl<'a> Blueprint<'a> {
    /// For mknod: `mode` has the kind in its `S_IFMT` bits (none: regular) and the permissions.
    pub fn node(ctx: &Context, mode: u32, rdev: u64) -> Result<Self> {
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

/// What came of it.
pub enum Made {
    /// It is there now.
    New(Node),
    /// This was there before.
    Exists(Node),
}

/// What came of asking for that.
enum Asked {
    /// It is there now, and perhaps the caller has a lease on it, or it was only left with the node.
    Made(Option<Promise>, Option<Posted>),
    /// This was there before.
    Exists(Node),
}

/// An entry that is to be made.
#[derive(Clone, Copy)]
struct Entry<'e> {
    home: &'e Home,
    value: &'e [u8],
    /// Where the seal of its directory would be.
    seal: &'e [u8],
    mark: &'e EntryMark,
    /// Holds the file from the beginning; 0: nothing does.
    hold: u64,
}

impl Entry<'_> {
    /// Makes it if there is no such entry, with a lease if one is wanted.
    fn making(&self, is_directory: bool, leases: bool) -> Operation<'_> {
        let key = &self.home.key;
        let mut op = Operation::put(self.home.partition, key, self.value).guard(Guard::Absent(key));
        op.actions.extend(self.mark.actions(i64::from(is_directory)));
        if self.hold != 0 {
            op.actions.push(Action::Hold { key, token: self.hold });
        }
        if leases {
            op.actions.push(long_lease(key));
        }
        op
    }
}

impl FileSystem {
    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`; `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the path; `NoSpace`.
    pub fn mkdir<'a>(&self, ctx: &Context, at: impl Into<At<'a>>, perm: u32) -> Result<()> {
        let new = Blueprint { kind: FileKind::Directory, perm, rdev: 0, data: b"" };
        named("mkdir", at, |at| self.make(ctx, at, &new).map(drop))
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
        named("mknod", at, |at| self.make(ctx, at, &Blueprint::node(ctx, mode, rdev)?).map(drop))
    }

    /// Makes a symbolic link to `target`, any bytes but NUL.
    ///
    /// # Errors
    /// As of [`FileSystem::mkdir`]; `NotFound`: the target is empty; `NameTooLong`: it is longer than a path may be.
    pub fn symlink<'a>(&self, ctx: &Context, target: &[u8], at: impl Into<At<'a>>) -> Result<()> {
        named("symlink", at, |at| {
            let everyone = Context { umask: 0, ..ctx.clone() };
            self.make(&everyone, at, &Blueprint::link_to(target)?).map(drop)
        })
    }

    pub(crate) fn make(&self, ctx: &Context, at: At<'_>, new: &Blueprint<'_>) -> Result<Node> {
        self.under_lease(|epoch| {
            let mut walk = Walk::start(self, ctx, at, epoch)?;
            self.make_walked(ctx, &mut walk, new)
        })
    }

    /// Makes what the walk leads to, where nothing may be.
    pub(crate) fn make_walked(
        &self,
        ctx: &Context,
        walk: &mut Walk<'_>,
        new: &Blueprint<'_>,
    ) -> Result<Node> {
        if !walk.advance()? {
            return Err(fail(ErrorKind::Exists));
        }
        if walk.wants_directory && new.kind != FileKind::Directory {
            return Err(match self.lookup_home(&walk.entry(), walk.epoch)? {
                Some(_) => fail(ErrorKind::Exists),
                None => fail(ErrorKind::NotFound),
            });
        }
        match self.make_entry(ctx, walk, new)? {
            Made::New(node) => Ok(node),
            Made::Exists(_) => Err(fail(ErrorKind::Exists)),
        }
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
        let hold = if walk.opens { self.token() } else { 0 };
        let entry = Entry { home: &home, value: &value, seal: &seal, mark: &mark, hold };
        let asked = match self.post_entry(walk, new.kind, &entry) {
            Some(made) => made,
            None => self.ask_for_entry(walk, inode.is_directory(), &entry)?,
        };
        let (promise, posted) = match asked {
            Asked::Made(promise, posted) => (promise, posted),
            Asked::Exists(node) => return Ok(Made::Exists(node)),
        };
        walk.made = Some(New { inode, promise, posted });
        if inode.is_directory() {
            self.inner.cache.insert(walk.epoch, &home.key, DirNode::of(&inode));
        }
        // The version is not asked for: whoever needs it reads the record again.
        let data_len = new.data.len() as u64;
        Ok(Made::New(Node { home, inode, data_len, version: Version(0), target: None, hold }))
    }

    /// Makes an entry, or says what is there.
    fn ask_for_entry(
        &self,
        walk: &Walk<'_>,
        is_directory: bool,
        entry: &Entry<'_>,
    ) -> Result<Asked> {
        let home = entry.home;
        for _ in 0..LOOKUPS_MAX {
            let moment = self.moment_for(walk, home);
            let op = entry
                .making(is_directory, moment.is_some())
                .guard(Guard::Absent(entry.seal))
                .reveal(LOOKUP_LEN as u32);
            let failure = match self.store().run(Op::new(op).under_lease(walk.epoch))? {
                OwnedOutcome::Done(results) => {
                    let promise = match moment {
                        Some(moment) => Promise::of_change(moment, results.last())?,
                        None => None,
                    };
                    return Ok(Asked::Made(promise, None));
                }
                OwnedOutcome::Failed(failure) => failure,
            };
            match &failure.current {
                _ if failure.index == 1 => {
                    self.outlast_seal(walk.dir().ino, home.partition)?;
                    return Err(fail(ErrorKind::StaleLease));
                }
                Some(found) => {
                    if let Some(node) = self.settled(self.store().node_of_reveal(home, found)?)? {
                        return Ok(Asked::Exists(node));
                    }
                }
                None => return Err(failure.into_error("make entry")),
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// From when on changes of what is made can be told, if a lease on it is wanted.
    fn moment_for(&self, walk: &Walk<'_>, home: &Home) -> Option<Moment> {
        walk.leases.then(|| self.store().dataset.moment(home.partition)).flatten()
    }

    /// Leaves it to the node to make a file, and to give a lease on it if one is wanted. `None`: that cannot be done that way now, or there is one
    /// already; nothing was done.
    fn post_entry(&self, walk: &Walk<'_>, kind: FileKind, entry: &Entry<'_>) -> Option<Asked> {
        if kind != FileKind::File || walk.dir().semantics == Semantics::Temporary {
            return None;
        }
        let home = entry.home;
        let moment = self.moment_for(walk, home);
        let operation = entry.making(false, moment.is_some());
        let record = (home.partition, home.key.as_slice());
        let dataset = &self.store().dataset;
        let posted = dataset.post_new(record, entry.seal, &operation, walk.epoch)?;
        // Nothing is asked for that they could travel with.
        self.store().send_releases();
        Some(Asked::Made(moment.and_then(Promise::of_posted_change), Some(posted)))
    }

    pub(crate) fn new_inode(
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
