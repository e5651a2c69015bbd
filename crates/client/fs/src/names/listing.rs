//! Listing a directory.
//!
//! The order is by partition, then by name. The first request asks many partitions for a few
//! entries each, so that a small directory takes one request per node; the rest of large ones is
//! fetched partition by partition. Memory is that of one batch.

use std::collections::VecDeque;
use std::fmt;

use samite_client::{ClientOperation, OwnedEntry};
use samite_types::{ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, Operation};

use crate::names::at::RelativePath;
use crate::records::inode::{DataLayout, INODE_LEN, Inode, at};
use crate::records::key::{self, Key};
use crate::records::store::{RecordLocation, expected, fail, listing, malformed};
use crate::{CallerContext, FileAttributes, FileKind, FileSystem, OpenFlags};

/// Partitions asked at once.
const PARTITIONS_AT_ONCE: u32 = 128;
/// Entries asked for at once, over all partitions.
const ENTRIES_AT_ONCE: u32 = 1024;
/// Fewest entries asked of one partition.
const ENTRIES_MIN: u32 = 8;
/// Entries whose positions a handle knows by name, so that they stay good when others make and remove entries.
const RECENT_MAX: usize = 16 << 10;
/// Batches whose start a handle knows.
const BEGUN_MAX: usize = 4 << 10;

/// Cookie after `.`; one more after `..`; then the entries'.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode number.
    pub ino: u64,
    /// Kind.
    pub kind: FileKind,
    /// Position after this entry, for [`DirHandle::seek`]; never 0.
    pub cookie: u64,
    /// Name.
    pub name: Box<[u8]>,
    /// Attributes as of the listing (the size of a file that is being written may lag behind): `readdirplus`. None for
    /// `.` and `..`, directories and
    /// files with several links: they have to be asked for, and so do files with holes.
    pub attr: Option<FileAttributes>,
}

/// Where a batch starts.
#[derive(Clone, Debug)]
struct ListingPosition {
    /// Cookie before the first entry of the batch.
    cookie: u64,
    partition: u32,
    /// Key of the entry before it in this partition; empty at its start.
    after: Key,
}

/// Where an entry was that has been given out.
struct GivenEntry {
    cookie: u64,
    partition: u32,
    key: Box<[u8]>,
}

/// Part of a listing that is still to be given out.
struct ListingRun {
    partition: u32,
    entries: std::vec::IntoIter<OwnedEntry>,
    is_complete: bool,
}

/// An open listing of a directory: `.`, `..`, then every entry once, in an order that does not change. Entries made or
/// removed meanwhile may
/// or may not be seen; all others are seen exactly once.
pub struct DirHandle {
    fs: FileSystem,
    ino: u64,
    parent: u64,
    cookie: u64,
    /// Last cookie that was given out. None is given to another entry later, so that those from before a seek stay good.
    issued: u64,
    /// Entries given out last, by cookie.
    recent: VecDeque<GivenEntry>,
    /// Batches begun so far, by the cookie before their first entry: for positions that are not recent. Those are counted from
    /// there, and so move with what was made and removed in their batch.
    begun: VecDeque<ListingPosition>,
    /// Where the next batch starts.
    next: ListingPosition,
    runs: VecDeque<ListingRun>,
    /// Entries may have been lost with a node: that is said when all that are there have been given out.
    has_lost: bool,
}

impl DirHandle {
    pub(crate) fn new(fs: &FileSystem, ino: u64, parent: u64) -> Self {
        let next = ListingPosition { cookie: DOTDOT, partition: 0, after: Key::new() };
        Self {
            fs: fs.clone(),
            ino,
            parent,
            cookie: 0,
            issued: DOTDOT,
            recent: VecDeque::new(),
            begun: VecDeque::new(),
            next,
            runs: VecDeque::new(),
            has_lost: false,
        }
    }

    /// Of a directory that was removed.
    pub(crate) fn empty(fs: &FileSystem, ino: u64) -> Self {
        let mut listing = Self::new(fs, ino, ino);
        listing.cookie = DOTDOT;
        listing.next.partition = fs.store().dataset.partitions();
        listing
    }

