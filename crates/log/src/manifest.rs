//! The manifest: which segments a log has, so that one that is missing or cut is not taken for one that never was.
//!
//! ```text
//!  byte 0      magic "samiteM1" │ log id u64 │ count u64 │ first u64 │ newest u64 │ newest's bytes u64 │ 0 u32 │ crc u32
//!  byte 4096   the same, of another count
//! ```
//!
//! Changes go to the two copies in turn, each in place and synced: one that is torn leaves the other, and none needs space on the disk, which may be full.
//! The valid copy with the higher count counts.

use samite_types::{Error, ErrorKind, Result};

use crate::disk::{Disk, LogFile};
use crate::frame::{checksum, u32_at, u64_at};

/// Name of the file.
pub const NAME: &str = "manifest";
const NEW: &str = "manifest.new";
const MAGIC: &[u8; 8] = b"samiteM1";
/// Bytes of a copy.
const COPY_LEN: usize = 56;
/// Bytes from the first copy to the second: a write to one never touches a page or a sector of the other.
const DISTANCE: usize = 4096;
const LEN: usize = 2 * DISTANCE;

/// What the manifest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First frame of the oldest segment that is needed.
    pub(crate) first: u64,
    /// First frame of the newest segment that may have frames; 0: there is no segment yet.
    pub(crate) newest: u64,
    /// Bytes set aside for that one.
    pub(crate) newest_len: u64,
}

impl Extent {
    /// Of a log without segments.
    pub(crate) const NEW: Self = Self { first: 1, newest: 0, newest_len: 0 };

    const fn is_sound(self) -> bool {
        match self.newest {
            0 => self.first == 1 && self.newest_len == 0,
            newest => 0 < self.first && self.first <= newest,
        }
    }

    fn encode(self, id: u64, count: u64) -> [u8; COPY_LEN] {
        let mut bytes = [0; COPY_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        let numbers = [id, count, self.first, self.newest, self.newest_len];
        for (place, number) in bytes[8..48].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let crc = checksum(id, &bytes[..52]);
        bytes[52..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(id: u64, bytes: &[u8]) -> Option<(u64, Self)> {
        let bytes = bytes.first_chunk::<COPY_LEN>()?;
        let is_whole = bytes.starts_with(MAGIC)
            && u64_at(bytes, 8)? == id
            && u32_at(bytes, 52)? == checksum(id, &bytes[..52]);
        let extent = Self {
            first: u64_at(bytes, 24)?,
            newest: u64_at(bytes, 32)?,
            newest_len: u64_at(bytes, 40)?,
        };
        (is_whole && extent.is_sound()).then_some((u64_at(bytes, 16)?, extent))
    }
}

/// The manifest of an open log.
#[derive(Debug)]
pub(crate) struct Manifest {
    file: Box<dyn LogFile>,
    id: u64,
    count: u64,
    extent: Extent,
}

impl Manifest {
    /// Opens that of the log `id`, on a disk with these files. `None`: there is none.
    pub(crate) fn open(disk: &dyn Disk, id: u64, names: &[String]) -> Result<Option<Self>> {
        if !names.iter().any(|name| name == NAME) {
            return Ok(None);
        }
        let file = disk.open(NAME)?;
        let mut bytes = [0; LEN];
        let len = file.read_at(0, &mut bytes)?;
        let copies = [0, 1].into_iter().filter_map(|place| {
            let copy = bytes[..len].get(place * DISTANCE..)?;
            Extent::decode(id, copy).filter(|(count, _)| place_of(*count) == place)
        });
        let Some((count, extent)) = copies.max_by_key(|(count, _)| *count) else {
            let words = format!("log {NAME}: it is damaged, or belongs to another log");
            return Err(Error::new(ErrorKind::Corrupt, words));
        };
        // It may have been read from memory alone, and files will go because of it.
        file.sync()?;
        Ok(Some(Self { file, id, count, extent }))
    }

    /// Makes it; returns when it is on flash.
    pub(crate) fn create(disk: &dyn Disk, id: u64, extent: Extent) -> Result<Self> {
        // Of an attempt that failed.
        let _ = disk.remove(NEW);
        let file = disk.create(NEW)?;
        let mut bytes = [0; LEN];
        bytes[..COPY_LEN].copy_from_slice(&extent.encode(id, 0));
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(NEW, NAME)?;
        disk.sync()?;
        Ok(Self { file, id, count: 0, extent })
    }

    pub(crate) const fn extent(&self) -> Extent {
        self.extent
    }

    /// Changes it; returns when that is on flash. After an error either may be there, and what was there before is what counts here.
    pub(crate) fn set(&mut self, extent: Extent) -> Result<()> {
        if extent == self.extent {
            return Ok(());
        }
        let count = self.count.wrapping_add(1);
        let at = place_of(count) * DISTANCE;
        self.file.write_at(at as u64, &extent.encode(self.id, count))?;
        self.file.sync()?;
        (self.count, self.extent) = (count, extent);
        Ok(())
    }
}

const fn place_of(count: u64) -> usize {
    (count % 2) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryDisk, Trouble};

    const ID: u64 = 0x7777_1234;

    fn extent(number: u64) -> Extent {
        Extent { first: number, newest: number * 2, newest_len: 1000 + number }
    }

    fn opened(disk: &MemoryDisk) -> Result<Option<Extent>> {
        let found = Manifest::open(disk, ID, &disk.list()?)?;
        Ok(found.map(|manifest| manifest.extent()))
    }

    fn set(disk: &MemoryDisk, extent: Extent) -> Result<()> {
        match Manifest::open(disk, ID, &disk.list()?)? {
            None => Manifest::create(disk, ID, extent).map(drop),
            Some(mut manifest) => manifest.set(extent),
        }
    }

    #[test]
    fn wherever_it_stops_what_was_there_before_is_there_or_what_is_set_now() {
        for seed in 0..200 {
            let disk = MemoryDisk::new(seed);
            let mut before = None;
            for number in 1..8 {
                disk.trouble_at(disk.calls() + 1 + (seed + number) % 7, Trouble::Stop);
                let is_set = set(&disk, extent(number)).is_ok();
                disk.crash();
                let found = opened(&disk).unwrap();
                let is_old = !is_set && found == before;
                assert!(is_old || found == Some(extent(number)), "{found:?} at {number}");
                before = found;
            }
        }
    }

    #[test]
    fn damage_is_seen_and_one_copy_is_enough() {
        for at in 0..COPY_LEN {
            let disk = MemoryDisk::new(1);
            let mut manifest = Manifest::create(&disk, ID, extent(1)).unwrap();
            manifest.set(extent(2)).unwrap();
            disk.rot(NAME, DISTANCE + at, (at % 8) as u8);
            assert_eq!(opened(&disk).unwrap(), Some(extent(1)), "byte {at}");
            disk.rot(NAME, at, (at % 8) as u8);
            assert_eq!(opened(&disk).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
        }
        let disk = MemoryDisk::new(2);
        Manifest::create(&disk, ID + 1, extent(1)).unwrap();
        assert_eq!(opened(&disk).unwrap_err().kind(), ErrorKind::Corrupt, "another log's");
        let unsound = Extent { first: 3, newest: 2, newest_len: 1 };
        assert_eq!(Extent::decode(ID, &unsound.encode(ID, 0)), None);
    }
}
