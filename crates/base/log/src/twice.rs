//! A few numbers in a file, twice, so that they can be changed in place.
//!
//! ```text
//!  byte 0      magic │ id u64 │ count u64 │ numbers u64… │ 0 u32 │ crc u32
//!  byte 4096   the same, of another count
//! ```
//!
//! Changes go to the two copies in turn, each in place and synced: a torn write leaves the other,
//! and needs no space on the disk, which may be full.
//! The valid copy with the higher count counts.

use std::fmt;

use samite_types::{Error, ErrorKind, Result};

use crate::disk::{LogDisk, LogFile};
use crate::frame::{checksum, u32_at, u64_at};

/// Bytes from the first copy to the second: a write to one never touches a page or a sector of the other.
pub(crate) const DISTANCE: usize = 4096;
const LEN: usize = 2 * DISTANCE;
/// Bytes of a copy before its numbers, and after them.
const HEAD_LEN: usize = 24;
const TAIL_LEN: usize = 8;

/// Format of such a file.
pub(crate) struct TwiceKind<const N: usize> {
    pub(crate) name: &'static str,
    /// Its name while it is made.
    pub(crate) new: &'static str,
    pub(crate) magic: &'static [u8; 8],
    /// Whether numbers can be right.
    pub(crate) is_sound: fn(&[u64; N]) -> bool,
}

/// An open file.
pub(crate) struct TwiceFile<const N: usize> {
    file: Box<dyn LogFile>,
    kind: &'static TwiceKind<N>,
    id: u64,
    count: u64,
    numbers: [u64; N],
}

impl<const N: usize> TwiceFile<N> {
    /// Opens the file of what is called `id`, on a disk with these files. `None`: there is none.
    pub(crate) fn open(
        disk: &dyn LogDisk,
        kind: &'static TwiceKind<N>,
        id: u64,
        names: &[String],
    ) -> Result<Option<Self>> {
        if !names.iter().any(|name| name == kind.name) {
            return Ok(None);
        }
        let file = disk.open(kind.name)?;
        let mut bytes = [0; LEN];
        let len = file.read_at(0, &mut bytes)?;
        let copies = [0, 1].into_iter().filter_map(|place| {
            let copy = bytes[..len].get(place * DISTANCE..)?;
            decode(kind, id, copy).filter(|(count, _)| place_of(*count) == place)
        });
        let Some((count, numbers)) = copies.max_by_key(|(count, _)| *count) else {
            let words = format!("the file {} is damaged, or belongs to something else", kind.name);
            return Err(Error::new(ErrorKind::Corrupt, words));
        };
        // It may have been read from memory alone, and files will go because of it.
        file.sync()?;
        Ok(Some(Self { file, kind, id, count, numbers }))
    }

    /// Makes it; returns when it is on flash.
    pub(crate) fn create(
        disk: &dyn LogDisk,
        kind: &'static TwiceKind<N>,
        id: u64,
        numbers: [u64; N],
    ) -> Result<Self> {
        // Of an attempt that failed.
        let _ = disk.remove(kind.new);
        let file = disk.create(kind.new)?;
        let made = Self { file, kind, id, count: 0, numbers };
        let mut bytes = made.encode(0, numbers);
        bytes.resize(LEN, 0);
        let written = made.file.reserve(LEN as u64);
        let written = written.and_then(|()| made.file.write_at(0, &bytes));
        let written = written.and_then(|()| made.file.sync());
        if written.is_err() {
            // On a full disk others need the space.
            let _ = disk.remove(kind.new);
        }
        written?;
        disk.rename(kind.new, kind.name)?;
        disk.sync()?;
        Ok(made)
    }

    pub(crate) const fn numbers(&self) -> [u64; N] {
        self.numbers
    }

    /// Changes it; returns when that is on flash. After an error either may be there, and what was there before is what counts here.
    pub(crate) fn set(&mut self, numbers: [u64; N]) -> Result<()> {
        if numbers == self.numbers {
            return Ok(());
        }
        let count = self.count.wrapping_add(1);
        let at = place_of(count) * DISTANCE;
        self.file.write_at(at as u64, &self.encode(count, numbers))?;
        self.file.sync()?;
        (self.count, self.numbers) = (count, numbers);
        Ok(())
    }

    fn encode(&self, count: u64, numbers: [u64; N]) -> Vec<u8> {
        let mut bytes = self.kind.magic.to_vec();
        for number in [self.id, count].iter().chain(&numbers) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&[0; 4]);
        let crc = checksum(self.id, &bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl<const N: usize> fmt::Debug for TwiceFile<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind.name, self.numbers)
    }
}

fn decode<const N: usize>(kind: &TwiceKind<N>, id: u64, bytes: &[u8]) -> Option<(u64, [u64; N])> {
    let bytes = bytes.get(..HEAD_LEN + 8 * N + TAIL_LEN)?;
    let covered = bytes.len() - 4;
    let is_whole = bytes.starts_with(kind.magic)
        && u64_at(bytes, 8)? == id
        && u32_at(bytes, covered)? == checksum(id, &bytes[..covered]);
    let mut numbers = [0; N];
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = u64_at(bytes, HEAD_LEN + 8 * index)?;
    }
    (is_whole && (kind.is_sound)(&numbers)).then_some((u64_at(bytes, 16)?, numbers))
}

const fn place_of(count: u64) -> usize {
    (count % 2) as usize
}
