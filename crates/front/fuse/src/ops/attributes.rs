//! Attributes, plain and extended.

use fuser::{Errno, FileAttr, TimeOrNow};
use samite_fs::{CallerContext, FileKind, OpenFile, SetTime, XattrFlags, XattrSubject};
use samite_types::{Error, ErrorKind};

use super::{FuseOperations, failed};
use crate::caching::{AnswerBasis, LEFT_MIN};
use crate::directories::{ChangeEffect, NameChange};
use crate::kernel::{self, Answer};

/// The attributes that are to be changed.
#[derive(Clone, Copy, Default)]
pub struct AttributeChanges {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
}

const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

impl FuseOperations {
    /// Attributes of an inode, or of an open file, and for how long it has them.
    pub fn attr(&self, ino: u64, handle: Option<u64>) -> Answer<(FileAttr, Option<AnswerBasis>)> {
        if let Some((attr, standing)) = self.caching.directories.get(ino, LEFT_MIN) {
            return Ok((kernel::file_attr(&attr), Some(AnswerBasis::Directory(standing))));
        }
        let file = match handle {
            Some(handle) => self.file(handle)?.file.clone(),
            None => self.nodes.get(ino)?,
        };
        // The kernel asks on behalf of calls on names in a directory: a removed directory has none.
        let failed = |error: Error| match (file.kind(), error.kind()) {
            (FileKind::Directory, ErrorKind::StaleHandle) => Errno::ENOENT,
            _ => failed(error),
        };
        if !self.caching.is_on() {
            return Ok((kernel::file_attr(&file.attr().map_err(failed)?), None));
        }
        let (attr, delegation) = file.attr_leased().map_err(failed)?;
        let delegation = delegation.filter(|_| self.caching.keeps(file.record(), ino));
        if let Some(delegation) = delegation.filter(|_| attr.kind == FileKind::Directory) {
            self.caching.directories.keep(&self.fs, &attr, &delegation);
        }
        Ok((kernel::file_attr(&attr), delegation.map(AnswerBasis::Delegation)))
    }

    /// Changes attributes, and tells what they are then.
    pub fn set_attr(
        &self,
        context: &CallerContext,
        ino: u64,
        handle: Option<u64>,
        changes: &AttributeChanges,
    ) -> Answer<FileAttr> {
        let file = match handle {
            Some(handle) => self.file(handle)?.file.clone(),
            None => self.nodes.get(ino)?,
        };
        let change = || change(context, &file, changes);
        self.change_attributes(ino, change).map_err(failed)?;
        Ok(kernel::file_attr(&file.attr().map_err(failed)?))
    }

    /// Changes attributes of an inode, which may be a directory.
    fn change_attributes<T>(
        &self,
        ino: u64,
        run: impl FnOnce() -> samite_types::Result<T>,
    ) -> samite_types::Result<T> {
        self.caching.directories.change(ino, NameChange::Attributes, run, |_| ChangeEffect::Unknown)
    }

    /// Value of an extended attribute.
    pub fn get_xattr(&self, context: &CallerContext, ino: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let file = self.nodes.get(ino)?;
        self.fs.get_xattr(context, &XattrSubject::Open(&file), name).map_err(failed)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        context: &CallerContext,
        ino: u64,
        (name, value): (&[u8], &[u8]),
        flags: i32,
    ) -> Answer<()> {
        if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
            return Err(Errno::EINVAL);
        }
        let flags =
            XattrFlags { create: flags & XATTR_CREATE != 0, replace: flags & XATTR_REPLACE != 0 };
        let file = self.nodes.get(ino)?;
        let set = || self.fs.set_xattr(context, &XattrSubject::Open(&file), name, value, flags);
        self.change_attributes(ino, set).map_err(failed)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, context: &CallerContext, ino: u64, name: &[u8]) -> Answer<()> {
        let file = self.nodes.get(ino)?;
        let remove = || self.fs.remove_xattr(context, &XattrSubject::Open(&file), name);
        self.change_attributes(ino, remove).map_err(failed)
    }

    /// Names of all extended attributes, each with a NUL behind it.
    pub fn list_xattrs(&self, context: &CallerContext, ino: u64) -> Answer<Vec<u8>> {
        let file = self.nodes.get(ino)?;
        let names = self.fs.list_xattrs(context, &XattrSubject::Open(&file)).map_err(failed)?;
        let may_see = |name: &[u8]| context.uid == 0 || !name.starts_with(b"trusted.");
        let mut list = Vec::new();
        for name in names.iter().filter(|name| may_see(name)) {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    /// Space and number of files of the store.
    pub fn statfs(&self) -> Answer<samite_fs::StatFs> {
        self.fs.statfs().map_err(failed)
    }
}

fn change(
    context: &CallerContext,
    file: &OpenFile,
    changes: &AttributeChanges,
) -> samite_types::Result<()> {
    if changes.uid.is_some() || changes.gid.is_some() {
        file.chown(context, changes.uid, changes.gid)?;
    }
    // After the owner, whose change takes set-id bits off: the kernel says what the mode is in the end.
    if let Some(mode) = changes.mode {
        file.chmod(context, mode & 0o7777)?;
    }
    if let Some(size) = changes.size {
        file.resize(size)?;
    }
    let (atime, mtime) = (kernel::set_time(changes.atime), kernel::set_time(changes.mtime));
    // A new length has set the time of modification.
    let mtime = if changes.size.is_some() && mtime == SetTime::Now { SetTime::Keep } else { mtime };
    if (atime, mtime) != (SetTime::Keep, SetTime::Keep) {
        file.utimens(context, atime, mtime)?;
    }
    Ok(())
}
