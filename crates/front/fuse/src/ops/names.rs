//! Names: looking them up, making and removing them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{Errno, FileAttr};
use samite_fs::{
    CallerContext, FileKind, NAME_LEN_MAX, OpenFile, OpenFlags, OpenedFile, RelativePath,
    RenameFlags, ResolvedName, Timestamp,
};
use samite_types::Result;

use super::{FuseOperations, failed};
use crate::caching::AnswerBasis;
use crate::directories::{ChangeEffect, NameChange};
use crate::kernel::{self, Answer, KernelName};

/// Most names of a directory that are listed so that those which are missing are known.
const LISTED_MAX: u32 = 2048;

impl<'a> KernelName<'a> {
    fn made(self) -> NameChange<'a> {
        NameChange::Make(self.name.as_bytes())
    }

    fn removed(self) -> NameChange<'a> {
        NameChange::Remove(self.name.as_bytes())
    }
}

/// The file behind a name, and for how long the name means it.
pub struct SeenName<T> {
    /// Its attributes.
    pub attr: T,
    /// For how long the name means that.
    pub name: Option<AnswerBasis>,
    /// For how long the attributes are these.
    pub attributes: Option<AnswerBasis>,
}

/// A new kind of file.
#[derive(Clone, Copy)]
pub enum NewKind<'a> {
    /// Directory with these permissions.
    Directory(u32),
    /// File, fifo, socket or device: `st_mode` and device numbers.
    Node(u32, u32),
    /// Symbolic link to this.
    Symlink(&'a [u8]),
}

impl FuseOperations {
    /// The file behind a name, if there is one.
    pub fn look_up(
        &self,
        context: &CallerContext,
        at: KernelName<'_>,
    ) -> Answer<SeenName<Option<FileAttr>>> {
        let directory = self.nodes.get(at.parent)?;
        let place = within(&directory, at.name);
        if !self.caching.is_on() {
            let found = self.fs.look_up(context, place).map_err(failed)?;
            return Ok(SeenName {
                attr: Some(self.remember(found, at)),
                name: None,
                attributes: None,
            });
        }
        if self.is_missing(&directory, at) {
            return Ok(SeenName { attr: None, name: None, attributes: None });
        }
        let named = self.fs.look_up_leased(context, place).map_err(failed)?;
        let ResolvedName { found, name, attributes } = self.kept(named);
        let attr = found.map(|found| self.remember(found, at));
        let (name, attributes) =
            (name.map(AnswerBasis::Delegation), attributes.map(AnswerBasis::Delegation));
        Ok(SeenName { attr, name, attributes })
    }

    /// Whether it is known, or can be learnt together with what else is in the directory, that there is no such name.
    fn is_missing(&self, directory: &OpenFile, at: KernelName<'_>) -> bool {
        let (directories, name) = (&self.caching.directories, at.name.as_bytes());
        // For a name that cannot exist, the look-up says more than that it is missing.
        if name.len() > NAME_LEN_MAX {
            return false;
        }
        if directories.lack(at.parent, name) {
            return true;
        }
        if !directories.wants_names(at.parent) {
            return false;
        }
        match directory.names_leased(LISTED_MAX) {
            Ok(Some((names, delegation))) => {
                directories.know(&self.fs, at.parent, names, &delegation);
                directories.lack(at.parent, name)
            }
            // A look-up of this name alone tells why.
            Ok(None) | Err(_) => false,
        }
    }

    /// The part of `named` that the kernel may keep.
    pub(super) fn kept(&self, named: ResolvedName) -> ResolvedName {
        let ResolvedName { found, name, attributes } = named;
        let attributes = attributes.filter(|_| {
            found
                .as_ref()
                .is_some_and(|found| self.caching.keeps(found.file.record(), found.attr.ino))
        });
        if let (Some(found), Some(delegation)) = (&found, &attributes)
            && found.file.kind() == FileKind::Directory
        {
            self.caching.directories.keep(&self.fs, &found.attr, delegation);
        }
        ResolvedName { found, name, attributes }
    }

    /// Lets the kernel keep a file that was made or found, as far as there are delegations.
    fn entered(&self, entered: &OpenedFile) -> SeenName<FileAttr> {
        let OpenedFile { found, name, attributes, .. } = entered;
        let attributes = attributes
            .filter(|_| self.caching.is_on())
            .filter(|_| self.caching.keeps(found.file.record(), found.attr.ino));
        let name = name.filter(|_| self.caching.is_on());
        SeenName {
            attr: kernel::file_attr(&found.attr),
            name: name.map(AnswerBasis::Delegation),
            attributes: attributes.map(AnswerBasis::Delegation),
        }
    }

    /// Makes a name with a new file behind it.
    pub fn make(
        &self,
        context: &CallerContext,
        at: KernelName<'_>,
        new: NewKind<'_>,
    ) -> Answer<SeenName<FileAttr>> {
        let directory = self.nodes.get(at.parent)?;
        let place = within(&directory, at.name);
        let make = || match new {
            NewKind::Directory(perm) => self.fs.make_directory(context, place, perm),
            NewKind::Node(mode, rdev) => self.fs.make_node(context, place, mode, rdev.into()),
            NewKind::Symlink(target) => self.fs.make_symlink(context, target, place),
        };
        let entered = self.caching.directories.change(at.parent, at.made(), make, of_entering);
        let entered = entered.map_err(failed)?;
        let seen = self.entered(&entered);
        self.introduce(entered.found.file, at);
        Ok(seen)
    }

