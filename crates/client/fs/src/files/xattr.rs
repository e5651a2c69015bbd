//! Extended attributes: a record each, beside no inode.

use samite_client::{OwnedOutcome, OwnedResult};
use samite_types::{ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::names::at::{RelativePath, named};
use crate::names::cache::permits;
use crate::names::walk::{READ, WRITE};
use crate::records::inode::{FLAG_ATTRIBUTES, at};
use crate::records::key;
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::store::{FoundInode, fail, identity_of, listing, lives_in, malformed};
use crate::{CallerContext, FileKind, FileSystem, NAME_LEN_MAX, OpenFile};

/// Longest value of an extended attribute, in bytes.
pub const ATTRIBUTE_LEN_MAX: usize = 64 << 10;

/// Most attributes of one file that one listing step takes.
const ATTRIBUTES_AT_ONCE: u32 = 256;

/// How to set an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XattrFlags {
    /// It must not exist (`XATTR_CREATE`).
    pub create: bool,
    /// It must exist (`XATTR_REPLACE`).
    pub replace: bool,
}

/// A file by path or by handle.
pub enum XattrSubject<'a> {
    /// By path.
    Path(RelativePath<'a>, /** A symbolic link in the last component is followed. */ bool),
    /// By handle.
    Open(&'a OpenFile),
}

impl FileSystem {
    /// Value of an extended attribute.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`]; `NoAttribute`; `Denied`; `Unsupported`: not in the namespace `user.`, `trusted.` or
    /// `security.`.
    pub fn get_xattr(
        &self,
        ctx: &CallerContext,
        file: &XattrSubject<'_>,
        name: &[u8],
    ) -> Result<Vec<u8>> {
        self.on_subject("getxattr", file, |node| {
            check_name(ctx, node, name, READ)?;
            let key = key::attribute(node.inode.ino, name);
            let partition = self.attribute_partition(node.inode.ino);
            match self.store().run(Operation::get(partition, &key))? {
                OwnedOutcome::Done(results) => match results.into_iter().next() {
                    Some(OwnedResult::Value { data, .. }) => Ok(data),
                    _ => Err(malformed()),
                },
                OwnedOutcome::Failed(_) => Err(fail(ErrorKind::NoAttribute)),
            }
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As of [`FileSystem::get_xattr`]; `Exists` with `create`; `NoAttribute` with `replace`; `TooLarge`: over
    /// [`ATTRIBUTE_LEN_MAX`].
    pub fn set_xattr(
        &self,
        ctx: &CallerContext,
        file: &XattrSubject<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.on_subject("setxattr", file, |node| {
            check_name(ctx, node, name, WRITE)?;
            if value.len() > ATTRIBUTE_LEN_MAX {
                return Err(fail(ErrorKind::TooLarge));
            }
            self.flag_attributes(node)?;
            let key = key::attribute(node.inode.ino, name);
            let mut op = Operation::put(self.attribute_partition(node.inode.ino), &key, value);
            if flags.create {
                op.guards.push(Guard::Absent(&key));
            } else if flags.replace {
                op.guards.push(Guard::Exists(&key));
            }
            if self.store().run(op)?.is_done() {
                return Ok(());
            }
            Err(fail(if flags.create { ErrorKind::Exists } else { ErrorKind::NoAttribute }))
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As of [`FileSystem::get_xattr`].
    pub fn remove_xattr(
        &self,
        ctx: &CallerContext,
        file: &XattrSubject<'_>,
        name: &[u8],
    ) -> Result<()> {
        self.on_subject("removexattr", file, |node| {
            check_name(ctx, node, name, WRITE)?;
            let key = key::attribute(node.inode.ino, name);
            let op = Operation::new(
                self.attribute_partition(node.inode.ino),
                [Action::Delete { key: &key }],
            )
            .guard(Guard::Exists(&key));
            if self.store().run(op)?.is_done() { Ok(()) } else { Err(fail(ErrorKind::NoAttribute)) }
        })
    }

    /// Names of all extended attributes. Costs no request beyond the look-up when there are none.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`].
    pub fn list_xattrs(
        &self,
        _ctx: &CallerContext,
        file: &XattrSubject<'_>,
    ) -> Result<Vec<Box<[u8]>>> {
        self.on_subject("listxattr", file, |node| {
            if node.inode.flags & FLAG_ATTRIBUTES == 0 {
                return Ok(Vec::new());
            }
            let ino = node.inode.ino;
            let prefix = key::attribute(ino, b"");
            let mut names: Vec<Box<[u8]>> = Vec::new();
            loop {
                let after = names.last().map(|name| key::attribute(ino, name)).unwrap_or_default();
                let list = Action::List {
                    prefix: &prefix,
                    after: &after,
                    limit: ATTRIBUTES_AT_ONCE,
                    reverse: false,
                    value_len_max: 0,
                };
                let op = Operation::new(self.attribute_partition(ino), [list]);
                let (entries, is_complete) = listing(self.store().run(op)?)?;
                names.extend(entries.iter().map(|entry| Box::from(&entry.key[prefix.len()..])));
                if is_complete {
                    return Ok(names);
                }
            }
        })
    }

    fn on_subject<T>(
        &self,
        call: &'static str,
        file: &XattrSubject<'_>,
        run: impl Fn(&FoundInode) -> Result<T>,
    ) -> Result<T> {
        match *file {
            XattrSubject::Path(at, follow) => {
                named(call, at, |at| run(&self.resolve(&CallerContext::root(), at, follow)?))
            }
            XattrSubject::Open(file) => file.context(call, || run(&file.node()?)),
        }
    }

    fn attribute_partition(&self, ino: u64) -> PartitionId {
        self.store().dataset.partition_of(&key::attribute(ino, b""))
    }

    /// Notes in the inode that it has attributes, so that its removal removes them.
    fn flag_attributes(&self, node: &FoundInode) -> Result<()> {
        let mut node = node.clone();
        for _ in 0..LOOKUPS_MAX {
            if node.inode.flags & FLAG_ATTRIBUTES != 0 {
                return Ok(());
            }
            let (old, new) = ([node.inode.flags], [node.inode.flags | FLAG_ATTRIBUTES]);
            let identity = identity_of(&node);
            let key = &node.location.key;
            let op = Operation::new(
                node.location.partition,
                [Action::Write { key, offset: at::FLAGS, data: ValueData::Inline(&new) }],
            )
            .guard(lives_in(&node.location, &identity))
            .guard(Guard::BytesAre { key, offset: at::FLAGS, bytes: &old });
            if self.store().run(op)?.is_done() {
                return Ok(());
            }
            let found = self
                .store()
                .lookup_location(&node.location, crate::records::store::ANY_NAME_SPACE)?;
            node = found
                .filter(|found| found.inode.ino == node.inode.ino)
                .ok_or_else(|| fail(ErrorKind::StaleHandle))?;
        }
        Err(fail(ErrorKind::Busy))
    }
}

fn check_name(ctx: &CallerContext, node: &FoundInode, name: &[u8], mask: u16) -> Result<()> {
    if name.len() > NAME_LEN_MAX {
        return Err(fail(ErrorKind::NameTooLong));
    }
    let inode = &node.inode;
    let is_dir = inode.is_directory();
    if name.starts_with(b"user.") {
        if inode.kind != FileKind::File && !is_dir {
            return Err(fail(ErrorKind::NotOwner));
        }
        if !permits(ctx, inode.perm, inode.uid, inode.gid, is_dir, mask) {
            return Err(fail(ErrorKind::Denied));
        }
        return Ok(());
    }
    if !name.starts_with(b"trusted.") && !name.starts_with(b"security.") {
        return Err(fail(ErrorKind::Unsupported));
    }
    if mask == WRITE && !ctx.may_all() { Err(fail(ErrorKind::NotOwner)) } else { Ok(()) }
}
