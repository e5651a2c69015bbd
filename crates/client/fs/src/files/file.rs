//! An open file: where its inode lives, and how its data lie.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use samite_client::{CompletedChange, OwnedOutcome, OwnedResult};
use samite_types::{Epoch, ErrorKind, PartitionId, Result};
use samite_wire::op::{Guard, List};

use crate::files::writing::WriteState;
use crate::names::cache::DirNode;
use crate::records::inode::{DataLayout, Inode, at, identity};
use crate::records::key::{self, Key};
use crate::records::release_queue::ReferenceRelease;
use crate::records::store::{ANY_NAME_SPACE, FoundInode, RecordLocation, fail};
use crate::sharing::open_snapshot::{OpenSnapshot, SnapshotSlot};
use crate::{DirHandle, FileAttributes, FileKind, FileSystem, OpenFlags};

/// How often an operation may find the inode elsewhere than it thought before it gives up.
const RELOCATIONS_MAX: u32 = 1000;

/// The fate of an operation on an inode.
pub enum InodeTry {
    /// Took effect.
    Done(List<OwnedResult, 2>),
    /// The inode has another layout; the file knows it now.
    OtherLayout,
    /// Another guard failed; this is the inode as it is.
    Refused(Inode),
    /// The value would grow over its limit.
    TooLarge,
}

/// An open file or directory. Shared by threads behind an `Arc`; the file offset is the caller's.
///
/// It follows its file when that is renamed, by this process or by another, and keeps it when its
/// last name goes, until [`OpenFile::close`]. Dropped without, it ends its open reference too, but
/// does not settle it; see [`OpenFile::leave`].
pub struct OpenFile {
    pub(crate) fs: FileSystem,
    /// Changes once, when a file that was made without asking turns out to have been there.
    ino: AtomicU64,
    kind: FileKind,
    flags: OpenFlags,
    append: AtomicBool,
    closed: AtomicBool,
    /// The file may be one that this process has told nobody of yet ([`crate::files::deferred`]).
    pub(crate) deferred: AtomicBool,
    /// See [`OpenFile::minding`].
    pub(crate) set_id: AtomicU64,
    /// Token of its open reference, 0 for none.
    open_reference: AtomicU64,
    /// The change that made it, and took its open reference, where the node was not asked.
    made_by: Option<CompletedChange>,
    /// Token of the open reference of the process that opened the file, when this one inherited the
    /// handle and took a reference of its own.
    inherited: AtomicU64,
    location: RwLock<RecordLocation>,
    layout: AtomicU8,
    pub(crate) writing: WriteState,
    /// Inode and data as the open found them.
    pub(crate) kept: SnapshotSlot,
    /// Of a directory.
    path: Option<Box<[u8]>>,
    /// Of a directory: its attributes, and the name-space generation under which they were read.
    directory: Mutex<Option<(Epoch, DirNode)>>,
}

impl OpenFile {
    pub(crate) fn new(
        fs: &FileSystem,
        node: FoundInode,
        flags: OpenFlags,
        path: Option<Box<[u8]>>,
    ) -> Self {
        Self::build(fs, node, flags, path, false)
    }

    /// A handle that only names the file: it follows the file, but does not keep it when its last name goes.
    pub(crate) fn of_node(fs: &FileSystem, node: FoundInode) -> Self {
        Self::build(fs, node, OpenFlags::default(), None, true)
    }

    /// Another handle of this file, that only names it.
    #[must_use]
    pub fn naming(&self) -> Self {
        let location = self.location();
        self.fs.note_directory(self.kind, self.ino(), &location);
        Self {
            fs: self.fs.clone(),
            ino: AtomicU64::new(self.ino()),
            deferred: AtomicBool::new(false),
            set_id: AtomicU64::new(crate::files::set_id::NEVER),
            kind: self.kind,
            flags: OpenFlags::default(),
            append: AtomicBool::new(false),
            closed: AtomicBool::new(true),
            open_reference: AtomicU64::new(0),
            made_by: None,
            inherited: AtomicU64::new(0),
            layout: AtomicU8::new(self.layout() as u8),
            writing: WriteState::new(0, 0),
            kept: SnapshotSlot::default(),
            location: RwLock::new(location),
            path: None,
            directory: Mutex::new(None),
        }
    }

