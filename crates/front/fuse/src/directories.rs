//! Attributes of directories, kept across this mount's own changes.
//!
//! The kernel forgets a directory's attributes whenever it has changed something in it, and asks
//! for them before it changes the next. To find them anew costs a question to every node. But while
//! the delegations on them last, no other client has changed them, and this mount knows its own
//! changes: so they are kept here, and each own change is added to them before the kernel hears
//! that it is done.
//!
//! While an own change is under way nothing is answered from here: others may see it already.
//! Doubtful attributes are dropped: after changes that failed, two at a time, renames, and a clock
//! that stands before the directory's times.
//!
//! In the same way it is known here which names are in a directory where this mount makes some ([`crate::names`]).

mod own_change;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use samite_fs::{DelegationStamp, FileAttributes, FileSystem, Names, Timestamp};
use samite_types::Result;

use crate::names::{KnownNames, ListingHabit};
use own_change::OwnChange;

/// Most directories of which anything is known here.
const DIRECTORIES_MAX: usize = 1 << 12;
/// Most bytes of all names that are known, roughly.
const NAMES_LEN_MAX: usize = 32 << 20;

/// The effect of an own change on a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeEffect {
    /// Nothing.
    None,
    /// Entries changed at this time, and this many directories came, or went if negative.
    Entries(Timestamp, i32),
    /// Nobody knows.
    Unknown,
}

