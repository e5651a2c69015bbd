//! Tombstones: a directory that is being removed, or replaced by a rename, takes no new entries.
//!
//! The removal token in the directory's inode names its remover. A tombstone with that token goes
//! into every partition, by an operation that fails where the directory has entries. Making an
//! entry carries the guard that there is no tombstone, in the entry's own partition: one operation
//! still. The removal itself is guarded by the token, so that a client that finds an abandoned
//! tombstone can stop it by clearing the token first.

use samite_client::{ClientOperation, OwnedOutcome};
use samite_types::{Epoch, ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::records::inode::{DataLayout, INODE_LEN, Inode, at, identity};
use crate::records::key::{self, Key};
use crate::records::store::{ANY_NAME_SPACE, RecordLocation, fail, malformed};
use crate::{DirHandle, FileSystem};

/// Attempts at a directory in which others make entries and remove them again.
const TOMBSTONE_TRIES_MAX: usize = 4;

/// A directory with tombstones of this process.
pub struct DirectoryTombstone {
    pub location: RecordLocation,
    pub ino: u64,
    pub token: u64,
}

impl FileSystem {
    /// Puts the tombstones of the directory `ino` that lives in `location`; fails when it has
    /// entries.
    pub(crate) fn set_tombstone(
        &self,
        location: &RecordLocation,
        ino: u64,
        epoch: Epoch,
    ) -> Result<DirectoryTombstone> {
        if self.store().dataset.has_lost() {
            // Its entries may be gone, and no remover has taken note of that.
            return Err(fail(ErrorKind::Lost));
        }
        for _ in 0..TOMBSTONE_TRIES_MAX {
            if let Some(tombstone) = self.try_tombstone(location, ino, epoch)? {
                return Ok(tombstone);
            }
            // The records of moves whose movers died have another name already.
            if DirHandle::new(self, ino, ino).has_entries()? {
                break;
            }
        }
        Err(fail(ErrorKind::NotEmpty))
    }

    /// `None`: it has records of entries.
    fn try_tombstone(
        &self,
        location: &RecordLocation,
        ino: u64,
        epoch: Epoch,
    ) -> Result<Option<DirectoryTombstone>> {
        let token = self.token();
        let tombstone = DirectoryTombstone { location: location.clone(), ino, token };
        self.set_removal_token(&tombstone, epoch)?;
        let (entries, tombstone_key) = (key::entries(ino), key::tombstone(ino));
        let value = [&token.to_le_bytes()[..], &location.key].concat();
        let outcomes = self.store().run_everywhere(|partition| {
            Operation::new(
                partition,
                [Action::Put { key: &tombstone_key, data: ValueData::Inline(&value) }],
            )
            .guard(Guard::PrefixEmpty(&entries))
        });
        match outcomes {
            Ok(outcomes) if outcomes.iter().all(OwnedOutcome::is_done) => Ok(Some(tombstone)),
            Ok(_) => {
                self.withdraw_tombstone(&tombstone)?;
                Ok(None)
            }
            Err(error) => {
                // A client that meets the tombstones clears them, should this fail too.
                let _ = self.withdraw_tombstone(&tombstone);
                Err(error)
            }
        }
    }

    /// Puts the removal token into the directory's inode.
    fn set_removal_token(&self, tombstone: &DirectoryTombstone, epoch: Epoch) -> Result<()> {
        let (location, ino) = (&tombstone.location, tombstone.ino);
        let identity = identity(ino, DataLayout::Inline);
        let raw_token = tombstone.token.to_le_bytes();
        loop {
            let op = Operation::new(
                location.partition,
                [Action::Write {
                    key: &location.key,
                    offset: at::REMOVAL,
                    data: ValueData::Inline(&raw_token),
                }],
            )
            .guard(Guard::BytesAre { key: &location.key, offset: at::INO, bytes: &identity })
            .guard(Guard::BytesAre { key: &location.key, offset: at::REMOVAL, bytes: &[0; 8] })
            .reveal(INODE_LEN as u32);
            let failure = match self.store().run(ClientOperation::new(op).under_lease(epoch))? {
                OwnedOutcome::Done(_) => return Ok(()),
                OwnedOutcome::Failed(failure) => failure,
            };
            let Some(found) = failure.current else { return Err(fail(ErrorKind::NotFound)) };
            let found = Inode::decode(&found.bytes)?;
            if found.ino != ino {
                return Err(fail(ErrorKind::NotFound));
            }
            if found.layout == DataLayout::Moving {
                self.store().await_move(location)?;
                return Err(fail(ErrorKind::StaleLease));
            }
            self.outlast_removal(location, ino, found.removal)?;
        }
    }

    /// Waits until the removal with `token` has ended; stops it when its owner seems dead.
    pub(crate) fn outlast_removal(
        &self,
        location: &RecordLocation,
        ino: u64,
        token: u64,
    ) -> Result<()> {
        if self.store().outlast(location)?.is_some() {
            self.withdraw_tombstone(&DirectoryTombstone {
                location: location.clone(),
                ino,
                token,
            })?;
        }
        Ok(())
    }

    /// Opens the directory again.
    pub(crate) fn withdraw_tombstone(&self, tombstone: &DirectoryTombstone) -> Result<()> {
        let token = tombstone.token.to_le_bytes();
        let location = &tombstone.location;
        let clear = Operation::new(
            location.partition,
            [Action::Write {
                key: &location.key,
                offset: at::REMOVAL,
                data: ValueData::Inline(&[0; 8]),
            }],
        )
        .guard(Guard::BytesAre { key: &location.key, offset: at::REMOVAL, bytes: &token });
        self.store().run(clear)?;
        self.drop_tombstones(tombstone.ino, tombstone.token)
    }

    /// Removes the tombstones with this token.
    fn drop_tombstones(&self, ino: u64, token: u64) -> Result<()> {
        let (tombstone_key, token) = (key::tombstone(ino), token.to_le_bytes());
        self.store()
            .run_everywhere(|partition| {
                Operation::new(partition, [Action::Delete { key: &tombstone_key }])
                    .guard(Guard::BytesAre { key: &tombstone_key, offset: 0, bytes: &token })
            })
            .map(drop)
    }

    /// After a directory with tombstones is gone: raises the name-space generation and removes its
    /// tombstones and change stamps.
    pub(crate) fn forget_directory(&self, tombstone: &DirectoryTombstone) -> Result<()> {
        let (tombstone_key, stamp_key) =
            (key::tombstone(tombstone.ino), key::change_stamp(tombstone.ino));
        self.raise_generation(&tombstone.location.key, || {
            vec![Action::Delete { key: &tombstone_key }, Action::Delete { key: &stamp_key }]
        })
    }

    /// Met the tombstone of directory `ino` in `partition`: waits until it is gone. Then the caller
    /// resolves its path again.
    pub(crate) fn outlast_tombstone(&self, ino: u64, partition: PartitionId) -> Result<()> {
        let there = RecordLocation { key: key::tombstone(ino), partition };
        let Some(value) = self.store().outlast(&there)? else { return Ok(()) };
        let (token, location_key) = value.split_first_chunk::<8>().ok_or_else(malformed)?;
        let token = u64::from_le_bytes(*token);
        let tombstone = DirectoryTombstone {
            location: self.store().location(Key::from_slice(location_key)),
            ino,
            token,
        };
        self.inner.cache.clear();
        match self.store().read(&tombstone.location, ANY_NAME_SPACE)? {
            Some(node) if node.inode.ino == ino => self.withdraw_tombstone(&tombstone),
            // Removed, but its remover died before it could raise the name-space generation: while
            // the tombstones stand, nobody can make anything in a directory that is no more.
            _ => self.forget_directory(&tombstone),
        }
    }
}
