//! Permissions of a dataset.

use serde::{Deserialize, Serialize};

use crate::op::{Action, Operation};

/// Mode bits: to read records, and to change them. The third bit of each class is stored and has no
/// meaning yet.
const READ: u16 = 0o4;
const WRITE: u16 = 0o2;

/// Owner and mode of a dataset, in the manner of a file's. There is no class for groups: its bits
/// are stored, and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DatasetAccess {
    /// User. [`DatasetAccess::CALLER`] when a dataset is to be made: whoever asks.
    pub owner: u32,
    /// Permission bits, as of a file: those for the owner and for others count.
    pub mode: u16,
}

impl Default for DatasetAccess {
    /// The maker's own.
    fn default() -> Self {
        Self { owner: Self::CALLER, mode: 0o700 }
    }
}

impl DatasetAccess {
    /// No user's id: whoever asks.
    pub const CALLER: u32 = u32::MAX;
    /// Bits of a mode.
    pub const MODE_MASK: u16 = 0o777;

    /// Whether `uid` may read records, and with `changes` also change them. Root may.
    #[must_use]
    pub const fn allows(&self, uid: u32, changes: bool) -> bool {
        if uid == 0 {
            return true;
        }
        let bits = if uid == self.owner { self.mode >> 6 } else { self.mode };
        bits & READ != 0 && (!changes || bits & WRITE != 0)
    }

    /// Whether `uid` may drop the dataset, and say who else may use it.
    #[must_use]
    pub const fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }
}

/// Whether an operation needs the right to change records. Open references and delegations do not:
/// a client that reads a file has them, too.
#[must_use]
pub fn changes(operation: &Operation<'_>) -> bool {
    operation.actions.iter().any(Action::is_mutation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_others_and_root() {
        let private = DatasetAccess { owner: 1000, mode: 0o700 };
        assert!(private.allows(1000, true) && private.allows(0, true));
        assert!(!private.allows(1001, false));
        let public = DatasetAccess { owner: 1000, mode: 0o754 };
        assert!(public.allows(1001, false) && !public.allows(1001, true));
        let kept = DatasetAccess { owner: 1000, mode: 0o506 };
        assert!(kept.allows(1000, false) && !kept.allows(1000, true) && kept.allows(1001, true));
        assert!(kept.is_owner(1000) && kept.is_owner(0) && !kept.is_owner(1001));
        assert!(!DatasetAccess { owner: 1000, mode: 0o002 }.allows(1001, true));
    }
}
