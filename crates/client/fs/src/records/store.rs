//! Records, as the file system uses them.

use std::ops::Range;
use std::sync::Arc;

use samite_client::{
    Client, ClientOperation, CompletedChange, Dataset, GuardedRecord, HEAD_LEN, OwnedEntry,
    OwnedOutcome, OwnedResult,
};
use samite_types::{Epoch, Error, ErrorKind, PartitionId, Result, Version};
use samite_wire::limits::OPERATIONS_MAX;
use samite_wire::op::{Action, Guard, List, Operation};

use crate::Timestamp;
use crate::records::inode::{DataLayout, INODE_LEN, Inode, at, identity};
use crate::records::key::{self, Key};
use crate::records::release_queue::ReleaseQueue;

/// Name-space generation of an operation that relies on no cached directory.
pub const ANY_NAME_SPACE: Epoch = Epoch(u64::MAX);

/// Bytes that a look-up reads: the inode, and the target of most symbolic links.
pub const LOOKUP_LEN: usize = 512;

/// The record in which an inode lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    pub key: Key,
    pub partition: PartitionId,
}

/// The result of a look-up.
#[derive(Clone, Debug)]
pub struct FoundInode {
    /// The record that was asked for, or the one that it named ([`DataLayout::Elsewhere`]).
    pub location: RecordLocation,
    pub inode: Inode,
    /// Bytes after the inode.
    pub data_len: u64,
    pub version: Version,
    /// Of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Token of the open reference that the look-up made, 0 for none.
    pub open_reference: u64,
}

impl FoundInode {
    /// Whether its data are in chunks, but for a tail.
    pub const fn is_chunked(&self) -> bool {
        matches!(self.inode.layout, DataLayout::Chunked) || self.has_tail()
    }

    /// Whether what was appended to it lies after the inode.
    pub const fn has_tail(&self) -> bool {
        matches!(self.inode.layout, DataLayout::Tailed | DataLayout::Spilling)
    }

    /// Where its tail is in the file; of a file without one, nothing at the end of what the inode knows.
    pub fn tail(&self) -> Range<u64> {
        let start = self.inode.size;
        start..start.saturating_add(if self.has_tail() { self.data_len } else { 0 })
    }

    /// Whether a location record says where it goes: not for a record that only points to an inode
    /// that stays where it is.
    pub const fn has_location(&self) -> bool {
        !matches!(self.inode.layout, DataLayout::Elsewhere)
    }
}

/// The records of one file system.
#[derive(Clone)]
pub struct RecordStoreView {
    pub client: Client,
    pub dataset: Dataset,
    /// Open references that are to end.
    pub releases: Arc<ReleaseQueue>,
}

impl RecordStoreView {
    /// The record with this key, in the partition of its hash.
    pub fn location(&self, key: Key) -> RecordLocation {
        let partition = self.dataset.partition_of(&key);
        RecordLocation { key, partition }
    }

    pub fn entry(&self, parent: u64, name: &[u8]) -> RecordLocation {
        self.location(key::entry(parent, name))
    }

    pub fn own(&self, ino: u64) -> RecordLocation {
        self.location(key::own(ino))
    }

    pub fn chunk_len(&self) -> u64 {
        u64::from(self.dataset.spec().chunk_len)
    }

