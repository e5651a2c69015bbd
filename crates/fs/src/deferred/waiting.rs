//! The files that wait, and the operations that make them.

use std::collections::VecDeque;
use std::sync::Arc;

use samite_placement::hash;
use samite_types::Epoch;
use samite_wire::op::{Action, Guard, Operation};

use super::FILES_MAX;
use crate::inode::at;
use crate::key::{self, Key};
use crate::marks::EntryMark;
use crate::store::Home;
use crate::walk::Walk;
use crate::{Context, OpenFlags, Timestamp};

/// A file that nobody knows of yet.
pub struct Unsent {
    pub ino: u64,
    pub home: Home,
    pub place: Arc<Place>,
    /// Inode and data.
    pub value: Vec<u8>,
    pub flags: OpenFlags,
    /// Token of the handle's hold.
    pub hold: u64,
    pub is_open: bool,
    /// It was open when it was sent: its hold is to be ended.
    pub is_held: bool,
}

/// Where files were made, and by whom.
#[derive(PartialEq, Eq)]
pub struct Place {
    /// The directory: its number and where it lives.
    pub dir: u64,
    pub dir_home: Home,
    pub seal: Key,
    pub epoch: Epoch,
    pub ctx: Context,
}

#[derive(Default)]
pub struct Waiting {
    pub files: Files,
    pub data_len: usize,
    /// Sent, with no answer yet, the first flight first.
    pub flying: VecDeque<Files>,
    /// That of the last file.
    place: Option<Arc<Place>>,
}

/// Files, and what finds one of them by its name.
#[derive(Default)]
pub struct Files {
    pub all: Vec<Unsent>,
    /// Of the key of each. The files lie too far apart for all of them to be looked at whenever one is made.
    hashes: Vec<u64>,
}

impl Files {
    pub fn push(&mut self, file: Unsent) {
        if self.all.is_empty() {
            // A file is much to move.
            self.all.reserve(FILES_MAX);
        }
        self.hashes.push(hash(&file.home.key));
        self.all.push(file);
    }

    /// Whether one of them is to be made there; `wanted` is the hash of the key.
    fn has(&self, home: &Home, wanted: u64) -> bool {
        let mut known = self.hashes.iter().zip(&self.all);
        known.any(|(hash, file)| *hash == wanted && file.home == *home)
    }

    /// The last one of this number.
    pub fn find(&mut self, ino: u64) -> Option<&mut Unsent> {
        self.all.iter_mut().rev().find(|file| file.ino == ino)
    }
}

impl Waiting {
    /// Whether a file that waits or flies is to be made there.
    pub fn has(&self, home: &Home) -> bool {
        let wanted = hash(&home.key);
        let mut all = std::iter::once(&self.files).chain(&self.flying);
        all.any(|files| files.has(home, wanted))
    }

    /// Where the walk has come to, as a place that files share.
    pub fn place(&mut self, ctx: &Context, walk: &Walk<'_>) -> Arc<Place> {
        let dir = walk.dir().ino;
        if let Some(place) = &self.place
            && (place.dir, place.epoch) == (dir, walk.epoch)
            && place.ctx == *ctx
        {
            return Arc::clone(place);
        }
        let (dir_home, seal) = (walk.dir_home(), key::seal(dir));
        let place = Arc::new(Place { dir, dir_home, seal, epoch: walk.epoch, ctx: ctx.clone() });
        self.place = Some(Arc::clone(&place));
        place
    }
}

impl Unsent {
    /// When its directory changed: when it was made.
    fn changed(&self) -> Timestamp {
        let at = at::CTIME as usize + 8;
        let raw = self.value.get(at..).and_then(<[u8]>::first_chunk).copied();
        Timestamp(i64::from_le_bytes(raw.unwrap_or_default()))
    }
}

/// Runs `work` with the operations that make the files.
pub fn with_operations<T>(files: &[Unsent], work: impl FnOnce(Vec<Operation<'_>>) -> T) -> T {
    let marks: Vec<EntryMark> =
        files.iter().map(|file| EntryMark::new(&file.home.key, file.changed())).collect();
    let operations = files.iter().zip(&marks).map(|(file, mark)| {
        let key = &file.home.key;
        let mut operation = Operation::put(file.home.partition, key, &file.value)
            .guard(Guard::Absent(key))
            .guard(Guard::Absent(&file.place.seal));
        operation.actions.extend(mark.actions(0));
        if file.is_open {
            operation.actions.push(Action::Hold { key, token: file.hold });
        }
        operation
    });
    work(operations.collect())
}