/// The effect of an own change on the names of a directory.
#[derive(Clone, Copy, Debug)]
pub enum NameChange<'a> {
    /// Nothing.
    Attributes,
    /// This one is made, unless it is there.
    Make(&'a [u8]),
    /// This one is removed.
    Remove(&'a [u8]),
}

/// Attributes that stay so.
#[derive(Clone, Copy)]
struct StableAttributes {
    attr: FileAttributes,
    /// Until then nobody else changes them.
    until: Instant,
    /// Another one after each change.
    number: u64,
}

/// One directory.
#[derive(Default)]
struct CachedDirectory {
    kept: Option<StableAttributes>,
    /// All its names.
    names: Option<KnownNames>,
    habit: ListingHabit,
    /// Own changes under way.
    changing: u32,
    /// There were two at a time since there was none.
    is_overlapped: bool,
}

impl CachedDirectory {
    /// Nothing is known of it.
    fn is_blank(&self) -> bool {
        self.changing == 0
            && self.kept.is_none()
            && self.names.is_none()
            && self.habit == ListingHabit::default()
    }
}

#[derive(Default)]
struct DirectoryTable {
    directories: HashMap<u64, CachedDirectory>,
    /// Own changes under way of which nobody knows yet which directories they change.
    changing: u32,
    numbers: u64,
    /// Bytes of all names that are known, roughly.
    names_len: usize,
}

/// Directories by inode number.
#[derive(Default)]
pub struct DirectoryCache {
    table: Mutex<DirectoryTable>,
}

/// An answer from here: good while nothing has happened since.
#[derive(Clone, Copy, Debug)]
pub struct CachedAnswer {
    ino: u64,
    number: u64,
}

impl DirectoryCache {
    /// The cached attributes of a directory, if valid for at least `left` from now.
    pub fn get(&self, ino: u64, left: Duration) -> Option<(FileAttributes, CachedAnswer)> {
        let table = self.lock();
        let kept = table.standing(ino).filter(|kept| kept.until >= Instant::now() + left)?;
        Some((kept.attr, CachedAnswer { ino, number: kept.number }))
    }

    /// For how long an answer from here is still valid; `None`: something has happened.
    pub fn left(&self, standing: CachedAnswer) -> Option<Duration> {
        let table = self.lock();
        let kept = table.standing(standing.ino).filter(|kept| kept.number == standing.number)?;
        Some(kept.until.saturating_duration_since(Instant::now()))
    }

    /// Keeps the attributes that a directory was found with, if the delegation is still valid, that
    /// is if nothing has changed since it was asked for.
    pub fn keep(&self, fs: &FileSystem, attr: &FileAttributes, delegation: &DelegationStamp) {
        let mut guard = self.lock();
        let table = &mut *guard;
        // Under the lock: a recall or a change has ended the delegation before it comes here.
        let Some(left) = delegation.left(fs) else { return };
        if table.changing > 0 || !table.has_room(attr.ino) {
            return;
        }
        table.numbers += 1;
        let until = Instant::now() + left;
        let directory = table.directories.entry(attr.ino).or_default();
        if let Some(names) = &mut directory.names {
            names.extend(until);
        }
        if directory.changing == 0 {
            directory.kept = Some(StableAttributes { attr: *attr, until, number: table.numbers });
        }
    }

    /// Whether a directory has no such name for certain.
    pub fn lack(&self, ino: u64, name: &[u8]) -> bool {
        let mut table = self.lock();
        let names = table.directories.get_mut(&ino).and_then(|directory| directory.names.as_mut());
        names.is_some_and(|names| names.lack(name))
    }

    /// Whether it is time to list a directory, so that its names are known.
    pub fn wants_names(&self, ino: u64) -> bool {
        let mut table = self.lock();
        let Some(directory) = table.directories.get_mut(&ino) else { return false };
        let is_known = directory.names.as_ref().is_some_and(|names| names.stands(Instant::now()));
        !is_known && directory.habit.is_due()
    }

    /// These are all names in a directory, if the delegation is still valid, that is if nothing has
    /// changed since they were asked for.
    pub fn know(&self, fs: &FileSystem, ino: u64, names: Names, delegation: &DelegationStamp) {
        let mut guard = self.lock();
        let table = &mut *guard;
        let Some(left) = delegation.left(fs) else { return };
        table.drop_names(ino);
        let Some(directory) = table.directories.get_mut(&ino) else { return };
        if table.changing > 0 || directory.changing > 0 {
            return;
        }
        let known = KnownNames::new(names, Instant::now() + left);
        table.names_len += known.cost();
        directory.names = Some(known);
        table.fit_names(ino);
    }

    /// Others are about to change this directory.
    pub fn forget(&self, ino: u64) {
        let mut table = self.lock();
        table.drop_names(ino);
        table.drop_kept(ino);
    }

    /// Makes a change to directory `ino`; `effect` derives the change of the attributes from the
    /// result.
    pub fn change<T>(
        &self,
        ino: u64,
        change: NameChange<'_>,
        run: impl FnOnce() -> Result<T>,
        effect: impl FnOnce(&Result<T>) -> ChangeEffect,
    ) -> Result<T> {
        let mut changing = OwnChange::begin(self, Some(ino), (ino, change));
        let result = run();
        changing.effect = effect(&result);
        changing.is_done = result.is_ok();
        result
    }

    /// Makes a change that may concern any directory, and does this to one of them; `gone` says of the result whose attributes are to be dropped, or
    /// of all if `None`.
    pub fn change_any<T>(
        &self,
        of_names: (u64, NameChange<'_>),
        run: impl FnOnce() -> Result<T>,
        gone: impl FnOnce(&Result<T>) -> Option<u64>,
    ) -> Result<T> {
        let mut changing = OwnChange::begin(self, None, of_names);
        let result = run();
        changing.gone = gone(&result);
        changing.is_done = result.is_ok();
        result
    }

    fn lock(&self) -> MutexGuard<'_, DirectoryTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectoryTable {
    fn standing(&self, ino: u64) -> Option<&StableAttributes> {
        let directory = self.directories.get(&ino)?;
        let is_quiet = self.changing == 0 && directory.changing == 0;
        directory.kept.as_ref().filter(|kept| is_quiet && Instant::now() < kept.until)
    }

    fn has_room(&mut self, ino: u64) -> bool {
        if self.directories.len() < DIRECTORIES_MAX || self.directories.contains_key(&ino) {
            return true;
        }
        let now = Instant::now();
        let names_len = &mut self.names_len;
        self.directories.retain(|_, directory| {
            let is_of_use = directory.changing > 0
                || directory.kept.is_some_and(|kept| kept.until > now)
                || directory.names.as_ref().is_some_and(|names| names.stands(now));
            if !is_of_use {
                *names_len -= directory.names.as_ref().map_or(0, KnownNames::cost);
            }
            is_of_use
        });
        self.directories.len() < DIRECTORIES_MAX
    }

    fn drop_kept(&mut self, ino: u64) {
        if let Some(directory) = self.directories.get_mut(&ino) {
            directory.kept = None;
            self.drop_blank(ino);
        }
    }

    /// Others may make names in it, or an own change may take effect later.
    fn drop_names(&mut self, ino: u64) {
        if let Some(directory) = self.directories.get_mut(&ino)
            && let Some(known) = directory.names.take()
        {
            self.names_len -= known.cost();
            directory.habit.ended(&known);
            self.drop_blank(ino);
        }
    }

    fn drop_blank(&mut self, ino: u64) {
        let is_full = self.directories.len() > DIRECTORIES_MAX;
        if let Entry::Occupied(entry) = self.directories.entry(ino) {
            let directory = entry.get();
            let is_idle =
                directory.changing == 0 && directory.kept.is_none() && directory.names.is_none();
            if directory.is_blank() || (is_full && is_idle) {
                entry.remove();
            }
        }
    }

    /// Sees to it that the names of directory `ino` do not take more than there is for all.
    fn fit_names(&mut self, ino: u64) {
        if self.names_len > NAMES_LEN_MAX {
            self.drop_names(ino);
            if let Some(directory) = self.directories.get_mut(&ino) {
                directory.habit.too_many();
            }
        }
    }

    fn drop_all(&mut self) {
        self.directories.retain(|_, directory| {
            directory.kept = None;
            !directory.is_blank()
        });
    }

    fn begin(&mut self, ino: u64) {
        let directory = self.directories.entry(ino).or_default();
        directory.is_overlapped |= directory.changing > 0 || self.changing > 0;
        directory.changing += 1;
        if directory.changing > 1 {
            // The later of two may not be the one that its partition heard of last.
            directory.kept = None;
        }
    }

    fn begin_any(&mut self, ino: u64) {
        self.changing += 1;
        if let Some(directory) = self.directories.get_mut(&ino) {
            directory.is_overlapped |= directory.changing > 0;
        }
    }

    /// An own change is about to begin: the file that it makes may be there from now on.
    fn begin_names(&mut self, ino: u64, change: NameChange<'_>) {
        if let NameChange::Make(name) = change
            && let Some(names) = self.directories.get_mut(&ino).and_then(|d| d.names.as_mut())
        {
            let before = names.cost();
            names.add(name);
            self.names_len += names.cost() - before;
            self.fit_names(ino);
        }
    }

    /// It has ended; `is_done`: it has done what it was to do, and nothing of it is left to be done.
    fn end_names(&mut self, ino: u64, change: NameChange<'_>, is_done: bool) {
        let names = self.directories.get(&ino).and_then(|directory| directory.names.as_ref());
        if !is_done || names.is_some_and(|names| !names.stands(Instant::now())) {
            self.drop_names(ino);
        }
        if !is_done {
            return;
        }
        let Some(directory) = self.directories.get_mut(&ino) else { return };
        match (change, &mut directory.names) {
            (NameChange::Make(_), None) => directory.habit.made(),
            // The client that makes it meanwhile may be the later of the two.
            (NameChange::Remove(name), Some(names)) if !directory.is_overlapped => {
                let before = names.cost();
                names.remove(name);
                self.names_len -= before - names.cost();
            }
            _ => {}
        }
    }

    fn end(&mut self, ino: u64, effect: ChangeEffect) {
        self.numbers += 1;
        let Some(directory) = self.directories.get_mut(&ino) else { return };
        directory.changing -= 1;
        directory.is_overlapped &= directory.changing > 0;
        let number = self.numbers;
        let kept = directory.kept.take();
        directory.kept = kept.and_then(|kept| {
            fold(kept.attr, effect).map(|attr| StableAttributes { attr, number, ..kept })
        });
        self.drop_blank(ino);
    }
}

/// The attributes after an own change; `None`: nobody knows.
fn fold(attr: FileAttributes, effect: ChangeEffect) -> Option<FileAttributes> {
    match effect {
        ChangeEffect::None => Some(attr),
        // A partition has the time of its last change, also if another clock has been ahead there before.
        ChangeEffect::Entries(time, directories) if time >= attr.mtime && time >= attr.ctime => {
            let nlink = attr.nlink.checked_add_signed(directories)?;
            Some(FileAttributes { mtime: time, ctime: time, nlink, ..attr })
        }
        ChangeEffect::Entries(..) | ChangeEffect::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: u64 = 7;
    const LEFT: Duration = Duration::from_secs(300);

    fn attr(time: i64) -> FileAttributes {
        FileAttributes {
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

    fn keeping(time: i64) -> DirectoryCache {
        let directories = DirectoryCache::default();
        let until = Instant::now() + Duration::from_secs(600);
        let kept = Some(StableAttributes { attr: attr(time), until, number: 0 });
        directories
            .lock()
            .directories
            .insert(INO, CachedDirectory { kept, ..CachedDirectory::default() });
        directories
    }

    fn done(run: impl Fn()) -> impl Fn() -> Result<()> {
        move || {
            run();
            Ok(())
        }
    }

    /// A change of attributes, with this effect.
    fn change(all: &DirectoryCache, effect: ChangeEffect, run: impl Fn()) {
        all.change(INO, NameChange::Attributes, done(run), |_| effect).unwrap();
    }

    fn change_any(all: &DirectoryCache, gone: Option<u64>, run: impl Fn()) {
        all.change_any((INO, NameChange::Attributes), done(run), |_| gone).unwrap();
    }

    #[test]
    fn own_changes_are_added_when_they_are_done_and_nothing_is_told_meanwhile() {
        let directories = keeping(10);
        let (_, before) = directories.get(INO, LEFT).unwrap();
        assert!(directories.left(before).is_some());
        change(&directories, ChangeEffect::Entries(Timestamp(11), 1), || {
            assert!(directories.get(INO, LEFT).is_none() && directories.left(before).is_none());
        });
        let (now, after) = directories.get(INO, LEFT).unwrap();
        assert_eq!((now.mtime, now.ctime, now.nlink), (Timestamp(11), Timestamp(11), 3));
        assert!(directories.left(before).is_none() && directories.left(after).is_some());
        change_any(&directories, Some(INO + 1), || assert!(directories.get(INO, LEFT).is_none()));
        assert!(directories.left(after).is_some());
        assert!(directories.get(INO, 3 * LEFT).is_none());
        directories.forget(INO);
        assert!(directories.get(INO, LEFT).is_none() && directories.lock().directories.is_empty());
    }

    #[test]
    fn what_is_doubtful_is_dropped() {
        let dropped = |act: &dyn Fn(&DirectoryCache)| {
            let directories = keeping(10);
            act(&directories);
            assert!(directories.get(INO, LEFT).is_none());
            assert!(directories.lock().directories.is_empty());
        };
        let later = ChangeEffect::Entries(Timestamp(20), 0);
        dropped(&|all| change(all, ChangeEffect::Unknown, || ()));
        dropped(&|all| change(all, ChangeEffect::Entries(Timestamp(9), 0), || ()));
        dropped(&|all| change(all, later, || change(all, later, || ())));
        dropped(&|all| change_any(all, None, || ()));
        dropped(&|all| change_any(all, Some(INO), || ()));
    }

    /// A directory in which these names are known to be.
    fn knowing(names: &[&[u8]]) -> DirectoryCache {
        let directories = DirectoryCache::default();
        let until = Instant::now() + Duration::from_secs(600);
        let known = KnownNames::new(names.iter().map(|name| Box::from(*name)), until);
        let mut table = directories.lock();
        table.names_len = known.cost();
        let directory = CachedDirectory { names: Some(known), ..CachedDirectory::default() };
        table.directories.insert(INO, directory);
        drop(table);
        directories
    }

    fn run(all: &DirectoryCache, change: NameChange<'_>, run: impl Fn() -> Result<()>) {
        // Its result is not tested here.
        let _ = all.change(INO, change, run, |_| ChangeEffect::Unknown);
    }

    const A: &[u8] = b"a";

    #[test]
    fn names_that_are_made_or_may_be_are_not_told_to_be_missing() {
        let all = knowing(&[]);
        assert!(all.lack(INO, A) && !all.lack(INO + 1, A));
        run(&all, NameChange::Make(A), || {
            assert!(!all.lack(INO, A) && all.lack(INO, b"b"));
            Ok(())
        });
        assert!(!all.lack(INO, A));
        run(&all, NameChange::Remove(A), || {
            assert!(!all.lack(INO, A));
            Ok(())
        });
        assert!(all.lack(INO, A));
        let rename = || {
            assert!(!all.lack(INO, A) && all.lack(INO, b"b"));
            Ok(())
        };
        all.change_any((INO, NameChange::Make(A)), rename, |_| None).unwrap();
        assert!(!all.lack(INO, A) && all.lack(INO, b"b"));
        // Two at a time: nobody knows which of them is the later.
        run(&all, NameChange::Remove(A), || {
            run(&all, NameChange::Make(A), || Ok(()));
            Ok(())
        });
        assert!(!all.lack(INO, A));
        run(&all, NameChange::Remove(A), || {
            all.change_any((INO, NameChange::Make(A)), || Ok(()), |_| None)
        });
        assert!(!all.lack(INO, A));
        run(&all, NameChange::Remove(A), || Ok(()));
        assert!(all.lack(INO, A));
        assert_eq!(all.lock().names_len, 0);
    }

    #[test]
    fn names_are_known_no_more_after_a_failure_a_revocation_or_too_many() {
        let forgotten = |act: &dyn Fn(&DirectoryCache)| {
            let all = knowing(&[A]);
            act(&all);
            assert!(!all.lack(INO, b"b"));
            assert_eq!(all.lock().names_len, 0);
        };
        let fail = || Err(samite_types::ErrorKind::Timeout.into());
        forgotten(&|all| run(all, NameChange::Make(A), fail));
        forgotten(&|all| run(all, NameChange::Remove(A), fail));
        forgotten(&|all| run(all, NameChange::Attributes, fail));
        forgotten(&|all| drop(all.change_any((INO, NameChange::Make(A)), fail, |_| None)));
        forgotten(&|all| all.forget(INO));
        forgotten(&|all| {
            let most = NAMES_LEN_MAX / 128;
            let name = |number: usize| format!("{number:0>80}");
            let count = (0..most).find(|number| {
                run(all, NameChange::Make(name(*number).as_bytes()), || Ok(()));
                assert!(all.lock().names_len <= NAMES_LEN_MAX);
                !all.lack(INO, b"b")
            });
            assert!(count.is_some());
        });
    }

    #[test]
    fn names_that_nobody_promises_any_more_are_dropped_and_asked_for_again() {
        let all = knowing(&[A]);
        let lapsed = KnownNames::new([Box::from(A)], Instant::now());
        all.lock().directories.get_mut(&INO).unwrap().names = Some(lapsed);
        assert!(!all.lack(INO, b"b") && !all.wants_names(INO));
        for name in [b"b", b"c"] {
            run(&all, NameChange::Make(name), || Ok(()));
        }
        assert!(all.wants_names(INO));
        assert_eq!(all.lock().names_len, 0);
    }

    #[test]
    fn many_directories_of_which_little_is_known_leave_nothing() {
        let all = DirectoryCache::default();
        for ino in 0..2 * DIRECTORIES_MAX as u64 {
            let make = || Ok(());
            all.change(ino, NameChange::Make(A), make, |_| ChangeEffect::Unknown).unwrap();
        }
        assert!(all.lock().directories.len() <= DIRECTORIES_MAX + 1);
        assert!(!all.wants_names(1));
        run(&all, NameChange::Make(b"b"), || Ok(()));
        assert!(all.wants_names(INO) && !all.wants_names(INO));
    }
}
