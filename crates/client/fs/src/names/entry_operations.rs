//! The operations that make and remove the entry of a file, each described once: it is sent as a
//! request, or completed early where its outcome is certain
//! ([`samite_client::Dataset::submit_change`]).

use samite_client::{Dataset, SubmittedEntry};
use samite_types::Epoch;
use samite_wire::op::{Action, Guard, Operation};

use crate::records::change_stamps::EntryMark;
use crate::records::inode::{DataLayout, FLAG_ATTRIBUTES, FLAG_RENAMED, INODE_LEN, Inode, at};
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
    /// Makes it if there is no such entry, with a long delegation as the last result if one is
    /// wanted.
    fn operation(&self, wants_delegation: bool) -> Operation<'e> {
        let key = &self.location.key;
        let mut op =
            Operation::put(self.location.partition, key, self.value).guard(Guard::Absent(key));
        op.actions.extend(self.stamp.actions(i64::from(self.is_directory)));
        if self.open_reference != 0 {
            op.actions.push(Action::Hold { key, token: self.open_reference });
        }
        if wants_delegation {
            op.actions.push(long_delegation(key));
        }
        op
    }

    /// As a request. Guard 0 fails where there is such an entry, guard 1 where its directory is
    /// being removed.
    pub fn request(&self, wants_delegation: bool) -> Operation<'e> {
        self.operation(wants_delegation).guard(Guard::Absent(self.tombstone))
    }

    /// Completes it early, if it is known that there is neither such an entry nor a tombstone.
    /// `None`: that is not so, or cannot be done that way now; nothing was done.
    pub fn complete_early(
        &self,
        dataset: &Dataset,
        wants_delegation: bool,
        generation: Epoch,
    ) -> Option<SubmittedEntry> {
        let record = (self.location.partition, self.location.key.as_slice());
        let operation = self.operation(wants_delegation);
        dataset.submit_new(record, self.tombstone, &operation, generation)
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
    fn is_file(&self) -> Guard<'e> {
        Guard::BytesAre { key: &self.location.key, offset: at::STATE, bytes: &[0] }
    }

    /// Takes the key away, and leaves a change stamp.
    #[inline]
    fn early(&self) -> Operation<'e> {
        let detach = Action::Detach { key: &self.location.key, to: self.orphan };
        let actions = std::iter::once(detach).chain(self.stamp.actions(0));
        Operation::new(self.location.partition, actions).guard(self.is_file())
    }

    /// As a request, whose results are for [`RemovedInode`](crate::sharing::open_references::RemovedInode),
    /// and which reveals the inode where it fails; it leaves a change stamp if it is to
    /// (`with_stamp`).
    pub fn request(&self, with_stamp: bool) -> Operation<'e> {
        let actions = take_away(&self.location.key, self.orphan);
        let mut op = Operation::new(self.location.partition, actions)
            .guard(self.is_file())
            .reveal(INODE_LEN as u32);
        op.actions.extend(self.stamp.actions(0).filter(|_| with_stamp));
        op
    }

    /// Completes it early, where only the record goes, or where the file has open references.
    /// `false`: that is not so, or cannot be done that way now; nothing was done.
    #[inline]
    pub fn complete_early(&self, dataset: &Dataset, generation: Epoch) -> bool {
        let record = (self.location.partition, self.location.key.as_slice());
        dataset.submit_change(record, &self.early(), generation, |value, _| is_alone(value))
    }
}

/// Whether nothing else belongs to the inode of the file in a record that begins with `value`.
#[inline]
fn is_alone(value: &[u8]) -> bool {
    Inode::decode(value).is_ok_and(|inode| {
        inode.layout == DataLayout::Inline
            && inode.flags & (FLAG_RENAMED | FLAG_ATTRIBUTES) == 0
            && !inode.is_directory()
            && value[at::STATE as usize] == 0
    })
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
    use crate::records::key;
    use crate::{FileKind, Timestamp};

    fn location() -> RecordLocation {
        RecordLocation { key: key::entry(1, b"name"), partition: PartitionId(3) }
    }

    #[test]
    fn a_request_to_make_an_entry_adds_the_guard_on_the_tombstone() {
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
        for wants_delegation in [false, true] {
            let early = entry.operation(wants_delegation);
            let request = entry.request(wants_delegation);
            assert_eq!(early.partition, PartitionId(3));
            assert_eq!(early.actions, request.actions);
            assert_eq!(&early.guards[..], [Guard::Absent(&location.key)]);
            assert_eq!(
                &request.guards[..],
                [Guard::Absent(&location.key), Guard::Absent(&tombstone)]
            );
            let delegates = matches!(early.actions.last(), Some(Action::Lease { .. }));
            assert_eq!(delegates, wants_delegation);
        }
        let directory = NewEntry { is_directory: true, open_reference: 0, ..entry };
        let holds = |action: &Action<'_>| matches!(action, Action::Hold { .. });
        assert!(entry.request(false).actions.iter().any(holds));
        assert!(!directory.request(false).actions.iter().any(holds));
        // The stamp counts it among the directories.
        assert_eq!(directory.request(false).actions.len(), 3);
    }

    #[test]
    fn a_request_to_remove_an_entry_also_reads_the_inode() {
        let (location, orphan) = (location(), key::orphan(7));
        let stamp = EntryMark::new(&location.key, Timestamp(5));
        let removal = EntryRemoval { location: &location, orphan: &orphan, stamp: &stamp };
        let request = removal.request(true);
        let early = removal.early();
        assert_eq!(early.guards, request.guards);
        assert_eq!(early.actions[..], request.actions[1..]);
        assert!(matches!(request.actions[0], Action::Get { .. }));
        assert_eq!(removal.request(false).actions.len(), request.actions.len() - 1);
    }

    #[test]
    fn only_an_inline_file_to_which_nothing_else_belongs_is_alone() {
        let file = Inode::new(FileKind::File, 8, 0o644, 0, 0, Timestamp(0));
        assert!(is_alone(&file.encode()));
        assert!(!is_alone(&Inode { flags: FLAG_RENAMED, ..file }.encode()));
        assert!(!is_alone(&Inode { flags: FLAG_ATTRIBUTES, ..file }.encode()));
        assert!(!is_alone(&Inode { layout: DataLayout::Chunked, ..file }.encode()));
        assert!(!is_alone(&Inode { layout: DataLayout::Moving, ..file }.encode()));
        assert!(!is_alone(&Inode { kind: FileKind::Directory, ..file }.encode()));
        assert!(!is_alone(b""));
    }
}
