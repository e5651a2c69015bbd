//! The manifest: which segments a log has, so that one that is missing or cut is not taken for one that never was.
//!
//! Its three numbers are the first frame of the oldest segment, that of the newest one, and that one's bytes. They are there [twice](crate::twice).

use samite_types::Result;

use crate::disk::LogDisk;
use crate::twice::{TwiceFile, TwiceKind};

/// Name of the file.
pub const NAME: &str = "manifest";
const KIND: TwiceKind<3> = TwiceKind {
    name: NAME,
    new: "manifest.new",
    magic: b"samiteM1",
    is_sound: |numbers| LogExtent::of(*numbers).is_sound(),
};

/// Contents of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogExtent {
    /// First frame of the oldest segment that is needed.
    pub(crate) first: u64,
    /// First frame of the newest segment that may have frames; 0: there is no segment yet.
    pub(crate) newest: u64,
    /// Bytes set aside for that one.
    pub(crate) newest_len: u64,
}

impl LogExtent {
    /// Of a log without segments.
    pub(crate) const NEW: Self = Self { first: 1, newest: 0, newest_len: 0 };

    const fn of([first, newest, newest_len]: [u64; 3]) -> Self {
        Self { first, newest, newest_len }
    }

    const fn numbers(self) -> [u64; 3] {
        [self.first, self.newest, self.newest_len]
    }

    const fn is_sound(self) -> bool {
        match self.newest {
            0 => self.first == 1 && self.newest_len == 0,
            newest => 0 < self.first && self.first <= newest,
        }
    }
}

/// The manifest of an open log.
#[derive(Debug)]
pub(crate) struct LogManifest(TwiceFile<3>);

impl LogManifest {
    /// Opens that of the log `id`, on a disk with these files. `None`: there is none.
    pub(crate) fn open(disk: &dyn LogDisk, id: u64, names: &[String]) -> Result<Option<Self>> {
        Ok(TwiceFile::open(disk, &KIND, id, names)?.map(Self))
    }

    /// Makes it; returns when it is on flash.
    pub(crate) fn create(disk: &dyn LogDisk, id: u64, extent: LogExtent) -> Result<Self> {
        TwiceFile::create(disk, &KIND, id, extent.numbers()).map(Self)
    }

    pub(crate) const fn extent(&self) -> LogExtent {
        LogExtent::of(self.0.numbers())
    }

    /// Changes it; returns when that is on flash. After an error either may be there, and what was there before is what counts here.
    pub(crate) fn set(&mut self, extent: LogExtent) -> Result<()> {
        self.0.set(extent.numbers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_types::ErrorKind;

    use crate::memory::{CallFault, MemoryDisk};
    use crate::twice::DISTANCE;

    const ID: u64 = 0x7777_1234;
    /// Bytes of a copy.
    const COPY_LEN: usize = 56;

    fn extent(number: u64) -> LogExtent {
        LogExtent { first: number, newest: number * 2, newest_len: 1000 + number }
    }

    fn opened(disk: &MemoryDisk) -> Result<Option<LogExtent>> {
        let found = LogManifest::open(disk, ID, &disk.list()?)?;
        Ok(found.map(|manifest| manifest.extent()))
    }

    fn set(disk: &MemoryDisk, extent: LogExtent) -> Result<()> {
        match LogManifest::open(disk, ID, &disk.list()?)? {
            None => LogManifest::create(disk, ID, extent).map(drop),
            Some(mut manifest) => manifest.set(extent),
        }
    }

    #[test]
    fn wherever_it_stops_what_was_there_before_is_there_or_what_is_set_now() {
        for seed in 0..200 {
            let disk = MemoryDisk::new(seed);
            let mut before = None;
            for number in 1..8 {
                disk.trouble_at(disk.calls() + 1 + (seed + number) % 7, CallFault::Stop);
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
            let mut manifest = LogManifest::create(&disk, ID, extent(1)).unwrap();
            manifest.set(extent(2)).unwrap();
            disk.rot(NAME, DISTANCE + at, (at % 8) as u8);
            assert_eq!(opened(&disk).unwrap(), Some(extent(1)), "byte {at}");
            disk.rot(NAME, at, (at % 8) as u8);
            assert_eq!(opened(&disk).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
        }
        let disk = MemoryDisk::new(2);
        LogManifest::create(&disk, ID + 1, extent(1)).unwrap();
        assert_eq!(opened(&disk).unwrap_err().kind(), ErrorKind::Corrupt, "another log's");
        let unsound = LogExtent { first: 3, newest: 2, newest_len: 1 };
        let disk = MemoryDisk::new(3);
        LogManifest::create(&disk, ID, unsound).unwrap();
        assert_eq!(opened(&disk).unwrap_err().kind(), ErrorKind::Corrupt, "unsound");
    }
}
