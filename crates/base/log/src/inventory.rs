//! Which files there have to be beside a log, so that one that is missing is told from one that never was.
//!
//! Each file is a number. How many there are, and the exclusive or of all, are noted in the file `checkpoints`, [twice](crate::twice): after a file
//! has come to be, before anything is given up because of it, and before a file is removed. So there may be more than are noted, never fewer; where one is missing, the
//! noted numbers say which.

use std::collections::BTreeSet;

use samite_types::{Error, ErrorKind, Result};

use crate::disk::LogDisk;
use crate::twice::{TwiceFile, TwiceKind};

/// Name of the file.
pub const NAME: &str = "checkpoints";
const KIND: TwiceKind<2> =
    TwiceKind { name: NAME, new: "checkpoints.new", magic: b"samiteC1", is_sound: |_| true };

/// The files that there are, and the note of them.
#[derive(Debug)]
pub struct FileInventory {
    /// `None`: there was no space for it.
    file: Option<TwiceFile<2>>,
    present: BTreeSet<u64>,
}

impl FileInventory {
    /// Looks whether all that are noted are among those `found`. `name` of a number is the file's.
    ///
    /// # Errors
    /// `Corrupt`: one is missing, or the note is damaged. Errors of the disk.
    pub fn check(
        disk: &dyn LogDisk,
        id: u64,
        found: &[u64],
        name: impl Fn(u64) -> String,
    ) -> Result<()> {
        let Some(file) = TwiceFile::open(disk, &KIND, id, &disk.list()?)? else { return Ok(()) };
        let [count, all] = file.numbers();
        let [here, all_here] = numbers(found.iter());
        let words = match count.saturating_sub(here) {
            0 if count < here || all == all_here => return Ok(()),
            0 => format!("one of the {count} files that {NAME} tells of is missing"),
            1 => format!("{}: the file is missing", name(all ^ all_here)),
            missing => format!("{missing} of the {count} files that {NAME} tells of are missing"),
        };
        Err(Error::new(ErrorKind::Corrupt, words))
    }

    /// Begins with those that there are.
    ///
    /// # Errors
    /// Errors of the disk; a full one is none.
    pub fn open(disk: &dyn LogDisk, id: u64, found: impl Iterator<Item = u64>) -> Result<Self> {
        let present: BTreeSet<u64> = found.collect();
        let file = match TwiceFile::open(disk, &KIND, id, &disk.list()?)? {
            Some(mut file) => {
                file.set(numbers(present.iter()))?;
                Some(file)
            }
            None => match TwiceFile::create(disk, &KIND, id, numbers(present.iter())) {
                Ok(file) => Some(file),
                Err(error) if error.kind() == ErrorKind::NoSpace => None,
                Err(error) => return Err(error),
            },
        };
        Ok(Self { file, present })
    }

    /// The file has come to be, or another one in its place, and is on flash. Nothing may be given up for it before this returns.
    ///
    /// # Errors
    /// The disk's.
    pub fn add(&mut self, number: u64) -> Result<()> {
        self.present.insert(number);
        self.note()
    }

    /// The file is about to be removed.
    ///
    /// # Errors
    /// The disk's; then it must stay.
    pub fn remove(&mut self, number: u64) -> Result<()> {
        self.present.remove(&number);
        self.note()
    }

    fn note(&mut self) -> Result<()> {
        let numbers = numbers(self.present.iter());
        self.file.as_mut().map_or(Ok(()), |file| file.set(numbers))
    }
}

fn numbers<'n>(present: impl Iterator<Item = &'n u64>) -> [u64; 2] {
    present.fold([0, 0], |[count, all], number| [count + 1, all ^ number])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{CallFault, MemoryDisk};

    const ID: u64 = 7;

    fn name(number: u64) -> String {
        format!("c-{number}")
    }

    fn found(disk: &MemoryDisk) -> Vec<u64> {
        let names = disk.list().unwrap();
        names.iter().filter_map(|name| name.strip_prefix("c-")?.parse().ok()).collect()
    }

    fn check(disk: &MemoryDisk) -> Result<()> {
        FileInventory::check(disk, ID, &found(disk), name)
    }

    /// Adds files and removes some until something stops it.
    fn work(disk: &MemoryDisk, seed: u64) -> Result<()> {
        let mut inventory = FileInventory::open(disk, ID, found(disk).into_iter())?;
        for step in 0..8 {
            let number = (seed * 5 + step * 3) % 7 + 1;
            if found(disk).contains(&number) {
                inventory.remove(number)?;
                disk.remove(&name(number))?;
            } else {
                disk.create(&name(number))?.sync()?;
                disk.sync()?;
                inventory.add(number)?;
            }
            disk.sync()?;
        }
        Ok(())
    }

    #[test]
    fn wherever_it_stops_no_file_is_missing_and_one_that_is_removed_is() {
        for seed in 0..300 {
            let disk = MemoryDisk::new(seed);
            for round in 0..6 {
                disk.trouble_at(disk.calls() + 1 + (seed + round * 11) % 40, CallFault::Stop);
                let stopped = work(&disk, seed + round).is_err();
                disk.crash();
                check(&disk).unwrap();
                if !stopped && let Some(number) = found(&disk).first() {
                    disk.remove(&name(*number)).unwrap();
                    let missing = check(&disk).unwrap_err();
                    assert_eq!(missing.kind(), ErrorKind::Corrupt);
                    assert!(missing.to_string().contains(&name(*number)), "{missing}");
                    disk.create(&name(*number)).unwrap().sync().unwrap();
                    disk.sync().unwrap();
                }
            }
        }
    }

    #[test]
    fn several_that_are_missing_are_counted() {
        let disk = MemoryDisk::new(1);
        for number in 1..5 {
            disk.create(&name(number)).unwrap();
        }
        // Of before there was a note.
        check(&disk).unwrap();
        FileInventory::open(&disk, ID, found(&disk).into_iter()).unwrap();
        for number in 1..4 {
            disk.remove(&name(number)).unwrap();
        }
        assert!(check(&disk).unwrap_err().to_string().contains("3 of the 4 files"));
        for number in 11..14 {
            disk.create(&name(number)).unwrap();
        }
        assert!(check(&disk).unwrap_err().to_string().contains("one of the 4 files"));
    }
}
