//! Removing names, and what they named.

use samite_client::{Op, OwnedOutcome, OwnedResult};
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Data, Guard, Operation};

use crate::at::At;
use crate::cache::DirNode;
use crate::filesystem::named;
use crate::inode::{FLAG_ATTRIBUTES, FLAG_RENAMED, INODE_LEN, Inode, Layout, at, identity};
use crate::key;
use crate::marks::EntryMark;
use crate::seal::Sealed;
use crate::store::{NO_LEASE, fail, malformed};
use crate::walk::{LOOKUPS_MAX, SEARCH, WRITE, Walk};
use crate::{Context, FileSystem, Timestamp};

/// Bytes of a name's record that its removal brings along: only the inode, unless a file is open here that may have to
/// live on.
fn removal_len(fs: &FileSystem) -> u32 {
    if fs.inner.opens.is_empty() { INODE_LEN as u32 } else { u32::MAX }
}

impl FileSystem {
    /// Removes a name, and the file with its last name. A file that this process has open lives on until its last
    /// handle is closed.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the path; `IsDirectory`; `NotOwner`: the
    /// directory is sticky.
    pub fn unlink<'a>(&self, ctx: &Context, at: impl Into<At<'a>>) -> Result<()> {
        named("unlink", at, |at| self.under_lease(|epoch| self.try_unlink(ctx, at, epoch)))
    }

    fn try_unlink(&self, ctx: &Context, at: At<'_>, epoch: Epoch) -> Result<()> {
        let mut walk = Walk::start(self, ctx, at, epoch)?;
        if !walk.advance()? {
            return Err(fail(ErrorKind::IsDirectory));
        }
        walk.require(WRITE | SEARCH)?;
        let home = walk.entry();
        if walk.wants_directory || needs_owner(ctx, walk.dir()) {
            let node = self.lookup_home(&home, epoch)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
            if walk.wants_directory && !node.inode.is_directory() {
                return Err(fail(ErrorKind::NotDirectory));
            }
            check_sticky(ctx, walk.dir(), node.inode.uid)?;
        }
        let _removal = self.inner.opens.begin_removal();
        let mark = EntryMark::new(&home.key, Timestamp::now());
        let mut marks = true;
        let mut buf = [0; INODE_LEN];
        for _ in 0..LOOKUPS_MAX {
            let len = removal_len(self);
            let get = Action::Get { key: &home.key, offset: 0, len };
            let mut op = Operation::new(home.partition, [get, Action::Delete { key: &home.key }])
                .guard(Guard::BytesAre { key: &home.key, offset: at::STATE, bytes: &[0] })
                .reveal(INODE_LEN as u32);
            op.actions.extend(mark.actions(0).filter(|_| marks));
            let mut op = Op::new(op).under_lease(epoch);
            if len as usize <= buf.len() {
                op = op.into_dest(&mut buf);
            }
            let outcome = match self.store().run(op) {
                // Removing must work on a full target, where there may be no room for the first mark.
                Err(error) if error.kind() == ErrorKind::NoSpace && marks => {
                    marks = false;
                    continue;
                }
                outcome => outcome?,
            };
            match outcome {
                OwnedOutcome::Done(_) if len as usize <= buf.len() => return self.clean_up(&buf),
                OwnedOutcome::Done(results) => return self.clean_up(&first_value(results)?),
                OwnedOutcome::Failed(failure) => {
                    let found = failure.current.ok_or_else(|| fail(ErrorKind::NotFound))?;
                    let inode = Inode::decode(&found.bytes)?;
                    if inode.layout == Layout::Moving {
                        self.await_move(&home)?;
                    } else {
                        return Err(fail(ErrorKind::IsDirectory));
                    }
                }
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// After the record with this value, which was an entry of a file, is gone.
    pub(crate) fn clean_up(&self, value: &[u8]) -> Result<()> {
        let inode = Inode::decode(value)?;
        if inode.layout == Layout::Elsewhere {
            self.drop_link(inode.ino)
        } else {
            self.clean_up_inode(&inode, value)
        }
    }

    /// After an inode with its last name is gone.
    fn clean_up_inode(&self, inode: &Inode, value: &[u8]) -> Result<()> {
        if self.inner.opens.set_orphan(inode.ino) {
            return self.keep_orphan(inode.ino, value);
        }
        self.free(inode)
    }

    /// Removes what belongs to an inode that is gone.
    fn free(&self, inode: &Inode) -> Result<()> {
        match inode.layout {
            Layout::Chunked => {
                let size = (inode.mark == 0).then_some(inode.size);
                self.store().remove_chunks(inode.ino, size)?;
            }
            Layout::Converting => self.store().remove_chunks(inode.ino, Some(1))?,
            _ => {}
        }
        if inode.flags & FLAG_RENAMED != 0 {
            self.forget_location(inode.ino)?;
        }
        if inode.flags & FLAG_ATTRIBUTES != 0 {
            self.remove_attributes(inode.ino)?;
        }
        Ok(())
    }

    fn forget_location(&self, ino: u64) -> Result<()> {
        let home = self.store().home(key::location(ino));
        let op = Operation::new(home.partition, [Action::Delete { key: &home.key }]);
        self.store().run(op).map(drop)
    }

    /// Keeps an inode without a name for the handles that this process has on it.
    fn keep_orphan(&self, ino: u64, value: &[u8]) -> Result<()> {
        let mut value = value.to_vec();
        let none = 0u64.to_le_bytes();
        let at = at::NLINK as usize;
        value.get_mut(at..at + 8).ok_or_else(malformed)?.copy_from_slice(&none);
        let home = self.store().home(key::orphan(ino));
        self.store().run(Operation::put(home.partition, &home.key, &value)).map(drop)
    }

    /// After the last handle of an orphan was closed.
    pub(crate) fn free_orphan(&self, ino: u64) -> Result<()> {
        let home = self.store().home(key::orphan(ino));
        let get = Action::Get { key: &home.key, offset: 0, len: INODE_LEN as u32 };
        let op = Operation::new(home.partition, [get, Action::Delete { key: &home.key }]);
        match self.store().run(op)? {
            OwnedOutcome::Done(results) => self.free(&Inode::decode(&first_value(results)?)?),
            // Another process was faster.
            OwnedOutcome::Failed(_) => Ok(()),
        }
    }

    /// One link less to an inode in its own record.
    pub(crate) fn drop_link(&self, ino: u64) -> Result<()> {
        let home = self.store().own(ino);
        let now = Timestamp::now().0.to_le_bytes();
        let op = Operation::new(
            home.partition,
            [
                Action::Get { key: &home.key, offset: 0, len: removal_len(self) },
                Action::Add { key: &home.key, offset: at::NLINK, delta: u64::MAX },
                Action::Write { key: &home.key, offset: at::CTIME, data: Data::Inline(&now) },
            ],
        );
        let OwnedOutcome::Done(results) = self.store().run(op)? else { return Ok(()) };
        let value = first_value(results)?;
        if Inode::decode(&value)?.nlink > 1 {
            return Ok(());
        }
        // Unless somebody made another link from an open handle.
        let op = Operation::new(home.partition, [Action::Delete { key: &home.key }])
            .guard(Guard::BytesAre { key: &home.key, offset: at::NLINK, bytes: &[0; 8] });
        if self.store().run(op)?.is_done() {
            self.clean_up_inode(&Inode::decode(&value)?, &value)?;
        }
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As of [`FileSystem::unlink`]; `NotDirectory`; `NotEmpty`; `Invalid`: the path ends in `.`; `InUse`: the root.
    pub fn rmdir<'a>(&self, ctx: &Context, at: impl Into<At<'a>>) -> Result<()> {
        named("rmdir", at, |at| self.under_lease(|epoch| self.try_rmdir(ctx, at, epoch)))
    }

    fn try_rmdir(&self, ctx: &Context, at: At<'_>, epoch: Epoch) -> Result<()> {
        let mut walk = Walk::start(self, ctx, at, epoch)?;
        if !walk.advance()? {
            let trimmed = at.path.trim_ascii_end();
            return Err(fail(if trimmed.ends_with(b"..") {
                ErrorKind::NotEmpty
            } else if trimmed.ends_with(b".") {
                ErrorKind::Invalid
            } else {
                ErrorKind::InUse
            }));
        }
        walk.require(WRITE | SEARCH)?;
        let home = walk.entry();
        let dir = match self.inner.cache.get(epoch, &home.key) {
            Some(dir) => dir,
            None => {
                let node =
                    self.lookup_home(&home, epoch)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
                if !node.inode.is_directory() {
                    return Err(fail(ErrorKind::NotDirectory));
                }
                DirNode::of(&node.inode)
            }
        };
        check_sticky(ctx, walk.dir(), dir.uid)?;
        let sealed = self.seal(&home, dir.ino, epoch)?;
        let Some(inode) = self.delete_sealed(&sealed)? else {
            self.unseal(&sealed)?;
            return Err(fail(ErrorKind::StaleLease));
        };
        self.forget_directory(&sealed)?;
        self.free(&inode)
    }

    /// Removes the entry of a sealed directory. `None`: somebody took this process for dead and stopped the removal.
    pub(crate) fn delete_sealed(&self, sealed: &Sealed) -> Result<Option<Inode>> {
        let home = &sealed.home;
        let (identity, token) = (identity(sealed.ino, Layout::Inline), sealed.token.to_le_bytes());
        let mark = EntryMark::new(&home.key, Timestamp::now());
        let get = Action::Get { key: &home.key, offset: 0, len: INODE_LEN as u32 };
        let mut op = Operation::new(home.partition, [get, Action::Delete { key: &home.key }])
            .guard(Guard::BytesAre { key: &home.key, offset: at::INO, bytes: &identity })
            .guard(Guard::BytesAre { key: &home.key, offset: at::REMOVAL, bytes: &token });
        op.actions.extend(mark.actions(-1));
        match self.store().run(Op::new(op).under_lease(NO_LEASE))? {
            OwnedOutcome::Done(results) => Inode::decode(&first_value(results)?).map(Some),
            OwnedOutcome::Failed(_) => Ok(None),
        }
    }
}

/// Whether only owners may remove names from `dir`, and the caller does not own it.
pub fn needs_owner(ctx: &Context, dir: DirNode) -> bool {
    dir.is_sticky() && ctx.uid != 0 && ctx.uid != dir.uid
}

/// Fails when `dir` is sticky and the caller owns neither it nor the file of `owner`.
pub fn check_sticky(ctx: &Context, dir: DirNode, owner: u32) -> Result<()> {
    if needs_owner(ctx, dir) && ctx.uid != owner {
        return Err(fail(ErrorKind::NotOwner));
    }
    Ok(())
}

/// Bytes that the first action, a `Get`, brought.
pub fn first_value(results: samite_wire::op::List<OwnedResult, 2>) -> Result<Vec<u8>> {
    match results.into_iter().next() {
        Some(OwnedResult::Value { data, .. }) => Ok(data),
        _ => Err(malformed()),
    }
}