    /// The next entry, or `None` at the end. Keeps one batch of entries at a time.
    ///
    /// # Errors
    /// As of the nodes with partitions of the directory. `Lost`, after all entries that are there:
    /// others may have been lost with a node that died.
    pub fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        match self.cookie {
            0 => return Ok(Some(self.dot(b".", self.ino, DOT))),
            DOT => return Ok(Some(self.dot(b"..", self.parent, DOTDOT))),
            _ => {}
        }
        loop {
            let Some(run) = self.runs.front_mut() else {
                if self.next.partition >= self.fs.store().dataset.partitions() {
                    return if self.has_lost { Err(fail(ErrorKind::Lost)) } else { Ok(None) };
                }
                self.fetch()?;
                continue;
            };
            if let Some(entry) = run.entries.next() {
                let partition = run.partition;
                let after = Key::from_slice(&entry.key);
                let Some(entry) = self.settled(partition, entry)? else {
                    self.next = ListingPosition { cookie: self.cookie, partition, after };
                    continue;
                };
                self.given(partition, &entry.key);
                return to_entry(&entry, self.cookie).map(Some);
            }
            let (partition, is_complete) = (run.partition, run.is_complete);
            self.runs.pop_front();
            if is_complete {
                self.next = ListingPosition {
                    cookie: self.cookie,
                    partition: partition + 1,
                    after: Key::new(),
                };
            } else {
                // The rest of this partition comes first.
                self.runs.clear();
                self.next.partition = partition;
            }
        }
    }

    /// Whether there are any entries but `.` and `..`.
    pub(crate) fn has_entries(mut self) -> Result<bool> {
        self.cookie = DOTDOT;
        Ok(self.next_entry()?.is_some())
    }

    /// An entry as it is when the rename that it is in, if any, is over: the client that began it
    /// may have died. `None`: it has another name now.
    fn settled(&self, partition: u32, entry: OwnedEntry) -> Result<Option<OwnedEntry>> {
        if entry.value.get(at::LAYOUT as usize) != Some(&(DataLayout::Moving as u8)) {
            return Ok(Some(entry));
        }
        let location =
            RecordLocation { key: Key::from_slice(&entry.key), partition: PartitionId(partition) };
        if !self.fs.store().outlast_move(&location)? {
            // Where the other name belongs may have been listed before it was there.
            return Ok(Some(entry));
        }
        Ok(self.fs.store().value(&location)?.map(|(version, mut value)| {
            let total_len = value.len() as u32;
            value.truncate(INODE_LEN);
            OwnedEntry { key: entry.key, version, total_len, value: value.into() }
        }))
    }

    /// Position of the next entry; 0 at the start.
    #[must_use]
    pub fn tell(&self) -> u64 {
        self.cookie
    }

    /// Goes to a position that [`DirHandle::tell`] or an entry's cookie of this handle gave; 0 starts again and sees
    /// new entries. The positions of the last 16,384 entries are exact, whatever was made and removed meanwhile.
    ///
    /// # Errors
    /// As of [`DirHandle::next_entry`].
    pub fn seek(&mut self, cookie: u64) -> Result<()> {
        if cookie == self.cookie {
            return Ok(());
        }
        self.runs.clear();
        if let Some(position) = self.recent(cookie) {
            self.next = position;
            self.cookie = cookie;
            return Ok(());
        }
        let start = ListingPosition { cookie: DOTDOT, partition: 0, after: Key::new() };
        if cookie > self.issued {
            // Of another handle on the same directory, as after an exec: as many entries from the start.
            self.next = self.recent(self.issued).unwrap_or(start);
            self.cookie = self.issued;
            while self.issued < cookie && self.next_entry()?.is_some() {}
            return Ok(());
        }
        let known = self.begun.partition_point(|position| position.cookie <= cookie);
        let begun = known.checked_sub(1).filter(|_| cookie > DOTDOT);
        self.next = begun.map_or(start, |index| self.begun[index].clone());
        self.cookie = cookie.min(self.next.cookie);
        while self.cookie < cookie && self.next_entry()?.is_some() {}
        Ok(())
    }

    /// Where the entry with this cookie was, if it was given out lately.
    fn recent(&self, cookie: u64) -> Option<ListingPosition> {
        let index = self.recent.partition_point(|given| given.cookie < cookie);
        let given = self.recent.get(index).filter(|given| given.cookie == cookie)?;
        let after = Key::from_slice(&given.key);
        Some(ListingPosition { cookie, partition: given.partition, after })
    }

    /// An entry is given out. One that is where it was when it was given out before has the same cookie again.
    fn given(&mut self, partition: u32, key: &[u8]) {
        let again = self.cookie + 1;
        let first = self.recent.front().map_or(self.issued + 1, |given| given.cookie);
        let known = again.checked_sub(first).and_then(|index| self.recent.get(index as usize));
        let is_same =
            known.map_or(again < first, |known| known.partition == partition && &*known.key == key);
        if is_same {
            self.cookie = again;
        } else {
            self.issued += 1;
            self.cookie = self.issued;
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(GivenEntry { cookie: self.cookie, partition, key: key.into() });
        }
        self.next = ListingPosition { cookie: self.cookie, partition, after: Key::from_slice(key) };
    }

    fn dot(&mut self, name: &[u8], ino: u64, cookie: u64) -> DirEntry {
        self.cookie = cookie;
        DirEntry { ino, kind: FileKind::Directory, cookie, name: name.into(), attr: None }
    }

    /// Fetches a batch from `next` on: the rest of one partition, or the start of many.
    fn fetch(&mut self) -> Result<()> {
        let start = self.next.clone();
        let all = self.fs.store().dataset.partitions();
        let count =
            if start.after.is_empty() { PARTITIONS_AT_ONCE.min(all - start.partition) } else { 1 };
        let prefix = key::entries(self.ino);
        let limit = (ENTRIES_AT_ONCE / count).max(ENTRIES_MIN);
        let after = &start.after;
        let mut ops: Vec<ClientOperation<'_>> = (start.partition..start.partition + count)
            .map(|partition| {
                let list = Action::List {
                    prefix: &prefix,
                    after,
                    limit,
                    reverse: false,
                    value_len_max: INODE_LEN as u32,
                };
                Operation::new(PartitionId(partition), [list]).into()
            })
            .collect();
        let outcomes = self.fs.store().run_each(&mut ops)?;
        drop(ops);
        self.has_lost &= start.partition > 0;
        for (partition, outcome) in (start.partition..).zip(outcomes) {
            let is_lost = outcome.failure().is_some_and(|failure| failure.kind == ErrorKind::Lost);
            self.has_lost |= is_lost;
            let (entries, is_complete) =
                if is_lost { (Vec::new(), true) } else { listing(expected(outcome)?)? };
            self.runs.push_back(ListingRun {
                partition,
                entries: entries.into_iter(),
                is_complete,
            });
        }
        if self.begun.back().is_none_or(|last| last.cookie < self.cookie) {
            if self.begun.len() == BEGUN_MAX {
                self.begun.pop_front();
            }
            self.begun.push_back(ListingPosition { cookie: self.cookie, ..start });
        }
        Ok(())
    }
}