    /// Carries out operations in one request per node; see [`RecordStoreView::run`].
    pub fn run_all(&self, ops: &mut [ClientOperation<'_>]) -> Result<Vec<OwnedOutcome>> {
        let deadline = self.client.deadline();
        let mut outcomes = Vec::with_capacity(ops.len());
        for part in ops.chunks_mut(OPERATIONS_MAX) {
            for outcome in self.dataset.execute(part, deadline)? {
                outcomes.push(expected(outcome)?);
            }
        }
        Ok(outcomes)
    }

    /// Carries out operations in one request per node; every failure stays an outcome.
    pub fn run_each(&self, ops: &mut [ClientOperation<'_>]) -> Result<Vec<OwnedOutcome>> {
        let deadline = self.client.deadline();
        let mut outcomes = Vec::with_capacity(ops.len());
        for part in ops.chunks_mut(OPERATIONS_MAX) {
            outcomes.extend(self.dataset.execute(part, deadline)?);
        }
        Ok(outcomes)
    }

    /// Carries out a change without asking, if that is possible now
    /// ([`samite_client::Dataset::try_complete`]).
    pub fn try_complete(&self, op: &mut ClientOperation<'_>) -> Option<CompletedChange> {
        let completed = self.dataset.try_complete(op)?;
        // Nothing is asked for that they could travel with.
        self.send_releases();
        Some(completed)
    }

    /// Carries out an operation in every partition.
    pub fn run_everywhere<'k>(
        &self,
        build: impl Fn(PartitionId) -> Operation<'k>,
    ) -> Result<Vec<OwnedOutcome>> {
        let mut ops: Vec<ClientOperation<'k>> =
            (0..self.dataset.partitions()).map(|index| build(PartitionId(index)).into()).collect();
        self.run_all(&mut ops)
    }

    /// The inode in the record `location` itself.
    pub fn read(&self, location: &RecordLocation, name_space: Epoch) -> Result<Option<FoundInode>> {
        if let Some(node) = self.shown(location, name_space)? {
            return Ok(Some(node));
        }
        let mut buf = [0; LOOKUP_LEN];
        let op = Operation::new(
            location.partition,
            [Action::Get { key: &location.key, offset: 0, len: LOOKUP_LEN as u32 }],
        );
        let outcome =
            self.run(ClientOperation::new(op).into_dest(&mut buf).under_lease(name_space));
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost)
            && location.key == key::own(key::ROOT_INO)
        {
            // The rest is found below it. It cannot be changed.
            let value = Inode::root(self.dataset.spec().semantics.into(), Timestamp(0)).encode();
            return self.node(location.clone(), Version(0), value.len() as u32, &value).map(Some);
        }
        match outcome? {
            OwnedOutcome::Done(results) => {
                let (version, total_len, len) = only(&results)?.value()?;
                self.node(location.clone(), version, total_len, &buf[..len]).map(Some)
            }
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            OwnedOutcome::Failed(failure) => Err(failure.into_error("look up")),
        }
    }

    /// The inode in `location`, if its node publishes it to clients on its host, and all that a
    /// look-up needs.
    fn shown(&self, location: &RecordLocation, name_space: Epoch) -> Result<Option<FoundInode>> {
        let mut start = [0; HEAD_LEN];
        let Some(head) =
            self.dataset.head(location.partition, &location.key, name_space, &mut start)
        else {
            return Ok(None);
        };
        let start = &start[..head.len];
        // The target of a symbolic link lies behind the inode.
        let is_link = Inode::decode(start)?.kind == crate::FileKind::Symlink;
        if is_link && head.len < head.total_len as usize {
            return Ok(None);
        }
        self.node(location.clone(), head.version, head.total_len, start).map(Some)
    }

    /// The inode in a record that was read from its start, and the bytes that were read.
    pub fn found(
        &self,
        location: &RecordLocation,
        outcome: OwnedOutcome,
    ) -> Result<Option<(FoundInode, Vec<u8>)>> {
        match outcome {
            OwnedOutcome::Done(results) => match results.into_iter().next() {
                Some(OwnedResult::Value { version, total_len, data, .. }) => {
                    let inode = inode_in(location, &data)?;
                    let data_len = u64::from(total_len).saturating_sub(INODE_LEN as u64);
                    let location = location.clone();
                    Ok(Some((
                        FoundInode {
                            location,
                            inode,
                            data_len,
                            version,
                            target: None,
                            open_reference: 0,
                        },
                        data,
                    )))
                }
                _ => Err(malformed()),
            },
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            OwnedOutcome::Failed(failure) => Err(failure.into_error("look up")),
        }
    }

    /// The inode that a failed guard revealed of `location`.
    pub fn node_of_reveal(
        &self,
        location: &RecordLocation,
        revealed: &GuardedRecord,
    ) -> Result<FoundInode> {
        self.node(location.clone(), revealed.version, revealed.total_len, &revealed.bytes)
    }

    pub(crate) fn node(
        &self,
        location: RecordLocation,
        version: Version,
        total_len: u32,
        start: &[u8],
    ) -> Result<FoundInode> {
        let inode = inode_in(&location, start)?;
        let mut node = FoundInode {
            location,
            inode,
            data_len: u64::from(total_len).saturating_sub(INODE_LEN as u64),
            version,
            target: None,
            open_reference: 0,
        };
        if inode.kind == crate::FileKind::Symlink && inode.layout == DataLayout::Inline {
            node.target = Some(if start.len() == total_len as usize {
                start[INODE_LEN..].to_vec()
            } else {
                self.value(&node.location)?
                    .map(|(_, value)| value)
                    .unwrap_or_default()
                    .get(INODE_LEN..)
                    .unwrap_or_default()
                    .to_vec()
            });
        }
        Ok(node)
    }

