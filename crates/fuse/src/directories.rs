//! Attributes of directories, kept across this mount's own changes.
//!
//! The kernel forgets a directory's attributes whenever it has changed something in it, and asks for them before it changes the next.
//! To find them anew costs a question to every node. But while the promises on them stand, nobody else has changed them, and
//! what this mount itself changed it knows: so they are kept here, and each own change is added to them before the kernel hears that
//! it is done.
//!
//! While an own change is under way nothing is answered from here: others may see it already. What is doubtful is dropped: changes
//! that failed, two at a time, renames, and a clock that stands before the directory's times.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use samite_fs::{Attr, FileSystem, Promise, Timestamp};

/// Most directories of which anything is known here.
const DIRECTORIES_MAX: usize = 1 << 12;

/// What an own change did to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Entries changed at this time, and this many directories came, or went if negative.
    Entries(Timestamp, i32),
    /// Nobody knows.
    Unknown,
}

/// Attributes that stay so.
#[derive(Clone, Copy)]
struct Kept {
    attr: Attr,
    /// Until then nobody else changes them.
    until: Instant,
    /// Another one after each change.
    number: u64,
}

/// One directory.
#[derive(Clone, Copy, Default)]
struct Directory {
    kept: Option<Kept>,
    /// Own changes under way.
    changing: u32,
}

#[derive(Default)]
struct Table {
    directories: HashMap<u64, Directory>,
    /// Own changes under way of which nobody knows yet which directories they change.
    changing: u32,
    numbers: u64,
}

/// Directories by inode number.
#[derive(Default)]
pub struct Directories {
    table: Mutex<Table>,
}

/// An answer from here: good while nothing has happened since.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    ino: u64,
    number: u64,
}

impl Directories {
    /// What is kept of a directory for at least `left` from now.
    pub fn get(&self, ino: u64, left: Duration) -> Option<(Attr, Standing)> {
        let table = self.lock();
        let kept = table.standing(ino).filter(|kept| kept.until >= Instant::now() + left)?;
        Some((kept.attr, Standing { ino, number: kept.number }))
    }

    /// For how long an answer from here still holds; `None`: something has happened.
    pub fn left(&self, standing: Standing) -> Option<Duration> {
        let table = self.lock();
        let kept = table.standing(standing.ino).filter(|kept| kept.number == standing.number)?;
        Some(kept.until.saturating_duration_since(Instant::now()))
    }

    /// Keeps what a directory was found to be, if the promise stands, that is if nothing has changed since it was asked for.
    pub fn keep(&self, fs: &FileSystem, attr: &Attr, promise: &Promise) {
        let mut guard = self.lock();
        let table = &mut *guard;
        // Under the lock: whoever calls the promise back, or changes something, has broken it before it comes here.
        let Some(left) = promise.left(fs) else { return };
        if table.changing > 0 || !table.has_room(attr.ino) {
            return;
        }
        table.numbers += 1;
        let until = Instant::now() + left;
        let directory = table.directories.entry(attr.ino).or_default();
        if directory.changing == 0 {
            directory.kept = Some(Kept { attr: *attr, until, number: table.numbers });
        }
    }

    /// Others are about to change this directory.
    pub fn forget(&self, ino: u64) {
        self.lock().drop_kept(ino);
    }

    /// Makes a change to directory `ino`; `effect` says of the result what it did.
    pub fn change<T>(
        &self,
        ino: u64,
        run: impl FnOnce() -> T,
        effect: impl FnOnce(&T) -> Effect,
    ) -> T {
        let mut changing = Changing::begin(self, Some(ino));
        let result = run();
        changing.effect = effect(&result);
        result
    }

