//! A disk in memory that loses the bytes that a real one may lose: for tests and simulation.
//!
//! A crash keeps everything that was synced. Of the bytes written since, each 512-byte sector gets
//! there or not by itself, one of them perhaps in part; of the names made, changed and removed
//! since, the first so many. The same seed loses the same.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use samite_types::{Error, Result};

use super::{LogDisk, LogFile};

const SECTOR_LEN: usize = 512;

/// A disk in memory. A clone is another handle to it.
#[derive(Clone, Debug)]
pub struct MemoryDisk(Arc<Mutex<MemoryDiskInner>>);

#[derive(Debug, Default)]
struct MemoryDiskInner {
    files: BTreeMap<u64, FileContent>,
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    /// Names since the last sync, oldest first: what they mean now.
    changed_names: Vec<(String, Option<u64>)>,
    next_file: u64,
    /// Calls that change something, so far.
    calls: u64,
    trouble: BTreeMap<u64, CallFault>,
    /// Bytes that files may take.
    capacity: Option<u64>,
    is_down: bool,
    /// Counts crashes: files that were open before are no more.
    generation: u64,
    random: u64,
}

/// Faults of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// It fails; a write has an effect in part, and what a sync was to write is lost with a crash.
    Error,
    /// The machine stops in the middle of it: everything fails until [`MemoryDisk::crash`].
    Stop,
}

#[derive(Debug, Default)]
struct FileContent {
    now: Vec<u8>,
    synced: Vec<u8>,
    pending: Vec<PendingWrite>,
}

#[derive(Debug)]
enum PendingWrite {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl MemoryDisk {
    /// An empty disk; `seed` decides what crashes lose.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(MemoryDiskInner { random: seed, ..MemoryDiskInner::default() })))
    }

    fn inner(&self) -> MutexGuard<'_, MemoryDiskInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that changed something, so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.inner().calls
    }

    /// Lets call number `call` meet `trouble`.
    pub fn trouble_at(&self, call: u64, trouble: CallFault) {
        self.inner().trouble.insert(call, trouble);
    }

    /// Limits the bytes that all files may take; `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.inner().capacity = bytes;
    }

    /// Changes one bit of a file, as age does.
    pub fn rot(&self, name: &str, offset: usize, bit: u8) {
        let mut inner = self.inner();
        let Some(file) = inner.names.get(name).copied() else { return };
        if let Some(content) = inner.files.get_mut(&file) {
            for bytes in [&mut content.now, &mut content.synced] {
                if let Some(byte) = bytes.get_mut(offset) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// Loses what was not synced; then the disk works again, and meets no more trouble.
    pub fn crash(&self) {
        let mut inner = self.inner();
        let MemoryDiskInner { files, synced_names, changed_names, random, .. } = &mut *inner;
        for content in files.values_mut() {
            content.crash(random);
        }
        let kept = next(random) as usize % (changed_names.len() + 1);
        for (name, file) in changed_names.drain(..).take(kept) {
            match file {
                Some(file) => synced_names.insert(name, file),
                None => synced_names.remove(&name),
            };
        }
        let names = synced_names.clone();
        files.retain(|file, _| names.values().any(|named| named == file));
        inner.names = names;
        inner.trouble.clear();
        inner.is_down = false;
        inner.generation += 1;
    }
}

/// The next number of a sequence that is random enough (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

impl FileContent {
    fn crash(&mut self, random: &mut u64) {
        let luck = next(random) % 4;
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                PendingWrite::Length(len) if next(random).is_multiple_of(2) => {
                    self.synced.resize(len, 0);
                }
                PendingWrite::Length(_) => {}
                PendingWrite::Write(offset, bytes) => {
                    for (index, sector) in bytes.chunks(SECTOR_LEN).enumerate() {
                        let chance = next(random);
                        let kept = match (luck, chance % 8) {
                            // Mostly all of it, mostly nothing, half of it.
                            (0, 1..) | (1, 0) | (2.., ..4) => sector.len(),
                            (_, 7) => (chance >> 8) as usize % (sector.len() + 1),
                            _ => 0,
                        };
                        if kept > 0 {
                            put(&mut self.synced, offset + index * SECTOR_LEN, &sector[..kept]);
                        }
                    }
                }
            }
        }
        self.now.clone_from(&self.synced);
    }
}

impl MemoryDiskInner {
    /// Counts a call; fails if it is to.
    fn call(&mut self, what: &str) -> Result<()> {
        let failed = |errno| Err(Error::io(format_args!("{what} (in memory)"), errno));
        if self.is_down {
            return failed(Errno::IO);
        }
        self.calls += 1;
        match self.trouble.get(&self.calls) {
            None => Ok(()),
            Some(CallFault::Error) => failed(Errno::IO),
            Some(CallFault::Stop) => {
                self.is_down = true;
                failed(Errno::IO)
            }
        }
    }