    /// The whole value of a record.
    pub fn value(&self, location: &RecordLocation) -> Result<Option<(Version, Vec<u8>)>> {
        match self.run(Operation::get(location.partition, &location.key))? {
            OwnedOutcome::Done(results) => match results.into_iter().next() {
                Some(OwnedResult::Value { version, data, .. }) => Ok(Some((version, data))),
                _ => Err(malformed()),
            },
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            OwnedOutcome::Failed(failure) => Err(failure.into_error("read record")),
        }
    }
}

/// The inode at the start of the record in `location`.
fn inode_in(location: &RecordLocation, value: &[u8]) -> Result<Inode> {
    let mut inode = Inode::decode(value)?;
    if key::is_orphan(&location.key) {
        inode.nlink = 0;
    }
    Ok(inode)
}

/// Keeps failures that callers handle, and makes errors of the others.
pub fn expected(outcome: OwnedOutcome) -> Result<OwnedOutcome> {
    match outcome {
        OwnedOutcome::Failed(failure)
            if !matches!(
                failure.kind,
                ErrorKind::Conflict | ErrorKind::NotFound | ErrorKind::TooLarge
            ) =>
        {
            Err(failure.into_error("a record of the file system"))
        }
        outcome => Ok(outcome),
    }
}

/// The guard that `location` is where inode `ino` lives with its data in `layout`. `identity` is a
/// buffer for its bytes.
pub fn lives_in<'k>(location: &'k RecordLocation, identity: &'k [u8; 9]) -> Guard<'k> {
    Guard::BytesAre { key: &location.key, offset: at::INO, bytes: identity }
}

/// Bytes for [`lives_in`].
pub fn identity_of(node: &FoundInode) -> [u8; 9] {
    identity(node.inode.ino, node.inode.layout)
}

/// Result of the only, or first, action.
pub fn only(results: &List<OwnedResult, 2>) -> Result<&OwnedResult> {
    results.first().ok_or_else(malformed)
}

/// Bytes that the first action, a `Get`, returned.
pub fn first_value(results: List<OwnedResult, 2>) -> Result<Vec<u8>> {
    match results.into_iter().next() {
        Some(OwnedResult::Value { data, .. }) => Ok(data),
        _ => Err(malformed()),
    }
}

/// Entries of a listing, and whether there are no more.
pub fn listing(outcome: OwnedOutcome) -> Result<(Vec<OwnedEntry>, bool)> {
    match outcome.into_results("list")?.into_iter().next() {
        Some(OwnedResult::Listing { entries, complete }) => Ok((entries.to_vec(), complete)),
        _ => Err(malformed()),
    }
}

pub fn malformed() -> Error {
    Error::new(ErrorKind::Corrupt, "reply: not what was asked for")
}

/// An error with fixed words.
pub const fn words(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "no such file or directory",
        ErrorKind::Exists => "it exists",
        ErrorKind::Denied => "permission denied",
        ErrorKind::NotOwner => "only its owner may do this",
        ErrorKind::IsDirectory => "it is a directory",
        ErrorKind::NotDirectory => "not a directory",
        ErrorKind::NotEmpty => "the directory is not empty",
        ErrorKind::Loop => "too many symbolic links",
        ErrorKind::NameTooLong => "name too long",
        ErrorKind::BadDescriptor => "not open for this",
        ErrorKind::FileTooLarge => "file too large",
        ErrorKind::StaleHandle => "the file exists no more",
        ErrorKind::StaleLease => "cached directories are out of date",
        ErrorKind::CrossDevice => "it leads out of the store",
        ErrorKind::InUse => "in use",
        ErrorKind::NoAttribute => "no such attribute",
        ErrorKind::Unsupported => "not supported",
        ErrorKind::Busy => "others keep changing it",
        ErrorKind::NoSpace => "no space left in the store",
        ErrorKind::Invalid => "invalid",
        other => other.words(),
    }
}

/// An error of `kind` with its usual words.
pub fn fail(kind: ErrorKind) -> Error {
    Error::new(kind, words(kind))
}
