//! An open file: where its inode lives, and how its data lie.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use samite_client::{OwnedOutcome, OwnedResult};
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Guard, List};

use crate::cache::DirNode;
use crate::inode::{Inode, Layout, at, identity};
use crate::key::{self, Key};
use crate::moving::pause;
use crate::opens::Left;
use crate::store::{Home, NO_LEASE, Node, fail};
use crate::writing::Writing;
use crate::{Attr, DirHandle, FileKind, FileSystem, OpenFlags};

/// How often an operation may find the inode elsewhere than it thought before it gives up.
const RELOCATIONS_MAX: u32 = 1000;

/// What became of an operation on an inode.
pub enum Tried {
    /// Took effect.
    Done(List<OwnedResult, 2>),
    /// The inode has another layout; the file knows it now.
    OtherLayout,
    /// Another guard did not hold; this is the inode as it is.
    Refused(Inode),
    /// The value would grow over its limit.
    TooLarge,
}

/// An open file or directory. Shared by threads behind an `Arc`; the file offset is the caller's.
///
/// It follows its file when that is renamed, by this process or by another. When another process removes the file,
/// calls fail with
/// `StaleHandle`; when this process does, they go on until [`OpenFile::close`].
pub struct OpenFile {
    pub(crate) fs: FileSystem,
    ino: u64,
    kind: FileKind,
    flags: OpenFlags,
    append: AtomicBool,
    closed: AtomicBool,
    home: RwLock<Home>,
    layout: AtomicU8,
    pub(crate) writing: Writing,
    /// Of a directory.
    path: Option<Box<[u8]>>,
    /// Of a directory: what it was like under which lease epoch.
    directory: Mutex<Option<(Epoch, DirNode)>>,
}

impl OpenFile {
    pub(crate) fn new(
        fs: &FileSystem,
        node: Node,
        flags: OpenFlags,
        path: Option<Box<[u8]>>,
    ) -> Self {
        fs.inner.opens.add(node.inode.ino);
        let size = if node.is_chunked() { node.inode.size } else { node.data_len };
        Self {
            fs: fs.clone(),
            ino: node.inode.ino,
            kind: node.inode.kind,
            flags,
            append: AtomicBool::new(flags.append),
            closed: AtomicBool::new(false),
            layout: AtomicU8::new(node.inode.layout as u8),
            writing: Writing::new(size, node.inode.cuts),
            home: RwLock::new(node.home),
            path,
            directory: Mutex::new(None),
        }
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Kind of the file.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// How it was opened, with `append` as it is now.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        OpenFlags { append: self.append.load(Ordering::Relaxed), ..self.flags }
    }

    /// `O_APPEND` on or off (`F_SETFL`).
    pub fn set_append(&self, append: bool) {
        self.append.store(append, Ordering::Relaxed);
    }

    /// For a directory: its path when it was opened, from the root of the store and with every symbolic link resolved.
    #[must_use]
    pub fn dir_path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// The file system that it belongs to.
    #[must_use]
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// Attributes.
    ///
    /// # Errors
    /// `StaleHandle`: another process removed it.
    pub fn attr(&self) -> Result<Attr> {
        self.context("fstat", || {
            let node = self.node()?;
            self.fs.attr_of(&node, Some(&self.writing))
        })
    }

