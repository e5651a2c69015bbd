//! The operations that make and remove the entry of a file.

use samite_wire::op::{Action, Guard, Operation};

use crate::records::change_stamps::EntryMark;
use crate::records::inode::{INODE_LEN, at};
use crate::records::store::RecordLocation;
use crate::sharing::delegated::long_delegation;

/// An entry that is to be made.
#[derive(Clone, Copy)]
pub struct NewEntry<'e> {
    pub location: &'e RecordLocation,
    /// Inode and data.
    pub value: &'e [u8],
    /// Key of its directory's tombstone, which is there while the directory is removed.
    pub tombstone: &'e [u8],
    pub stamp: &'e EntryMark,
    pub is_directory: bool,
    /// Token of an open reference from the beginning; 0: none.
    pub open_reference: u64,
}

impl<'e> NewEntry<'e> {
    /// Makes it, with a long delegation as the last result if one is wanted. Guard 0 fails where
    /// there is such an entry, guard 1 where its directory is being removed; both concern records
    /// that only this operation and those with the guard that the directory is empty make.
    pub fn operation(&self, wants_delegation: bool) -> Operation<'e> {
        let key = &self.location.key;
        let mut op = Operation::put(self.location.partition, key, self.value)
            .guard(Guard::Absent(key))
            .guard(Guard::Absent(self.tombstone));
        op.actions.extend(self.stamp.actions(i64::from(self.is_directory)));
        if self.open_reference != 0 {
            op.actions.push(Action::Hold { key, token: self.open_reference });
        }
        if wants_delegation {
            op.actions.push(long_delegation(key));
        }
        op
    }
}

/// The entry of a file that is to be removed: not of a directory, nor of a file that is moving.
#[derive(Clone, Copy)]
pub struct EntryRemoval<'e> {
    pub location: &'e RecordLocation,
    /// Key that the record gets where it has open references.
    pub orphan: &'e [u8],
    pub stamp: &'e EntryMark,
}

impl<'e> EntryRemoval<'e> {
    fn byte_is_zero(&self, offset: u32) -> Guard<'e> {
        Guard::BytesAre { key: &self.location.key, offset, bytes: &[0] }
    }

    fn is_file(&self) -> Guard<'e> {
        self.byte_is_zero(at::STATE)
    }

    /// Removes a file to whose inode nothing else belongs: when this is done, all is done, whether
    /// the file has open references or not. It takes the key away, and leaves a change stamp.
    #[inline]
    pub fn of_inline_file(&self) -> Operation<'e> {
        let detach = Action::Detach { key: &self.location.key, to: self.orphan };
        let actions = std::iter::once(detach).chain(self.stamp.actions(0));
        Operation::new(self.location.partition, actions)
            .guard(self.is_file())
            .guard(self.byte_is_zero(at::LAYOUT))
            .guard(self.byte_is_zero(at::FLAGS))
    }

    /// Removes any file, with results for [`RemovedInode`](crate::sharing::open_references::RemovedInode);
    /// it reveals the inode where it fails, and leaves a change stamp if it is to (`with_stamp`).
    pub fn of_any_file(&self, with_stamp: bool) -> Operation<'e> {
        let actions = take_away(&self.location.key, self.orphan);
        let mut op = Operation::new(self.location.partition, actions)
            .guard(self.is_file())
            .reveal(INODE_LEN as u32);
        op.actions.extend(self.stamp.actions(0).filter(|_| with_stamp));
        op
    }
}

/// Reads the inode of a record and takes its key away; for
/// [`RemovedInode`](crate::sharing::open_references::RemovedInode).
pub fn take_away<'k>(key: &'k [u8], orphan: &'k [u8]) -> [Action<'k>; 2] {
    [Action::Get { key, offset: 0, len: INODE_LEN as u32 }, Action::Detach { key, to: orphan }]
}

#[cfg(test)]
mod tests {
    use samite_types::PartitionId;

    use super::*;
    use crate::records::inode::{DataLayout, FLAG_ATTRIBUTES, FLAG_RENAMED, Inode};
    use crate::records::key;
    use crate::{FileKind, Timestamp};

    fn location() -> RecordLocation {
        RecordLocation { key: key::entry(1, b"name"), partition: PartitionId(3) }
    }

    #[test]
    fn making_an_entry_asks_for_what_is_wanted() {
        let (location, tombstone) = (location(), key::tombstone(1));
        let stamp = EntryMark::new(&location.key, Timestamp(5));
        let entry = NewEntry {
            location: &location,
            value: b"value",
            tombstone: &tombstone,
            stamp: &stamp,
            is_directory: false,
            open_reference: 9,
        };
        let holds = |action: &Action<'_>| matches!(action, Action::Hold { .. });
        for wants_delegation in [false, true] {
            let op = entry.operation(wants_delegation);
            assert_eq!(op.partition, PartitionId(3));
            assert_eq!(&op.guards[..], [Guard::Absent(&location.key), Guard::Absent(&tombstone)]);
            assert!(op.actions.iter().any(holds));
            let delegates = matches!(op.actions.last(), Some(Action::Lease { .. }));
            assert_eq!(delegates, wants_delegation);
        }
        let directory = NewEntry { is_directory: true, open_reference: 0, ..entry };
        let op = directory.operation(false);
        assert!(!op.actions.iter().any(holds));
        assert_eq!(op.actions.len(), 3, "the stamp counts it among the directories");
    }

    #[test]
    fn removing_any_file_also_reads_the_inode() {
        let (location, orphan) = (location(), key::orphan(7));
        let stamp = EntryMark::new(&location.key, Timestamp(5));
        let removal = EntryRemoval { location: &location, orphan: &orphan, stamp: &stamp };
        let (any, inline) = (removal.of_any_file(true), removal.of_inline_file());
        assert_eq!(inline.guards[..1], any.guards[..]);
        assert_eq!(inline.actions[..], any.actions[1..]);
        assert!(matches!(any.actions[0], Action::Get { .. }));
        assert_eq!(removal.of_any_file(false).actions.len(), any.actions.len() - 1);
    }

    #[test]
    fn only_an_inline_file_to_which_nothing_else_belongs_is_removed_as_one() {
        let (location, orphan) = (location(), key::orphan(7));
        let stamp = EntryMark::new(&location.key, Timestamp(5));
        let op =
            EntryRemoval { location: &location, orphan: &orphan, stamp: &stamp }.of_inline_file();
        let is_meant = |inode: &Inode| {
            let value = inode.encode();
            op.guards.iter().all(|guard| match *guard {
                Guard::BytesAre { offset, bytes, .. } => {
                    value[offset as usize..].starts_with(bytes)
                }
                _ => false,
            })
        };
        let file = Inode::new(FileKind::File, 8, 0o644, 0, 0, Timestamp(0));
        assert!(is_meant(&file));
        assert!(!is_meant(&Inode { flags: FLAG_RENAMED, ..file }));
        assert!(!is_meant(&Inode { flags: FLAG_ATTRIBUTES, ..file }));
        assert!(!is_meant(&Inode { layout: DataLayout::Chunked, ..file }));
        assert!(!is_meant(&Inode { layout: DataLayout::Moving, ..file }));
        assert!(!is_meant(&Inode { kind: FileKind::Directory, ..file }));
    }
}
