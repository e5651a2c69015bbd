//! The marks by which a node joins: wherever it dies the directory that it has goes on, and an older copy of it does not.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use samite_log::LogDisk;
use samite_log::joined::DirectoryMarks;
use samite_log::memory::{CallFault, MemoryDisk};
use samite_types::{ErrorKind, Result};

const ID: u64 = 0x1234_5678;

/// The mark that the coordinator has, and its rule.
#[derive(Default)]
struct Kept {
    mark: u64,
    drawn: u64,
}

impl Kept {
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn join(&mut self, before: u64, tries: u64) -> bool {
        let takes = self.mark == 0 || before == 0 || [before, tries].contains(&self.mark);
        if takes {
            self.mark = tries;
        }
        takes
    }
}

fn copy(disk: &MemoryDisk) -> MemoryDisk {
    let copied = MemoryDisk::new(1);
    for name in disk.list().unwrap() {
        let file = disk.open(&name).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        copied.create(&name).unwrap().write_at(0, &bytes).unwrap();
    }
    copied
}

/// A start that may stop anywhere. Whether it has joined, and noted that.
fn start(disk: &MemoryDisk, kept: &mut Kept) -> Result<bool> {
    let mark = kept.draw();
    let mut joined = DirectoryMarks::open(disk, ID, mark)?;
    if !kept.join(joined.before(), joined.tries()) {
        return Err(ErrorKind::Invalid.into());
    }
    joined.settle()?;
    Ok(true)
}

#[test]
fn who_dies_anywhere_goes_on_and_older_copies_do_not() {
    for seed in 0..300 {
        let disk = MemoryDisk::new(seed);
        let mut kept = Kept::default();
        // Copies made while nothing ran, each with the coordinator's mark at that time.
        let mut copies: Vec<(MemoryDisk, u64)> = Vec::new();
        for round in 0..12 {
            if (seed + round) % 3 > 0 {
                disk.trouble_at(disk.calls() + 1 + (seed * 7 + round) % 9, CallFault::Stop);
            }
            let started = start(&disk, &mut kept);
            disk.crash();
            let refused = started.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
            assert!(!refused, "seed {seed}, round {round}");
            if started.is_ok() {
                copies.push((copy(&disk), kept.mark));
            }
            for (older, mark) in copies.iter().filter(|(_, mark)| *mark != kept.mark) {
                let mut kept = Kept { ..kept };
                for _ in 0..3 {
                    let copied = start(&copy(older), &mut kept);
                    assert!(copied.is_err(), "seed {seed}: {mark} joins as {}", kept.mark);
                }
            }
        }
        assert!(copies.len() > 2, "seed {seed}");
    }
}

#[test]
fn one_of_before_goes_by_its_name_and_so_does_one_without_space() {
    let disk = MemoryDisk::new(1);
    disk.create("shard-0").unwrap();
    disk.set_capacity(Some(100));
    let joined = DirectoryMarks::open(&disk, ID, 5).unwrap();
    assert_eq!((joined.before(), joined.tries()), (ID, ID));
    disk.set_capacity(None);
    let mut joined = DirectoryMarks::open(&disk, ID, 6).unwrap();
    assert_eq!((joined.before(), joined.tries()), (ID, 6));
    // Tried until it is noted that it was taken.
    let again = DirectoryMarks::open(&disk, ID, 7).unwrap();
    assert_eq!((again.before(), again.tries()), (ID, 6));
    joined.settle().unwrap();
    let next = DirectoryMarks::open(&disk, ID, 8).unwrap();
    assert_eq!((next.before(), next.tries()), (6, 8));
    // Of another directory.
    assert_eq!(DirectoryMarks::open(&disk, ID + 1, 9).unwrap_err().kind(), ErrorKind::Corrupt);
}
