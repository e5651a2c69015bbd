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
use crate::records::store::{NO_LEASE, RecordLocation, fail, malformed};
use crate::{DirHandle, FileSystem};

/// Attempts at a directory in which others make entries and remove them again.
const SEALS_MAX: usize = 4;

/// A directory with tombstones of this process.
pub struct DirectoryTombstone {
    pub home: RecordLocation,
    pub ino: u64,
    pub token: u64,
}

impl FileSystem {
    /// Puts the tombstones of the directory `ino` that lives in `home`; fails when it has entries.
    pub(crate) fn set_tombstone(
        &self,
        home: &RecordLocation,
        ino: u64,
        epoch: Epoch,
    ) -> Result<DirectoryTombstone> {
        if self.store().dataset.has_lost() {
            // Its entries may be gone, and no remover has taken note of that.
            return Err(fail(ErrorKind::Lost));
        }
        for _ in 0..SEALS_MAX {
            if let Some(sealed) = self.seal_empty(home, ino, epoch)? {
                return Ok(sealed);
            }
            // The records of moves whose movers died have another name already.
            if DirHandle::new(self, ino, ino).has_entries()? {
                break;
            }
        }
        Err(fail(ErrorKind::NotEmpty))
    }

    /// `None`: it has records of entries.
    fn seal_empty(
        &self,
        home: &RecordLocation,
        ino: u64,
        epoch: Epoch,
    ) -> Result<Option<DirectoryTombstone>> {
        let token = self.token();
        let sealed = DirectoryTombstone { home: home.clone(), ino, token };
        self.claim(&sealed, epoch)?;
        let (entries, seal_key) = (key::entries(ino), key::tombstone(ino));
        let value = [&token.to_le_bytes()[..], &home.key].concat();
        let outcomes = self.store().run_everywhere(|partition| {
            Operation::new(
                partition,
                [Action::Put { key: &seal_key, data: ValueData::Inline(&value) }],
            )
            .guard(Guard::PrefixEmpty(&entries))
        });
        match outcomes {
            Ok(outcomes) if outcomes.iter().all(OwnedOutcome::is_done) => Ok(Some(sealed)),
            Ok(_) => {
                self.unseal(&sealed)?;
                Ok(None)
            }
            Err(error) => {
                // A client that meets the tombstones clears them, should this fail too.
                let _ = self.unseal(&sealed);
                Err(error)
            }
        }
    }

    /// Puts the removal token into the directory's inode.
    fn claim(&self, sealed: &DirectoryTombstone, epoch: Epoch) -> Result<()> {
        let (home, ino) = (&sealed.home, sealed.ino);
        let identity = identity(ino, DataLayout::Inline);
        let raw_token = sealed.token.to_le_bytes();
        loop {
            let op = Operation::new(
                home.partition,
                [Action::Write {
                    key: &home.key,
                    offset: at::REMOVAL,
                    data: ValueData::Inline(&raw_token),
                }],
            )
            .guard(Guard::BytesAre { key: &home.key, offset: at::INO, bytes: &identity })
            .guard(Guard::BytesAre { key: &home.key, offset: at::REMOVAL, bytes: &[0; 8] })
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
                self.store().await_move(home)?;
                return Err(fail(ErrorKind::StaleLease));
            }
            self.outlast_removal(home, ino, found.removal)?;
        }
    }

    /// Waits until the removal with `token` has ended; stops it when its owner seems dead.
    pub(crate) fn outlast_removal(
        &self,
        home: &RecordLocation,
        ino: u64,
        token: u64,
    ) -> Result<()> {
        if self.store().outlast(home)?.is_some() {
            self.unseal(&DirectoryTombstone { home: home.clone(), ino, token })?;
        }
        Ok(())
    }

    /// Opens the directory again.
    pub(crate) fn unseal(&self, sealed: &DirectoryTombstone) -> Result<()> {
        let token = sealed.token.to_le_bytes();
        let home = &sealed.home;
        let clear = Operation::new(
            home.partition,
            [Action::Write {
                key: &home.key,
                offset: at::REMOVAL,
                data: ValueData::Inline(&[0; 8]),
            }],
        )
        .guard(Guard::BytesAre { key: &home.key, offset: at::REMOVAL, bytes: &token });
        self.store().run(clear)?;
        self.drop_seals(sealed.ino, sealed.token)
    }

    /// Removes the tombstones with this token.
    fn drop_seals(&self, ino: u64, token: u64) -> Result<()> {
        let (seal_key, token) = (key::tombstone(ino), token.to_le_bytes());
        self.store()
            .run_everywhere(|partition| {
                Operation::new(partition, [Action::Delete { key: &seal_key }])
                    .guard(Guard::BytesAre { key: &seal_key, offset: 0, bytes: &token })
            })
            .map(drop)
    }

    /// After a directory with tombstones is gone: raises the name-space generation and removes its
    /// tombstones and change stamps.
    pub(crate) fn forget_directory(&self, sealed: &DirectoryTombstone) -> Result<()> {
        let (seal_key, mark_key) = (key::tombstone(sealed.ino), key::change_stamp(sealed.ino));
        self.raise_leases(&sealed.home.key, || {
            vec![Action::Delete { key: &seal_key }, Action::Delete { key: &mark_key }]
        })
    }

    /// Met the tombstone of directory `ino` in `partition`: waits until it is gone. Then the caller
    /// resolves its path again.
    pub(crate) fn outlast_tombstone(&self, ino: u64, partition: PartitionId) -> Result<()> {
        let seal = RecordLocation { key: key::tombstone(ino), partition };
        let Some(value) = self.store().outlast(&seal)? else { return Ok(()) };
        let (token, home_key) = value.split_first_chunk::<8>().ok_or_else(malformed)?;
        let token = u64::from_le_bytes(*token);
        let sealed = DirectoryTombstone {
            home: self.store().location(Key::from_slice(home_key)),
            ino,
            token,
        };
        self.inner.cache.clear();
        match self.store().read(&sealed.home, NO_LEASE)? {
            Some(node) if node.inode.ino == ino => self.unseal(&sealed),
            // Removed, but its remover died before it could raise the name-space generation: while
            // the tombstones stand, nobody can make anything in a directory that is no more.
            _ => self.forget_directory(&sealed),
        }
    }
}
