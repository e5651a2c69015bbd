//! The open-time snapshot: inode and data of a file, read by the operation that opened it, and
//! valid for a short time.
//!
//! Opening for reading asks for a delegation in the same operation. While it lasts nobody else's
//! change takes effect, and this process's own changes are counted
//! ([`samite_client::Dataset::is_current`]): the snapshot is the same as a node would answer. So
//! opening, reading and closing a small file is one request.
//!
//! In a directory with [`FileSemantics::Session`] it is good until the file is closed, or this process changes something.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use samite_types::{Epoch, ErrorKind, Result};

use crate::records::inode::{DataLayout, INODE_LEN};
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::release_queue::ReferenceRelease;
use crate::records::store::{ANY_NAME_SPACE, FoundInode, LOOKUP_LEN, RecordLocation, fail};
use crate::sharing::delegated::{DelegatedRecord, DelegationStamp};
use crate::{FileKind, FileSemantics, FileSystem, INLINE_LEN_MAX, OpenFile};

/// Term of the delegation that an open asks for: long enough for the first calls after it, and as
/// long as a writer may have to wait for a reader that has died.
const OPEN_TERM: Duration = Duration::from_millis(2);

/// An inode with its data, under a delegation.
pub struct OpenSnapshot {
    delegation: DelegationStamp,
    node: FoundInode,
    /// The record's value from its start.
    value: Vec<u8>,
}

/// Place for an open-time snapshot; emptied when it is of no use any more.
#[derive(Default)]
pub struct SnapshotSlot {
    is_there: AtomicBool,
    snapshot: Mutex<Option<Box<OpenSnapshot>>>,
}

impl SnapshotSlot {
    pub fn new(snapshot: Option<OpenSnapshot>) -> Self {
        Self {
            is_there: AtomicBool::new(snapshot.is_some()),
            snapshot: Mutex::new(snapshot.map(Box::new)),
        }
    }

    /// The result of `pick` on it, if it is still valid.
    fn get<T>(&self, fs: &FileSystem, pick: impl FnOnce(&OpenSnapshot) -> Option<T>) -> Option<T> {
        if !self.is_there.load(Ordering::Relaxed) {
            return None;
        }
        // Never waited for: another thread may have held the lock when this process was forked off.
        let mut snapshot = match self.snapshot.try_lock() {
            Ok(snapshot) => snapshot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if snapshot.as_deref()?.delegation.left(fs).is_some() {
            return pick(snapshot.as_deref()?);
        }
        self.is_there.store(false, Ordering::Relaxed);
        *snapshot = None;
        None
    }
}

impl OpenFile {
    /// The inode, without asking a node.
    pub(crate) fn snapshot_inode(&self) -> Option<FoundInode> {
        self.kept.get(&self.fs, |snapshot| Some(snapshot.node.clone()))
    }

    /// Reads the data of an inline file at `offset` without asking a node.
    pub(crate) fn read_snapshot(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        self.kept.get(&self.fs, |snapshot| {
            let FoundInode { inode, data_len, .. } = &snapshot.node;
            let data = snapshot.value.get(INODE_LEN..)?;
            if inode.layout != DataLayout::Inline || data.len() as u64 != *data_len {
                return None;
            }
            let start = usize::try_from(offset).map_or(data.len(), |start| start.min(data.len()));
            let len = buf.len().min(data.len() - start);
            buf[..len].copy_from_slice(&data[start..start + len]);
            Some(len)
        })
    }
}

impl FileSystem {
    /// The inode in `location`, or in the record that `location` names, for a file that is about to
    /// be opened, and perhaps read: with an open reference on what is found.
    pub(crate) fn lookup_to_open(
        &self,
        location: &RecordLocation,
        epoch: Epoch,
        reads: Option<FileSemantics>,
    ) -> Result<Option<(FoundInode, Option<OpenSnapshot>)>> {
        let mut location = location.clone();
        let mut epoch = epoch;
        for _ in 0..LOOKUPS_MAX {
            let (len, term) = match reads {
                Some(_) => (INODE_LEN + INLINE_LEN_MAX as usize, OPEN_TERM),
                None => (LOOKUP_LEN, Duration::ZERO),
            };
            let how = (len, term, self.token());
            let Some(under) = self.store().read_under(&location, epoch, how)? else {
                return Ok(None);
            };
            let DelegatedRecord { node, value, delegation, read_stamp } = under;
            let delegation = match reads {
                Some(FileSemantics::Session) => read_stamp.map(DelegationStamp::of_session),
                _ => delegation,
            };
            match node.inode.layout {
                DataLayout::Moving => {
                    self.let_go(&node)?;
                    self.store().await_move(&node.location)?;
                }
                DataLayout::Elsewhere => {
                    self.let_go(&node)?;
                    location = self.store().own(node.inode.ino);
                    epoch = ANY_NAME_SPACE;
                }
                _ => {
                    let is_file = node.inode.kind == FileKind::File;
                    let snapshot = delegation
                        .filter(|_| is_file && !node.has_tail())
                        .map(|delegation| OpenSnapshot { delegation, node: node.clone(), value });
                    return Ok(Some((node, snapshot)));
                }
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// The file that was looked up is not opened after all.
    pub(crate) fn let_go(&self, node: &FoundInode) -> Result<()> {
        if node.open_reference == 0 {
            return Ok(());
        }
        let partition = node.location.partition;
        let ino = node.inode.ino;
        self.store().release(ReferenceRelease {
            partition,
            token: node.open_reference,
            ino,
            is_urgent: false,
        })
    }
}
