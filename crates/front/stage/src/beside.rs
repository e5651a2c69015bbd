//! A new file beside the one that it is to replace: under a hidden name until it is whole, then renamed.
//!
//! The hidden name is `.NAME.samite-copy-N`, N below [`SLOTS`], so that the next copy to the same
//! name finds the file that a killed copy left. A copy that writes such a file has it locked
//! (`flock`); an unlocked one is a fragment and is removed.

use samite_fs::FileKind;
use samite_types::{Error, ErrorKind, Result};

use crate::tree::{FileMeta, FileTree, join};

/// The suffix of a hidden name behind the name of the file.
const MARK: &[u8] = b".samite-copy-";
/// Copies to one name that can be under way at a time.
const SLOTS: usize = 64;
/// Bytes of the name that the hidden name keeps, so that it is never longer than names can be.
const NAME_KEPT: usize = 200;
/// Times that a hidden name is tried again, when others sweep at the same time.
const TRIES: usize = 16;

/// A file that is being made, and where it will be.
pub struct DraftFile<F> {
    /// The file, for writing.
    pub file: F,
    /// Its path until it is put in place.
    pub hidden: Vec<u8>,
    to: Vec<u8>,
    slot: usize,
}

fn hidden_name(to: &[u8], slot: usize) -> Vec<u8> {
    let (dir, name) = match to.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&to[..=at], &to[at + 1..]),
        None => (&to[..0], to),
    };
    let kept = &name[..name.len().min(NAME_KEPT)];
    join(dir, &[b".", kept, MARK, slot.to_string().as_bytes()].concat())
}

impl<F: Send + Sync> DraftFile<F> {
    /// Makes a file that is to become `to`, and removes what killed copies to `to` have left.
    ///
    /// # Errors
    /// `Busy`: too many copies to `to` are under way; as [`FileTree::create`].
    pub fn create<T: FileTree<File = F>>(tree: &T, to: &[u8], perm: u32) -> Result<Self> {
        for slot in 0..SLOTS {
            let hidden = hidden_name(to, slot);
            let mut found = false;
            if let Some(file) = claim(tree, &hidden, perm, &mut found)? {
                if sweep(tree, to, slot + 1..SLOTS) || found {
                    tree.free_removed();
                }
                return Ok(Self { file, hidden, to: to.to_vec(), slot });
            }
        }
        let message = format!("{}: {SLOTS} copies to it are under way", tree.show(to));
        Err(Error::new(ErrorKind::Busy, message))
    }

    /// Puts the file, whole, closed or not, in place of what is there. On failure nothing of it is left.
    ///
    /// # Errors
    /// As [`FileTree::rename`].
    pub fn place<T: FileTree<File = F>>(&self, tree: &T) -> Result<()> {
        if let Err(error) = tree.rename(&self.hidden, &self.to) {
            self.give_up(tree);
            return Err(error);
        }
        tree.release(&self.file);
        // It was held just now, perhaps by a copy that had just been killed.
        if sweep(tree, &self.to, 0..self.slot) {
            tree.free_removed();
        }
        Ok(())
    }

    /// Removes the file; the error that led here is the one to tell.
    pub fn give_up<T: FileTree<File = F>>(&self, tree: &T) {
        let _ = tree.unlink(&self.hidden);
        tree.release(&self.file);
        tree.close(&self.file);
    }
}

/// Makes and locks the file `hidden`; `None` when another copy is writing it. `found`: there was a fragment.
fn claim<T: FileTree>(
    tree: &T,
    hidden: &[u8],
    perm: u32,
    found: &mut bool,
) -> Result<Option<T::File>> {
    for _ in 0..TRIES {
        match tree.create(hidden, perm) {
            Ok(file) => {
                // Where there are no locks, nobody sweeps either.
                if tree.hold(&file).unwrap_or(true) && is_at(tree, &file, hidden) {
                    return Ok(Some(file));
                }
                // Someone took it for a fragment in between.
                tree.release(&file);
                tree.close(&file);
            }
            Err(error) if error.kind() == ErrorKind::Exists => {
                if !remove_fragment(tree, hidden) {
                    return Ok(None);
                }
                *found = true;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn is_at<T: FileTree>(tree: &T, file: &T::File, path: &[u8]) -> bool {
    match (tree.file_meta(file, path), tree.meta(path)) {
        (Ok(file), Ok(there)) => file.id == there.id,
        _ => false,
    }
}

/// Whether the name is free now: it was, or what was there belonged to nobody.
fn remove_fragment<T: FileTree>(tree: &T, hidden: &[u8]) -> bool {
    let file = match tree.open(hidden) {
        Ok(file) => file,
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    let is_free = tree.hold(&file).unwrap_or(false)
        && (!is_at(tree, &file, hidden) || tree.unlink(hidden).is_ok());
    tree.release(&file);
    tree.close(&file);
    is_free
}

/// Whether a name is one that copies make on their way.
pub fn is_hidden(name: &[u8]) -> bool {
    let Some(at) = name.windows(MARK.len()).rposition(|part| part == MARK) else { return false };
    let slot =
        std::str::from_utf8(&name[at + MARK.len()..]).ok().and_then(|slot| slot.parse().ok());
    at > 1 && name[0] == b'.' && slot.is_some_and(|slot: usize| slot < SLOTS)
}

/// Removes what killed copies have left in a directory, whatever they were to become.
pub fn sweep_dir<T: FileTree>(tree: &T, dir: &[u8]) {
    let (mut found, mut entries) = (false, Vec::new());
    // Names that could not be listed are left for another time.
    let _ = tree.list(dir, &mut entries);
    for (name, _) in entries {
        found |= is_hidden(&name) && remove_fragment(tree, &join(dir, &name));
    }
    if found {
        tree.free_removed();
    }
}

/// Removes what killed copies have left at the destination of a tree, in each directory that the
/// source has, too.
pub fn sweep_tree(
    (source, from): (&impl FileTree, &[u8]),
    (destination, to): (&impl FileTree, &[u8]),
) {
    let mut unread = vec![(from.to_vec(), to.to_vec())];
    let mut entries = Vec::new();
    while let Some((from, to)) = unread.pop() {
        sweep_dir(destination, &to);
        entries.clear();
        let _ = source.list(&from, &mut entries);
        for (name, known) in &entries {
            let (from, to) = (join(&from, name), join(&to, name));
            let is_dir = |meta: &FileMeta| meta.kind == FileKind::Directory;
            let there = known
                .as_ref()
                .map_or_else(|| source.meta(&from).is_ok_and(|meta| is_dir(&meta)), is_dir);
            if there && destination.meta(&to).is_ok_and(|meta| is_dir(&meta)) {
                unread.push((from, to));
            }
        }
    }
    destination.free_removed();
}

/// Whether there was a fragment.
fn sweep<T: FileTree>(tree: &T, to: &[u8], slots: std::ops::Range<usize>) -> bool {
    let mut found = false;
    for slot in slots {
        let hidden = hidden_name(to, slot);
        if tree.meta(&hidden).is_err() {
            break;
        }
        found |= remove_fragment(tree, &hidden);
    }
    found
}