    /// The listing of this directory.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub fn read_dir(&self) -> Result<DirHandle> {
        if self.kind != FileKind::Directory {
            return Err(fail(ErrorKind::NotDirectory).context("readdir"));
        }
        let parent = key::parse_entry(&self.home().key).map_or(self.ino, |(parent, _)| parent);
        Ok(DirHandle::new(&self.fs, self.ino, parent))
    }

    pub(crate) fn context<T>(&self, call: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        run().map_err(|error| error.context(format_args!("{call} inode {}", self.ino)))
    }

    pub(crate) fn home(&self) -> Home {
        self.home.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout::from_code(self.layout.load(Ordering::Acquire)).unwrap_or(Layout::Inline)
    }

    pub(crate) fn set_layout(&self, layout: Layout) {
        self.layout.store(layout as u8, Ordering::Release);
    }

    fn settle_at(&self, home: Home, layout: Layout) {
        *self.home.write().unwrap_or_else(PoisonError::into_inner) = home;
        self.set_layout(layout);
    }

    /// This directory for a path that starts in it.
    pub(crate) fn as_directory(&self, epoch: Epoch) -> Result<(DirNode, Home)> {
        if self.kind != FileKind::Directory {
            return Err(fail(ErrorKind::NotDirectory));
        }
        let known = *self.lock_directory();
        if let Some((known_epoch, node)) = known
            && known_epoch == epoch
        {
            return Ok((node, self.home()));
        }
        let node = self.node().map_err(|error| match error.kind() {
            ErrorKind::StaleHandle => fail(ErrorKind::NotFound),
            _ => error,
        })?;
        let directory = DirNode::of(&node.inode);
        *self.lock_directory() = Some((epoch, directory));
        Ok((directory, node.home))
    }

    fn lock_directory(&self) -> MutexGuard<'_, Option<(Epoch, DirNode)>> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode, wherever it is now.
    pub(crate) fn node(&self) -> Result<Node> {
        for _ in 0..RELOCATIONS_MAX {
            let home = self.home();
            match self.fs.store().read(&home, NO_LEASE)? {
                Some(node) if node.inode.ino == self.ino => match node.inode.layout {
                    Layout::Moving => self.fs.await_move(&home)?,
                    Layout::Elsewhere => {
                        self.settle_at(self.fs.store().own(self.ino), Layout::Inline);
                    }
                    layout => {
                        self.set_layout(layout);
                        return Ok(node);
                    }
                },
                _ => self.relocate()?,
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// Runs an operation on the inode, wherever it is now. `run` makes it for a home, with the given guard (home and
    /// layout are right) as the first, and lets it reveal the inode.
    pub(crate) fn on_inode(
        &self,
        layout: Layout,
        mut run: impl for<'k> FnMut(&'k Home, Guard<'k>) -> Result<OwnedOutcome>,
    ) -> Result<Tried> {
        for _ in 0..RELOCATIONS_MAX {
            let home = self.home();
            let identity = identity(self.ino, layout);
            let guard = Guard::BytesAre { key: &home.key, offset: at::INO, bytes: &identity };
            let failure = match run(&home, guard)? {
                OwnedOutcome::Done(results) => return Ok(Tried::Done(results)),
                OwnedOutcome::Failed(failure) => failure,
            };
            if failure.kind == ErrorKind::TooLarge {
                return Ok(Tried::TooLarge);
            }
            match failure.current {
                Some(revealed) => {
                    let inode = Inode::decode(&revealed.bytes)?;
                    if inode.ino != self.ino {
                        self.relocate()?;
                    } else if inode.layout == layout {
                        return Ok(Tried::Refused(inode));
                    } else {
                        match inode.layout {
                            Layout::Moving => self.fs.await_move(&home)?,
                            Layout::Elsewhere => {
                                self.settle_at(self.fs.store().own(self.ino), layout);
                            }
                            now => {
                                self.set_layout(now);
                                return Ok(Tried::OtherLayout);
                            }
                        }
                    }
                }
                None => self.relocate()?,
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// The inode is not where it was: finds it.
    fn relocate(&self) -> Result<()> {
        let store = self.fs.store();
        let removing = self.fs.inner.opens.is_removing();
        let mut homes: List<Home, 4> = List::new();
        let location = store.home(key::location(self.ino));
        if let Some((_, entry)) = store.value(&location)? {
            homes.push(store.home(Key::from_slice(&entry)));
        }
        homes.push(store.own(self.ino));
        homes.push(store.home(key::orphan(self.ino)));
        for home in homes {
            if let Some(node) = store.read(&home, NO_LEASE)?
                && node.inode.ino == self.ino
            {
                if home.key.first() == Some(&b'o') {
                    self.fs.inner.opens.set_orphan(self.ino);
                }
                let layout = match node.inode.layout {
                    // Whoever works on it next sees that it moves on.
                    Layout::Moving | Layout::Elsewhere => self.layout(),
                    layout => layout,
                };
                self.settle_at(home, layout);
                return Ok(());
            }
        }
        if removing {
            // Another thread is between removing the name and keeping the inode.
            pause();
            return Ok(());
        }
        Err(fail(ErrorKind::StaleHandle))
    }

    /// Last close of the open file description: settles it, and frees a file that has no name any more.
    /// Dropping an `OpenFile` does nothing of this: another process may still use the description.
    ///
    /// # Errors
    /// Those of writes that could not be settled.
    pub fn close(&self) -> Result<()> {
        self.context("close", || {
            let settled = self.settle();
            if !self.closed.swap(true, Ordering::AcqRel)
                && self.fs.inner.opens.remove(self.ino) == Left::Orphan
            {
                self.fs.free_orphan(self.ino)?;
            }
            settled
        })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            self.fs.inner.opens.remove(self.ino);
        }
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile")
            .field("ino", &self.ino)
            .field("kind", &self.kind)
            .field("flags", &self.flags())
            .finish_non_exhaustive()
    }
}