    /// Makes a change that may concern any directory; `gone` says of the result whose attributes are to be dropped, or of all if `None`.
    pub fn change_any<T>(
        &self,
        run: impl FnOnce() -> T,
        gone: impl FnOnce(&T) -> Option<u64>,
    ) -> T {
        let mut changing = Changing::begin(self, None);
        let result = run();
        changing.gone = gone(&result);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn standing(&self, ino: u64) -> Option<&Kept> {
        let directory = self.directories.get(&ino)?;
        let is_quiet = self.changing == 0 && directory.changing == 0;
        directory.kept.as_ref().filter(|kept| is_quiet && Instant::now() < kept.until)
    }

    fn has_room(&mut self, ino: u64) -> bool {
        if self.directories.len() < DIRECTORIES_MAX || self.directories.contains_key(&ino) {
            return true;
        }
        let now = Instant::now();
        let is_of_use = |directory: &Directory| {
            directory.changing > 0 || directory.kept.is_some_and(|kept| kept.until > now)
        };
        self.directories.retain(|_, directory| is_of_use(directory));
        self.directories.len() < DIRECTORIES_MAX
    }

    fn drop_kept(&mut self, ino: u64) {
        if let Some(directory) = self.directories.get_mut(&ino) {
            directory.kept = None;
            if directory.changing == 0 {
                self.directories.remove(&ino);
            }
        }
    }

    fn drop_all(&mut self) {
        self.directories.retain(|_, directory| {
            directory.kept = None;
            directory.changing > 0
        });
    }

    fn begin(&mut self, ino: u64) {
        let directory = self.directories.entry(ino).or_default();
        directory.changing += 1;
        if directory.changing > 1 {
            // The later of two may not be the one that its partition heard of last.
            directory.kept = None;
        }
    }

    fn end(&mut self, ino: u64, effect: Effect) {
        self.numbers += 1;
        let Some(directory) = self.directories.get_mut(&ino) else { return };
        directory.changing -= 1;
        let number = self.numbers;
        let kept = directory.kept.take();
        directory.kept =
            kept.and_then(|kept| fold(kept.attr, effect).map(|attr| Kept { attr, number, ..kept }));
        if directory.changing == 0 && directory.kept.is_none() {
            self.directories.remove(&ino);
        }
    }
}

/// The attributes after an own change; `None`: nobody knows.
fn fold(attr: Attr, effect: Effect) -> Option<Attr> {
    match effect {
        Effect::None => Some(attr),
        // A partition has the time of its last change, also if another clock has been ahead there before.
        Effect::Entries(time, directories) if time >= attr.mtime && time >= attr.ctime => {
            let nlink = attr.nlink.checked_add_signed(directories)?;
            Some(Attr { mtime: time, ctime: time, nlink, ..attr })
        }
        Effect::Entries(..) | Effect::Unknown => None,
    }
}

/// An own change under way. One that ends by a panic leaves nothing kept.
struct Changing<'d> {
    directories: &'d Directories,
    ino: Option<u64>,
    effect: Effect,
    gone: Option<u64>,
}

impl<'d> Changing<'d> {
    fn begin(directories: &'d Directories, ino: Option<u64>) -> Self {
        let mut table = directories.lock();
        match ino {
            Some(ino) => table.begin(ino),
            None => table.changing += 1,
        }
        Self { directories, ino, effect: Effect::Unknown, gone: None }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut table = self.directories.lock();
        match (self.ino, self.gone) {
            (Some(ino), _) => table.end(ino, self.effect),
            (None, gone) => {
                table.changing -= 1;
                match gone {
                    Some(ino) => table.drop_kept(ino),
                    None => table.drop_all(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: u64 = 7;
    const LEFT: Duration = Duration::from_secs(300);

    fn attr(time: i64) -> Attr {
        Attr {
            ino: INO,
            kind: samite_fs::FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 4096,
            blocks: 0,
            block_len: 4096,
            atime: Timestamp(time),
            mtime: Timestamp(time),
            ctime: Timestamp(time),
            btime: Timestamp(time),
        }
    }

    fn keeping(time: i64) -> Directories {
        let directories = Directories::default();
        let until = Instant::now() + Duration::from_secs(600);
        let kept = Some(Kept { attr: attr(time), until, number: 0 });
        directories.lock().directories.insert(INO, Directory { kept, changing: 0 });
        directories
    }

    #[test]
    fn own_changes_are_added_when_they_are_done_and_nothing_is_told_meanwhile() {
        let directories = keeping(10);
        let (_, before) = directories.get(INO, LEFT).unwrap();
        assert!(directories.left(before).is_some());
        let change =
            || assert!(directories.get(INO, LEFT).is_none() && directories.left(before).is_none());
        directories.change(INO, change, |()| Effect::Entries(Timestamp(11), 1));
        let (now, after) = directories.get(INO, LEFT).unwrap();
        assert_eq!((now.mtime, now.ctime, now.nlink), (Timestamp(11), Timestamp(11), 3));
        assert!(directories.left(before).is_none() && directories.left(after).is_some());
        directories
            .change_any(|| assert!(directories.get(INO, LEFT).is_none()), |()| Some(INO + 1));
        assert!(directories.left(after).is_some());
        assert!(directories.get(INO, 3 * LEFT).is_none());
        directories.forget(INO);
        assert!(directories.get(INO, LEFT).is_none() && directories.lock().directories.is_empty());
    }

    #[test]
    fn what_is_doubtful_is_dropped() {
        let dropped = |act: &dyn Fn(&Directories)| {
            let directories = keeping(10);
            act(&directories);
            assert!(directories.get(INO, LEFT).is_none());
            assert!(directories.lock().directories.is_empty());
        };
        let later = |(): &()| Effect::Entries(Timestamp(20), 0);
        dropped(&|all| all.change(INO, || (), |()| Effect::Unknown));
        dropped(&|all| all.change(INO, || (), |()| Effect::Entries(Timestamp(9), 0)));
        dropped(&|all| all.change(INO, || all.change(INO, || (), later), later));
        dropped(&|all| all.change_any(|| (), |()| None));
        dropped(&|all| all.change_any(|| (), |()| Some(INO)));
    }
}
