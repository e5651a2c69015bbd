//! An LMDB environment as an ordered map.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use heed::types::Bytes;
use heed::{CommitOrAbort, Env, EnvOpenOptions, RoTxn, WithoutTls};
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;
use samite_backend::ordered::{OrderedMap, RowBounds, changed_row};
use samite_backend::{RowChange, StoredPartition, WriteBatch};
use samite_types::{Error, ErrorKind, Result};

use crate::errors::{is_full, may_be_full, told};
use crate::keys::{self, RowDatabase};
use crate::reserve::DiskReserve;
use crate::root::TargetRoot;

/// Key of the row that says what the environment is.
const FORMAT_KEY: [u8; 1] = [0];
/// What the row begins with.
const FORMAT_MAGIC: &str = "samite rows, ";
/// Most readers at a time: shards and threads of the target, each in a few walks.
const READERS_MAX: u32 = 1024;
/// Name of LMDB's own lock file.
const READER_TABLE_NAME: &str = "lock.mdb";
const PAGE_LEN: u64 = 64 << 10;
/// Room in the map beside the capacity's multiple.
const MAP_LEN_MIN: u64 = 1 << 30;
/// The longest map that is asked for beyond twice the capacity.
const MAP_LEN_MAX: u64 = 16 << 40;

/// How an environment is opened.
#[derive(Clone, Debug)]
pub struct LmdbOptions {
    /// Bytes that the target may hold.
    pub capacity: u64,
    /// Bytes of the map: the file never becomes longer.
    pub map_len: u64,
    /// Name and version of what the rows are.
    pub format: &'static str,
}

impl LmdbOptions {
    /// Those of a target of `capacity` bytes: a map of eight times as many and 1 GiB. Rows of a
    /// little over half a page take twice their bytes, pages that lost rows stay a quarter full,
    /// and a commit that changes everything writes it anew before the old is free.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        let ample = capacity.saturating_mul(8).saturating_add(MAP_LEN_MIN);
        let least = capacity.saturating_mul(2).saturating_add(MAP_LEN_MIN);
        let map_len = match ample {
            len if len <= MAP_LEN_MAX => len,
            _ if least < MAP_LEN_MAX => MAP_LEN_MAX,
            _ => least,
        };
        Self { capacity, map_len, format: "lmdb 1" }
    }
}

/// An ordered map in an LMDB environment.
pub struct LmdbMap {
    /// Before the root: its lock goes last.
    env: Env<WithoutTls>,
    rows: RowDatabase,
    reserve: DiskReserve,
    has_room: AtomicBool,
    /// Bytes that were free within the file when a commit found the disk full: they were too
    /// scattered for it.
    scattered_len: AtomicU64,
    root: TargetRoot,
}

impl fmt::Debug for LmdbMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LmdbMap({})", self.root.path().display())
    }
}