    fn free(&self) -> u64 {
        let used: u64 = self.files.values().map(|content| content.now.len() as u64).sum();
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used))
    }

    fn check_space(&self, more: u64) -> Result<()> {
        if more > 0 && more > self.free() {
            return Err(Error::io("set space aside (in memory)", Errno::NOSPC));
        }
        Ok(())
    }

    fn name(&mut self, name: &str, file: Option<u64>) {
        match file {
            Some(file) => self.names.insert(name.to_owned(), file),
            None => self.names.remove(name),
        };
        self.changed_names.push((name.to_owned(), file));
    }

    fn named(&self, name: &str) -> Result<u64> {
        let file = self.names.get(name).copied();
        file.ok_or_else(|| Error::io(format_args!("find {name}"), Errno::NOENT))
    }
}

impl LogDisk for MemoryDisk {
    fn list(&self) -> Result<Vec<String>> {
        Ok(self.inner().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let mut inner = self.inner();
        inner.call("make")?;
        if inner.names.contains_key(name) {
            return Err(Error::io(format_args!("make {name}"), Errno::EXIST));
        }
        let file = inner.next_file;
        inner.next_file += 1;
        inner.files.insert(file, FileContent::default());
        inner.name(name, Some(file));
        let generation = inner.generation;
        Ok(Box::new(DiskFile { disk: self.clone(), file, generation }))
    }

    fn open(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let inner = self.inner();
        let (file, generation) = (inner.named(name)?, inner.generation);
        Ok(Box::new(DiskFile { disk: self.clone(), file, generation }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut inner = self.inner();
        inner.call("rename")?;
        let file = inner.named(from)?;
        inner.name(to, Some(file));
        inner.name(from, None);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut inner = self.inner();
        inner.call("remove")?;
        inner.named(name)?;
        inner.name(name, None);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut inner = self.inner();
        inner.call("sync")?;
        inner.changed_names.clear();
        inner.synced_names = inner.names.clone();
        let named = inner.names.clone();
        inner.files.retain(|file, _| named.values().any(|other| other == file));
        Ok(())
    }

    fn free(&self) -> Result<u64> {
        Ok(self.inner().free())
    }
}

struct DiskFile {
    disk: MemoryDisk,
    file: u64,
    generation: u64,
}

impl DiskFile {
    fn with<T>(&self, what: impl FnOnce(&mut MemoryDiskInner, u64) -> Result<T>) -> Result<T> {
        let mut inner = self.disk.inner();
        if inner.generation != self.generation {
            return Err(Error::io("use a file from before a crash", Errno::BADF));
        }
        what(&mut inner, self.file)
    }

    fn content(inner: &mut MemoryDiskInner, file: u64) -> &mut FileContent {
        inner.files.entry(file).or_default()
    }
}

impl LogFile for DiskFile {
    fn len(&self) -> Result<u64> {
        self.with(|inner, file| Ok(Self::content(inner, file).now.len() as u64))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(|inner, file| {
            let bytes = &Self::content(inner, file).now;
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.with(|inner, file| {
            let ended = inner.call("write");
            let len = match ended {
                Ok(()) => bytes.len(),
                Err(_) => next(&mut inner.random) as usize % (bytes.len() + 1),
            };
            let content = Self::content(inner, file);
            put(&mut content.now, offset as usize, &bytes[..len]);
            content.pending.push(PendingWrite::Write(offset as usize, bytes[..len].to_vec()));
            ended
        })
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.with(|inner, file| {
            inner.call("set space aside")?;
            let more = len.saturating_sub(Self::content(inner, file).now.len() as u64);
            inner.check_space(more)?;
            let content = Self::content(inner, file);
            let len = content.now.len().max(len as usize);
            content.now.resize(len, 0);
            content.pending.push(PendingWrite::Length(len));
            Ok(())
        })
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.with(|inner, file| {
            inner.call("cut")?;
            let content = Self::content(inner, file);
            content.now.resize(len as usize, 0);
            content.pending.push(PendingWrite::Length(len as usize));
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        self.with(|inner, file| {
            let ended = inner.call("sync");
            let is_down = inner.is_down;
            let content = Self::content(inner, file);
            if ended.is_ok() {
                content.synced.clone_from(&content.now);
            }
            if !is_down {
                // Pages that could not be written count as clean afterwards: nobody will write them any more.
                content.pending.clear();
            }
            ended
        })
    }
}
