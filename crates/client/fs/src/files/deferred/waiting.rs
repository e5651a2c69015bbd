//! The files that wait, and the operations that make them.

use std::collections::VecDeque;
use std::sync::Arc;

use samite_placement::hash;
use samite_types::Epoch;
use samite_wire::op::Operation;

use crate::names::entry_operations::NewEntry;
use crate::records::change_stamps::EntryMark;
use crate::records::inode::at;
use crate::records::key::Key;
use crate::records::store::RecordLocation;
use crate::{CallerContext, OpenFlags, Timestamp};

/// Files that wait here at most.
pub const FILES_MAX: usize = 64;

/// A file that nobody knows of yet.
pub struct UnsentFile {
    pub ino: u64,
    pub location: RecordLocation,
    pub place: Arc<FilePlace>,
    /// Inode and data.
    pub value: Vec<u8>,
    pub flags: OpenFlags,
    /// Token of the handle's open reference.
    pub open_reference: u64,
    pub is_open: bool,
    /// It was open when it was sent: its open reference is to be ended.
    pub is_held: bool,
}

/// The records in which files were made, and the tokens of their handles.
#[derive(PartialEq, Eq)]
pub struct FilePlace {
    /// The directory: its number and where it lives.
    pub dir: u64,
    pub dir_location: RecordLocation,
    /// Key of the directory's tombstone.
    pub tombstone: Key,
    pub epoch: Epoch,
    pub ctx: CallerContext,
}

#[derive(Default)]
pub struct WaitingFiles {
    pub files: NamedFiles,
    pub data_len: usize,
    /// Sent, with no answer yet, the first flight first.
    pub flying: VecDeque<NamedFiles>,
    /// That of the last file.
    place: Option<Arc<FilePlace>>,
}

/// Files, and what finds one of them by its name.
#[derive(Default)]
pub struct NamedFiles {
    pub all: Vec<UnsentFile>,
    /// Of the key of each. The files lie too far apart for all of them to be looked at whenever one is made.
    hashes: Vec<u64>,
}

impl NamedFiles {
    pub fn push(&mut self, file: UnsentFile) {
        if self.all.is_empty() {
            // A file is much to move.
            self.all.reserve(FILES_MAX);
        }
        self.hashes.push(hash(&file.location.key));
        self.all.push(file);
    }

    /// Whether one of them is to be made there; `wanted` is the hash of the key.
    fn has(&self, location: &RecordLocation, wanted: u64) -> bool {
        let mut known = self.hashes.iter().zip(&self.all);
        known.any(|(hash, file)| *hash == wanted && file.location == *location)
    }

    /// The last one of this number.
    pub fn find(&mut self, ino: u64) -> Option<&mut UnsentFile> {
        self.all.iter_mut().rev().find(|file| file.ino == ino)
    }
}

impl WaitingFiles {
    /// Whether a file that waits or flies is to be made there.
    pub fn has(&self, location: &RecordLocation) -> bool {
        let wanted = hash(&location.key);
        let mut all = std::iter::once(&self.files).chain(&self.flying);
        all.any(|files| files.has(location, wanted))
    }

    /// The place of the last file, if it is this one.
    pub fn place(&self, dir: u64, epoch: Epoch, ctx: &CallerContext) -> Option<Arc<FilePlace>> {
        let place = self.place.as_ref()?;
        let is_this = (place.dir, place.epoch) == (dir, epoch) && place.ctx == *ctx;
        is_this.then(|| Arc::clone(place))
    }

    /// From now on files share this place.
    pub fn start_place(&mut self, place: FilePlace) -> Arc<FilePlace> {
        Arc::clone(self.place.insert(Arc::new(place)))
    }
}

impl UnsentFile {
    /// When its directory changed: when it was made.
    fn changed(&self) -> Timestamp {
        let at = at::CTIME as usize + 8;
        let raw = self.value.get(at..).and_then(<[u8]>::first_chunk).copied();
        Timestamp(i64::from_le_bytes(raw.unwrap_or_default()))
    }
}

/// Runs `work` with the operations that make the files.
pub fn with_operations<T>(files: &[UnsentFile], work: impl FnOnce(Vec<Operation<'_>>) -> T) -> T {
    let stamps: Vec<EntryMark> =
        files.iter().map(|file| EntryMark::new(&file.location.key, file.changed())).collect();
    let operations = files.iter().zip(&stamps).map(|(file, stamp)| {
        let entry = NewEntry {
            location: &file.location,
            value: &file.value,
            tombstone: &file.place.tombstone,
            stamp,
            is_directory: false,
            open_reference: if file.is_open { file.open_reference } else { 0 },
        };
        entry.operation(false)
    });
    work(operations.collect())
}