impl FileSystem {
    /// Opens the listing of a directory.
    ///
    /// # Errors
    /// As of opening it for reading; `NotDirectory`.
    pub fn read_dir<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<DirHandle> {
        let flags = OpenFlags { directory: true, ..OpenFlags::reading() };
        let dir = self.open_file(ctx, at, flags, 0)?;
        let listing = dir.read_dir();
        dir.close().and(listing)
    }
}

fn to_entry(entry: &OwnedEntry, cookie: u64) -> Result<DirEntry> {
    let (_, name) = key::parse_entry(&entry.key).ok_or_else(malformed)?;
    let inode = Inode::decode(&entry.value)?;
    let data_len = u64::from(entry.total_len).saturating_sub(INODE_LEN as u64);
    let size = match inode.layout {
        DataLayout::Inline | DataLayout::Converting => Some(data_len),
        DataLayout::Chunked => Some(inode.size),
        DataLayout::Tailed | DataLayout::Spilling => Some(inode.size.saturating_add(data_len)),
        DataLayout::Elsewhere | DataLayout::Moving => None,
    };
    let size = size.filter(|_| !inode.sparse);
    let attr = size.filter(|_| !inode.is_directory()).map(|size| inode.attr(size));
    Ok(DirEntry { ino: inode.ino, kind: inode.kind, cookie, name: name.into(), attr })
}

impl fmt::Debug for DirHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirHandle")
            .field("ino", &self.ino)
            .field("cookie", &self.cookie)
            .finish_non_exhaustive()
    }
}
