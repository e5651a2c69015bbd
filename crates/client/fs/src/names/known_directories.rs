//! The directories that this process has handles on, and where they are recorded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::records::key::Key;

/// Inode number → the record that a handle found the directory in, and how many handles there are.
#[derive(Default)]
pub struct KnownDirectories {
    known: Mutex<HashMap<u64, (Key, usize)>>,
}

impl KnownDirectories {
    /// A handle on directory `ino` is made, which is recorded under `key`.
    pub fn add(&self, ino: u64, key: &Key) {
        self.lock().entry(ino).or_insert_with(|| (key.clone(), 0)).1 += 1;
    }

    /// A handle is gone.
    pub fn remove(&self, ino: u64) {
        if let Entry::Occupied(mut entry) = self.lock().entry(ino) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }

    /// The record that a handle on directory `ino` found it in; `None`: there is no handle on it.
    pub fn get(&self, ino: u64) -> Option<Key> {
        self.lock().get(&ino).map(|(key, _)| key.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (Key, usize)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::key;

    #[test]
    fn a_directory_is_known_until_its_last_handle_is_gone() {
        let known = KnownDirectories::default();
        let (first, second) = (key::entry(1, b"a"), key::entry(1, b"b"));
        known.add(7, &first);
        known.add(7, &second);
        assert_eq!(known.get(7), Some(first.clone()));
        known.remove(7);
        assert_eq!(known.get(7), Some(first));
        known.remove(7);
        assert_eq!(known.get(7), None);
        known.remove(7);
    }
}