impl LmdbMap {
    /// Opens the environment in the directory of a target; makes it, if there is none.
    ///
    /// # Errors
    /// `Unsupported`: what is there has another format or version. `Corrupt`: it is no environment.
    /// Errors of the disk.
    pub fn open(root: TargetRoot, options: &LmdbOptions) -> Result<Self> {
        // Nobody else has the directory: what a process that was killed has left in LMDB's table of
        // readers, and its locks, are of no use.
        match unlinkat(root.dir(), READER_TABLE_NAME, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Error::io("removing LMDB's table of readers", errno)),
        }
        let path = root.path();
        let opening = || told(format!("opening the LMDB environment in {}", path.display()));
        let map_len =
            usize::try_from(options.map_len.next_multiple_of(PAGE_LEN)).map_err(|_| {
                Error::new(ErrorKind::TooLarge, "a target larger than memory's addresses")
            })?;
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(map_len).max_readers(READERS_MAX);
        // SAFETY: the lock of the root keeps other nodes from the environment; the directory is this
        // user's own, and nobody else may write into it (`TargetRoot::open`).
        let env = unsafe { open.open(path) }.map_err(opening())?;
        let txn = env.read_txn().map_err(opening())?;
        let rows = env
            .open_databases_and_commit(txn, |opener, txn| {
                let rows = opener.open_database::<Bytes, Bytes>(txn, None)?;
                let rows = rows.ok_or(heed::Error::Mdb(heed::MdbError::NotFound))?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(rows))
            })
            .map_err(opening())?
            .unwrap_commit();
        let reserve = DiskReserve::open(&root, options.capacity)?;
        let (has_room, scattered_len) = (AtomicBool::new(true), AtomicU64::new(0));
        let map = Self { env, rows, reserve, has_room, scattered_len, root };
        map.check_format(options.format)?;
        map.root.sync()?;
        map.refresh_room();
        Ok(map)
    }

    /// The target's directory.
    #[must_use]
    pub const fn root(&self) -> &TargetRoot {
        &self.root
    }

    /// Has the environment's format checked; a new one gets it.
    fn check_format(&self, format: &str) -> Result<()> {
        let what = || told("reading what the environment is");
        let (found, is_empty) = {
            let txn = self.env.read_txn().map_err(what())?;
            let found = self.rows.get(&txn, &FORMAT_KEY).map_err(what())?.map(<[u8]>::to_vec);
            (found, self.rows.is_empty(&txn).map_err(what())?)
        };
        let expected = format!("{FORMAT_MAGIC}{format}");
        match found {
            Some(found) if found == expected.as_bytes() => Ok(()),
            None if is_empty => {
                let what = || told("making a new environment");
                let mut txn = self.env.write_txn().map_err(what())?;
                self.rows.put(&mut txn, &FORMAT_KEY, expected.as_bytes()).map_err(what())?;
                txn.commit().map_err(what())
            }
            found => {
                let found = found.as_deref().unwrap_or(b"something else");
                let found = String::from_utf8_lossy(&found[..found.len().min(80)]).into_owned();
                let words = format!(
                    "{} has \"{found}\", and this version of Samite reads \"{expected}\": use the \
                     version that made it, or another directory",
                    self.root.path().display()
                );
                Err(Error::new(ErrorKind::Unsupported, words))
            }
        }
    }

    fn reader(&self) -> Result<RoTxn<'_, WithoutTls>> {
        self.env.read_txn().map_err(told("beginning to read"))
    }

    fn try_commit(&self, batches: &[WriteBatch]) -> heed::Result<()> {
        let mut txn = self.env.write_txn()?;
        for batch in batches {
            if batch.clears {
                keys::clear(self.rows, &mut txn, batch.place)?;
            }
            for (key, change) in batch.rows.iter() {
                let old = match change {
                    RowChange::Patch { .. } => {
                        keys::get(self.rows, &txn, batch.place, key)?.map(<[u8]>::to_vec)
                    }
                    RowChange::Put(_) | RowChange::Delete => None,
                };
                // What the row was is at hand: that cannot fail.
                match changed_row(key, change, || Ok(old)).unwrap_or(None) {
                    Some(row) => keys::put(self.rows, &mut txn, batch.place, key, &row)?,
                    None => keys::delete(self.rows, &mut txn, batch.place, key)?,
                }
            }
        }
        txn.commit()
    }

    /// Sees whether there is room for growth: the reserved space is there, or some of it is, and
    /// twice as much is free within the file.
    fn refresh_room(&self) {
        self.reserve.refill();
        if self.reserve.is_whole() {
            self.scattered_len.store(0, Ordering::Relaxed);
            return self.has_room.store(true, Ordering::Relaxed);
        }
        let scattered = self.scattered_len.load(Ordering::Relaxed);
        let is_free = || self.free_len() >= scattered + 2 * self.reserve.len();
        self.has_room.store(self.reserve.has_some() && is_free(), Ordering::Relaxed);
    }

    /// Bytes of pages in the file that nothing uses.
    fn free_len(&self) -> u64 {
        let Ok(txn) = self.env.read_txn() else { return 0 };
        let Ok(stat) = self.rows.stat(&txn) else { return 0 };
        let used = stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
        let pages = self.env.info().last_page_number + 1;
        pages.saturating_sub(used) as u64 * u64::from(stat.page_size)
    }

    /// The disk is full: gives up a part of the reserved space for what has to be written. Returns
    /// whether there was some.
    pub fn release_reserve(&self) -> bool {
        self.has_room.store(false, Ordering::Relaxed);
        self.scattered_len.fetch_max(self.free_len(), Ordering::Relaxed);
        self.reserve.release()
    }
}

impl OrderedMap for LmdbMap {
    fn get(&self, place: StoredPartition, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let txn = self.reader()?;
        let row = keys::get(self.rows, &txn, place, key).map_err(told("reading a row"))?;
        row.map(see).map_or(Ok(false), |()| Ok(true))
    }

    fn scan(
        &self,
        place: StoredPartition,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let txn = self.reader()?;
        keys::scan(self.rows, &txn, place, bounds, reverse, visit).map_err(told("reading rows"))
    }

    fn commit(&self, batches: &[WriteBatch]) -> Result<()> {
        let is_space = |error: &heed::Error| {
            is_full(error) || may_be_full(error) && self.reserve.is_disk_full()
        };
        let mut done = self.try_commit(batches);
        while let Err(error) = &done
            && is_space(error)
            && self.release_reserve()
        {
            done = self.try_commit(batches);
        }
        match done {
            Ok(()) => {
                self.refresh_room();
                Ok(())
            }
            Err(error) if is_space(&error) => {
                let dir = self.root.path().display();
                let words = format!("no room for a commit in {dir}: {error}");
                Err(Error::new(ErrorKind::NoSpace, words))
            }
            // Whether it is a commit that failed, or what it read: nobody knows what is on disk.
            Err(error) => Err(told("committing to the LMDB environment")(error)),
        }
    }

    fn stored(&self) -> Result<Vec<StoredPartition>> {
        let txn = self.reader()?;
        keys::partitions(self.rows, &txn).map_err(told("reading which partitions there are"))
    }

    fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }
}