    fn build(
        fs: &FileSystem,
        node: FoundInode,
        flags: OpenFlags,
        path: Option<Box<[u8]>>,
        closed: bool,
    ) -> Self {
        let size = if node.is_chunked() { node.inode.size } else { node.data_len };
        fs.note_directory(node.inode.kind, node.inode.ino, &node.location);
        Self {
            fs: fs.clone(),
            ino: AtomicU64::new(node.inode.ino),
            deferred: AtomicBool::new(false),
            set_id: AtomicU64::new(crate::files::set_id::NEVER),
            kind: node.inode.kind,
            flags,
            append: AtomicBool::new(flags.append),
            closed: AtomicBool::new(closed),
            open_reference: AtomicU64::new(node.open_reference),
            made_by: None,
            inherited: AtomicU64::new(0),
            layout: AtomicU8::new(node.inode.layout as u8),
            writing: WriteState::new(size, node.inode.cuts),
            kept: SnapshotSlot::default(),
            location: RwLock::new(node.location),
            path,
            directory: Mutex::new(None),
        }
    }

    /// The same, for a file that was made without asking the node, if `change` says so.
    pub(crate) const fn made_by(mut self, change: Option<CompletedChange>) -> Self {
        self.made_by = change;
        self
    }

    /// The same, with the snapshot that opening it returned.
    pub(crate) fn keeping(mut self, snapshot: Option<OpenSnapshot>) -> Self {
        self.kept = SnapshotSlot::new(snapshot);
        self
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.ino.load(Ordering::Acquire)
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
    /// `StaleHandle`: it was removed, and this handle only names it.
    pub fn attr(&self) -> Result<FileAttributes> {
        self.context("fstat", || {
            if let Some(inode) = self.deferred_attr()? {
                return Ok(inode);
            }
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
        let location = self.location();
        if key::is_orphan(&location.key) {
            return Ok(DirHandle::empty(&self.fs, self.ino()));
        }
        let parent = key::parse_entry(&location.key).map_or(self.ino(), |(parent, _)| parent);
        Ok(DirHandle::new(&self.fs, self.ino(), parent))
    }

    pub(crate) fn context<T>(&self, call: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        run().map_err(|error| error.context(format_args!("{call} inode {}", self.ino())))
    }

    pub(crate) fn location(&self) -> RecordLocation {
        self.location.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn layout(&self) -> DataLayout {
        DataLayout::from_code(self.layout.load(Ordering::Acquire)).unwrap_or(DataLayout::Inline)
    }

    pub(crate) fn set_layout(&self, layout: DataLayout) {
        self.layout.store(layout as u8, Ordering::Release);
    }

    /// The file is another one than it seemed.
    pub(crate) fn rebind(&self, node: &FoundInode) {
        self.ino.store(node.inode.ino, Ordering::Release);
        self.settle_at(node.location.clone(), node.inode.layout);
    }

    fn settle_at(&self, location: RecordLocation, layout: DataLayout) {
        *self.location.write().unwrap_or_else(PoisonError::into_inner) = location;
        self.set_layout(layout);
    }

    /// This directory for a path that starts in it.
    pub(crate) fn as_directory(&self, epoch: Epoch) -> Result<(DirNode, RecordLocation)> {
        if self.kind != FileKind::Directory {
            return Err(fail(ErrorKind::NotDirectory));
        }
        let known = *self.lock_directory();
        if let Some((known_epoch, node)) = known
            && known_epoch == epoch
        {
            return Ok((node, self.location()));
        }
        let node = self.node().map_err(|error| match error.kind() {
            ErrorKind::StaleHandle => fail(ErrorKind::NotFound),
            _ => error,
        })?;
        if key::is_orphan(&node.location.key) {
            // Removed: nothing is in it, and nothing can be made.
            return Err(fail(ErrorKind::NotFound));
        }
        let directory = DirNode::of(&node.inode);
        *self.lock_directory() = Some((epoch, directory));
        Ok((directory, node.location))
    }

    fn lock_directory(&self) -> MutexGuard<'_, Option<(Epoch, DirNode)>> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode, wherever it is now.
    pub(crate) fn node(&self) -> Result<FoundInode> {
        self.make_known()?;
        if let Some(node) = self.snapshot_inode() {
            return Ok(node);
        }
        for _ in 0..RELOCATIONS_MAX {
            let location = self.location();
            match self.fs.store().read(&location, ANY_NAME_SPACE)? {
                Some(node) if node.inode.ino == self.ino() => match node.inode.layout {
                    DataLayout::Moving => self.fs.store().await_move(&location)?,
                    DataLayout::Elsewhere => {
                        self.settle_at(self.fs.store().own(self.ino()), DataLayout::Inline);
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

    /// The inode, with an open reference for another handle.
    pub(crate) fn node_to_open(&self) -> Result<FoundInode> {
        for _ in 0..RELOCATIONS_MAX {
            match self.fs.lookup_to_open(&self.location(), ANY_NAME_SPACE, None)? {
                Some((node, _)) if node.inode.ino == self.ino() => return Ok(node),
                Some((node, _)) => self.fs.let_go(&node)?,
                None => {}
            }
            self.relocate()?;
        }
        Err(fail(ErrorKind::Busy))
    }

    /// Runs an operation on the inode, wherever it is now. `run` makes it for a record location,
    /// with the given guard (location and layout are right) as the first, and lets it reveal the
    /// inode.
    pub(crate) fn on_inode(
        &self,
        layout: DataLayout,
        mut run: impl for<'k> FnMut(&'k RecordLocation, Guard<'k>) -> Result<OwnedOutcome>,
    ) -> Result<InodeTry> {
        self.make_known()?;
        for _ in 0..RELOCATIONS_MAX {
            let location = self.location();
            let identity = identity(self.ino(), layout);
            let guard = Guard::BytesAre { key: &location.key, offset: at::INO, bytes: &identity };
            let failure = match run(&location, guard)? {
                OwnedOutcome::Done(results) => return Ok(InodeTry::Done(results)),
                OwnedOutcome::Failed(failure) => failure,
            };
            if failure.kind == ErrorKind::TooLarge {
                return Ok(InodeTry::TooLarge);
            }
            match failure.current {
                Some(revealed) => {
                    let inode = Inode::decode(&revealed.bytes)?;
                    if inode.ino != self.ino() {
                        self.relocate()?;
                    } else if inode.layout == layout {
                        return Ok(InodeTry::Refused(inode));
                    } else {
                        match inode.layout {
                            DataLayout::Moving => self.fs.store().await_move(&location)?,
                            DataLayout::Elsewhere => {
                                self.settle_at(self.fs.store().own(self.ino()), layout);
                            }
                            now => {
                                self.set_layout(now);
                                return Ok(InodeTry::OtherLayout);
                            }
                        }
                    }
                }
                None => self.relocate()?,
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// Looks where the inode may be; settles there if it is.
    fn is_at(&self, location: RecordLocation) -> Result<bool> {
        let store = self.fs.store();
        let found = store.value(&location)?.map(|(_, value)| Inode::decode(&value));
        let Some(Ok(inode)) =
            found.filter(|inode| matches!(inode, Ok(inode) if inode.ino == self.ino()))
        else {
            return Ok(false);
        };
        let layout = match inode.layout {
            // The next operation on it sees that it moves on.
            DataLayout::Moving | DataLayout::Elsewhere => self.layout(),
            layout => layout,
        };
        self.settle_at(location, layout);
        Ok(true)
    }

    /// Asks `partition` for the record with this handle's open reference.
    fn is_held_in(&self, partition: PartitionId) -> Result<bool> {
        match self.fs.store().locate(partition, self.open_reference())? {
            Some(location) => self.is_at(location),
            None => Ok(false),
        }
    }

    /// The inode is not where it was: finds it.
    fn relocate(&self) -> Result<()> {
        let store = self.fs.store();
        if self.is_held_in(self.location().partition)? {
            return Ok(());
        }
        let mut locations: List<RecordLocation, 4> = List::new();
        let pointer = store.location(key::location(self.ino()));
        if let Some((_, entry)) = store.value(&pointer)? {
            locations.push(store.location(Key::from_slice(&entry)));
        }
        let coming = locations.first().cloned();
        locations.push(store.own(self.ino()));
        for location in locations {
            let partition = location.partition;
            if self.is_at(location)? || self.is_held_in(partition)? {
                return Ok(());
            }
        }
        if let Some(location) = coming
            && let Some(node) = store.read(&location, ANY_NAME_SPACE)?
            && node.inode.layout == DataLayout::Moving
        {
            // An exchange moves it there.
            return self.fs.store().await_move(&location);
        }
        Err(fail(ErrorKind::StaleHandle))
    }

    /// Last close of the open file description: settles it, and ends the open reference.
    ///
    /// # Errors
    /// Failures of writes that could not be settled.
    pub fn close(&self) -> Result<()> {
        self.context("close", || {
            let was_closed = self.closed.swap(true, Ordering::AcqRel);
            let sent = match self.leave_deferred() {
                // No node knows of it yet.
                Ok(true) => return Ok(()),
                sent => sent.map(drop),
            };
            // Ahead of settling: so both go in one request.
            if !was_closed {
                // A reference that cannot be ended now ends with this process at the latest; no
                // data depend on it.
                let _ = self.let_go(true);
            }
            let settled = self.settle();
            let _ = self.fs.inner.store.flush_urgent();
            sent.and(settled)
        })
    }

    /// Another process still uses the open file description: this handle ends only the reference
    /// that [`OpenFile::reference_again`] took.
    pub fn leave(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) && self.inherited.load(Ordering::Acquire) != 0
        {
            // The open reference ends with this process at the latest.
            let _ = self.let_go(false);
        }
    }

    /// Takes an open reference for this process too. For a handle that was inherited over `fork` or
    /// `exec`: the reference that came with it ends with the process that opened the file.
    ///
    /// # Errors
    /// `StaleHandle`: it is too late; as of the nodes.
    pub fn reference_again(&self) -> Result<()> {
        if self.open_reference() == 0 {
            return Ok(());
        }
        let node = self.node_to_open()?;
        let before = self.open_reference.swap(node.open_reference, Ordering::AcqRel);
        // The process that closes it last ends the reference of the process that opened the file
        // too.
        let _ = self.inherited.compare_exchange(0, before, Ordering::AcqRel, Ordering::Acquire);
        self.settle_at(node.location, node.inode.layout);
        Ok(())
    }

    pub(crate) fn inherited(&self) -> u64 {
        self.inherited.load(Ordering::Acquire)
    }

    pub(crate) fn inheriting(self, token: u64) -> Self {
        self.inherited.store(token, Ordering::Release);
        self
    }

    /// Whether others than this process may have to wait for its close: the file has no name any more, or takes much space.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        is_urgent(&self.location(), self.layout())
    }

    /// Token of its open reference; 0 for none.
    pub(crate) fn open_reference(&self) -> u64 {
        self.open_reference.load(Ordering::Acquire)
    }

    /// The connection with which this process's open reference lives; `None` when it has none.
    #[must_use]
    pub fn reference_connection(&self) -> Option<i32> {
        let partition = self.location().partition;
        if self.open_reference() == 0 {
            None
        } else {
            self.fs.store().dataset.connection_to(partition)
        }
    }

    /// `is_last`: no process has the description any more.
    fn let_go(&self, is_last: bool) -> Result<()> {
        if self.open_reference() == 0 {
            return Ok(());
        }
        let (partition, is_urgent) = (self.location().partition, self.is_urgent());
        let inherited = self.inherited();
        if is_last && inherited != 0 {
            // It may be gone already: not looked for.
            let release = ReferenceRelease { partition, token: inherited, ino: 0, is_urgent };
            self.fs.inner.store.release(release)?;
        }
        // The node need not hear of an open reference that it has yet to take.
        if let Some(change) = self.made_by
            && self.fs.inner.store.dataset.end_reference(partition, change, self.open_reference())
        {
            return Ok(());
        }
        self.fs.inner.store.release(ReferenceRelease {
            partition,
            token: self.open_reference(),
            ino: self.ino(),
            is_urgent,
        })
    }
}

/// See [`OpenFile::is_urgent`].
pub fn is_urgent(location: &RecordLocation, layout: DataLayout) -> bool {
    key::is_orphan(&location.key) || !matches!(layout, DataLayout::Inline)
}

impl FileSystem {
    /// A handle on a file is made.
    fn note_directory(&self, kind: FileKind, ino: u64, location: &RecordLocation) {
        if kind == FileKind::Directory {
            self.inner.directories.add(ino, &location.key);
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if *self.deferred.get_mut() {
            // Nobody is left to hear of a failure but callers of `late_failures`.
            if let Ok(true) = self.leave_deferred() {
                *self.closed.get_mut() = true;
            }
        }
        if self.kind == FileKind::Directory {
            self.fs.inner.directories.remove(self.ino());
        }
        if !*self.closed.get_mut() {
            // Nobody is there to hear of a failure; the open reference ends with this process at
            // the latest.
            let _ = self.let_go(true).and_then(|()| self.fs.inner.store.flush_urgent());
        }
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile")
            .field("ino", &self.ino())
            .field("kind", &self.kind)
            .field("flags", &self.flags())
            .finish_non_exhaustive()
    }
}