    /// Makes a file if it is missing, and opens it.
    pub fn create(
        &self,
        context: &CallerContext,
        at: KernelName<'_>,
        mode: u32,
        flags: i32,
    ) -> Answer<(SeenName<FileAttr>, u64)> {
        let directory = self.nodes.get(at.parent)?;
        let flags = OpenFlags {
            create: true,
            nofollow: true,
            ..OpenFlags::from_oflags(flags.cast_unsigned())
        };
        let place = within(&directory, at.name);
        let create = || self.fs.open_found(context, place, flags, mode & 0o7777);
        let entered = self.caching.directories.change(at.parent, at.made(), create, of_entering);
        let entered = entered.map_err(failed)?;
        let seen = self.entered(&entered);
        let file = entered.found.file;
        self.nodes.remember(file.naming());
        let file = Arc::new(file);
        let handle = self.handles.add(file.clone());
        self.nodes.opened(handle, &file);
        Ok((seen, handle))
    }

    /// Makes another name of a file.
    pub fn link(&self, context: &CallerContext, ino: u64, at: KernelName<'_>) -> Answer<FileAttr> {
        let (file, directory) = (self.nodes.get(ino)?, self.nodes.get(at.parent)?);
        let link = || file.link(context, within(&directory, at.name));
        let directories = &self.caching.directories;
        let attr = directories.change(at.parent, at.made(), link, |_| ChangeEffect::Unknown);
        let attr = attr.map_err(failed)?;
        self.nodes.remember_again(ino);
        Ok(kernel::file_attr(&attr))
    }

    /// Removes the name of a file.
    pub fn unlink(&self, context: &CallerContext, at: KernelName<'_>) -> Answer<()> {
        let directory = self.nodes.get(at.parent)?;
        let unlink = || self.fs.unlink_timed(context, within(&directory, at.name));
        let effect = |result: &Result<Option<Timestamp>>| match result {
            Ok(Some(time)) => ChangeEffect::Entries(*time, 0),
            _ => ChangeEffect::Unknown,
        };
        let directories = &self.caching.directories;
        directories.change(at.parent, at.removed(), unlink, effect).map(drop).map_err(failed)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, context: &CallerContext, at: KernelName<'_>) -> Answer<()> {
        let directory = self.nodes.get(at.parent)?;
        let directories = &self.caching.directories;
        let rmdir = || {
            let place = within(&directory, at.name);
            let removed =
                |result: &Result<(u64, Timestamp)>| result.as_ref().ok().map(|gone| gone.0);
            let of_names = (at.parent, NameChange::Attributes);
            directories.change_any(of_names, || self.fs.rmdir_timed(context, place), removed)
        };
        let effect = |result: &Result<(u64, Timestamp)>| match result {
            Ok((_, time)) => ChangeEffect::Entries(*time, -1),
            Err(_) => ChangeEffect::Unknown,
        };
        directories.change(at.parent, at.removed(), rmdir, effect).map_err(failed)?;
        self.places.removed(at);
        Ok(())
    }

    /// Renames.
    pub fn rename(
        &self,
        context: &CallerContext,
        from: KernelName<'_>,
        to: KernelName<'_>,
        flags: fuser::RenameFlags,
    ) -> Answer<()> {
        // The kernel refuses any other kind.
        if !(flags - fuser::RenameFlags::all()).is_empty() {
            return Err(Errno::EINVAL);
        }
        let flags = RenameFlags {
            no_replace: flags.contains(fuser::RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(fuser::RenameFlags::RENAME_EXCHANGE),
            whiteout: flags.contains(fuser::RenameFlags::RENAME_WHITEOUT),
        };
        let (old, new) = (self.nodes.get(from.parent)?, self.nodes.get(to.parent)?);
        // A directory may be among the renamed files.
        let rename =
            || self.fs.rename(context, within(&old, from.name), within(&new, to.name), flags);
        let of_names = (to.parent, to.made());
        self.caching.directories.change_any(of_names, rename, |_| None).map_err(failed)?;
        self.places.renamed(from, to, flags.exchange);
        Ok(())
    }

    /// Target of a symbolic link.
    pub fn target(&self, ino: u64) -> Answer<Vec<u8>> {
        self.nodes.get(ino)?.target().map_err(failed)
    }
}

/// The effect of making a file on the directory: it has the time of the file's birth.
fn of_entering(result: &Result<OpenedFile>) -> ChangeEffect {
    match result {
        Ok(OpenedFile { found, is_new: true, .. }) => {
            let is_directory = found.file.kind() == FileKind::Directory;
            ChangeEffect::Entries(found.attr.btime, i32::from(is_directory))
        }
        Ok(_) => ChangeEffect::None,
        Err(_) => ChangeEffect::Unknown,
    }
}

fn within<'a>(directory: &'a OpenFile, name: &'a OsStr) -> RelativePath<'a> {
    RelativePath::dir(directory, name.as_bytes())
}
