//! The bounded label values of a family: users, or datasets.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::definition::{FAMILY_MAX, OTHER};

/// Names with series of their own, by number; 0 is for all others.
#[derive(Debug, Default)]
pub(crate) struct FamilyNames {
    names: Mutex<Vec<String>>,
}

impl FamilyNames {
    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of `name`, which it keeps; 0 when there are too many before it.
    pub(crate) fn number(&self, name: &str) -> usize {
        let mut names = self.lock();
        if let Some(index) = names.iter().position(|known| known == name) {
            return index + 1;
        }
        if names.len() >= FAMILY_MAX {
            return 0;
        }
        names.push(name.to_owned());
        names.len()
    }

    /// The names by number, that of the others first.
    pub(crate) fn all(&self) -> Vec<String> {
        let names = self.lock();
        std::iter::once(OTHER.to_owned()).chain(names.iter().cloned()).collect()
    }
}
