//! Files by handle, for callers that resolve names themselves one by one, as the kernel does for a mount.
//!
//! A handle that a look-up gives names the file and follows it, but keeps nothing open: the file goes with its last name.
//! [`OpenFile::open_again`] opens it.

use samite_types::{ErrorKind, Result};

use crate::files::size::DIRECTORY_SIZE;
use crate::names::at::{RelativePath, named};
use crate::names::make::NewInode;
use crate::names::walk::PathWalk;
use crate::records::key::ROOT_INO;
use crate::records::store::{ANY_NAME_SPACE, FoundInode, fail};
use crate::sharing::delegated::DelegationStamp;
use crate::{CallerContext, FileAttributes, FileKind, FileSystem, OpenFile, OpenFlags};

/// A file and its attributes when it was found.
#[derive(Debug)]
pub struct FoundFile {
    /// A handle that only names it, or the open file.
    pub file: OpenFile,
    /// Its attributes.
    pub attr: FileAttributes,
}

/// A file behind a name that was made if it was missing. Nobody else changes a file that was made
/// while its delegations last.
#[derive(Debug)]
pub struct OpenedFile {
    /// The file.
    pub found: FoundFile,
    /// It was made. The directory's times are then its time of birth, unless they are later.
    pub is_new: bool,
    /// For how long the name means that.
    pub name: Option<DelegationStamp>,
    /// For how long the file has these attributes.
    pub attributes: Option<DelegationStamp>,
}

impl FileSystem {
    /// The root directory.
    ///
    /// # Errors
    /// As of the nodes.
    pub fn root(&self) -> Result<FoundFile> {
        named("look up", b"/", |_| {
            let location = self.store().own(ROOT_INO);
            let node = self.store().lookup_location(&location, ANY_NAME_SPACE)?;
            self.found(node.ok_or_else(|| fail(ErrorKind::NotFound))?)
        })
    }

    /// The file that `at` names; a symbolic link in the last component is not followed.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`].
    pub fn look_up<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<FoundFile> {
        named("look up", at, |at| self.found(self.resolve(ctx, at, false)?))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As of [`FileSystem::mkdir`].
    pub fn make_directory<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        perm: u32,
    ) -> Result<OpenedFile> {
        let new = NewInode { kind: FileKind::Directory, perm, rdev: 0, data: b"" };
        named("mkdir", at, |at| self.enter_new(ctx, at, &new))
    }

    /// Makes a fifo, socket or device node, or an empty regular file.
    ///
    /// # Errors
    /// As of [`FileSystem::mknod`].
    pub fn make_node<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        mode: u32,
        rdev: u64,
    ) -> Result<OpenedFile> {
        named("mknod", at, |at| self.enter_new(ctx, at, &NewInode::node(ctx, mode, rdev)?))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As of [`FileSystem::symlink`].
    pub fn make_symlink<'a>(
        &self,
        ctx: &CallerContext,
        target: &[u8],
        at: impl Into<RelativePath<'a>>,
    ) -> Result<OpenedFile> {
        named("symlink", at, |at| {
            let everyone = CallerContext { umask: 0, ..ctx.clone() };
            self.enter_new(&everyone, at, &NewInode::link_to(target)?)
        })
    }

    /// Makes a file or directory that is not there yet.
    fn enter_new(
        &self,
        ctx: &CallerContext,
        at: RelativePath<'_>,
        new: &NewInode<'_>,
    ) -> Result<OpenedFile> {
        self.under_lease(|epoch| {
            let mut walk = PathWalk::start(self, ctx, at, epoch)?;
            walk.leases = true;
            let node = self.make_walked(ctx, &mut walk, new)?;
            let delegation = walk.made.and_then(|made| made.delegation);
            let mut attr = node.inode.attr(node.data_len);
            let is_directory = node.inode.is_directory();
            if is_directory {
                // Nothing is in it yet.
                (attr.nlink, attr.size, attr.blocks) = (2, DIRECTORY_SIZE, 0);
            }
            let found = FoundFile { file: OpenFile::of_node(self, node), attr };
            // There is no delegation on what is in it.
            let attributes = delegation.filter(|_| !is_directory);
            Ok(OpenedFile { found, is_new: true, name: delegation, attributes })
        })
    }

    /// Opens a file, or makes it when the flags say so; see [`FileSystem::open_file`].
    ///
    /// # Errors
    /// As of [`FileSystem::open_file`].
    pub fn open_found<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<OpenedFile> {
        let (file, new) = named("open", at, |at| {
            self.under_lease(|epoch| {
                let mut walk = PathWalk::start(self, ctx, at, epoch)?;
                walk.leases = true;
                let file = self.open_at(ctx, &mut walk, flags, perm)?;
                Ok((file, walk.made))
            })
        })?;
        let delegation = new.and_then(|new| new.delegation);
        let attr = match &new {
            Some(new) => new.inode.attr(0),
            None => file.attr()?,
        };
        let found = FoundFile { file, attr };
        Ok(OpenedFile { found, is_new: new.is_some(), name: delegation, attributes: delegation })
    }

    pub(crate) fn found(&self, node: FoundInode) -> Result<FoundFile> {
        let attr = self.attr_of(&node, None)?;
        Ok(FoundFile { file: OpenFile::of_node(self, node), attr })
    }
}

impl OpenFile {
    /// Opens this file once more, with other flags; of these, those about making and following names mean nothing.
    ///
    /// # Errors
    /// As of [`FileSystem::open_file`]; `StaleHandle`.
    pub fn open_again(&self, ctx: &CallerContext, flags: OpenFlags) -> Result<Self> {
        let flags = OpenFlags { create: false, excl: false, ..flags };
        self.context("open", || {
            let node = self.node_to_open()?;
            let path = self.dir_path().map(Box::from);
            self.fs.open_node(ctx, node, flags, (path, None))
        })
    }

    /// Makes another name of this file.
    ///
    /// # Errors
    /// As of [`FileSystem::link`]; `StaleHandle`.
    pub fn link<'a>(
        &self,
        ctx: &CallerContext,
        to: impl Into<RelativePath<'a>>,
    ) -> Result<FileAttributes> {
        named("link", to, |to| {
            self.fs.under_lease(|epoch| self.fs.link_node(ctx, self.node()?, to, epoch))?;
            self.attr()
        })
    }

    /// Target of this symbolic link.
    ///
    /// # Errors
    /// `Invalid`: it is none; `StaleHandle`.
    pub fn target(&self) -> Result<Vec<u8>> {
        self.context("readlink", || self.node()?.target.ok_or_else(|| fail(ErrorKind::Invalid)))
    }

    /// Sets the length of this regular file, however it was opened; the caller has checked that it may be written.
    ///
    /// # Errors
    /// `IsDirectory`; `Invalid`: no regular file; `FileTooLarge`; `StaleHandle`.
    pub fn resize(&self, len: u64) -> Result<()> {
        self.context("truncate", || match self.kind() {
            FileKind::File => self.cut(len),
            FileKind::Directory => Err(fail(ErrorKind::IsDirectory)),
            _ => Err(fail(ErrorKind::Invalid)),
        })
    }
}
