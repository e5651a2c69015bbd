//! Copying a partition: records by key, and all state that stands beside them.

use std::ops::ControlFlow;

use samite_backend::{QuotaLimit, RecordMeta, ValuePiece, WriteSource};
use samite_types::{ClientId, Epoch, Error, ErrorKind, Result, Seq, Term, Version};
use samite_wire::op::ValueData;
use samite_wire::peer::RecordCopy;
use samite_wire::{FieldDecoder, WireError};
use smallvec::SmallVec;

use crate::mirror::ChangeFunds;
use crate::open_references::OpenReferences;
use crate::sessions::PartitionSessions;
use crate::{Key, Partition};

/// The pieces of a value.
pub(crate) type Pieces = SmallVec<[ValuePiece; 1]>;

/// The counters that tell whether something has happened to a partition that its copies must know
/// of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyMarks {
    /// Grows with each change of records.
    pub(crate) version: Version,
    /// Grows with each refusal that is remembered.
    pub(crate) refusals: u64,
    /// Grows with each open reference that is taken or ended.
    pub(crate) holds: u64,
}

impl Partition {
    pub(crate) const fn stamps(&self) -> CopyMarks {
        CopyMarks { version: self.version, refusals: self.refusals, holds: self.holds.changes() }
    }

    /// A primary of `term` makes the versions from here on.
    pub(crate) fn begin_term(&mut self, term: Term) {
        self.version = self.version.max(Version::before(term));
    }

    /// Whether it applies what another has admitted. Its records are not published then.
    pub(crate) const fn set_follows(&mut self, follows: bool) {
        self.follows = follows;
        self.shows = !follows;
    }

    /// Where the space of the changes from here on comes from, unless another member has decided on them.
    pub(crate) const fn set_funds(&mut self, funds: ChangeFunds) {
        self.funds = funds;
    }

    /// The most that the last change takes of another member, in bytes; 0 when nobody has asked.
    pub(crate) const fn take_charge(&mut self) -> u64 {
        std::mem::replace(&mut self.charge, 0)
    }

    /// The most that a change would have taken which other members are not known to have room for.
    pub(crate) const fn take_short(&mut self) -> Option<u64> {
        self.short.take()
    }

    /// Keeps space for changes that another member decides on ([`samite_backend::RecordStore::keep`]).
    pub(crate) fn keep(&mut self, least: u64, wanted: u64) -> u64 {
        self.store.keep(least, wanted)
    }

    /// Whether the target has something left for changes that make room.
    pub(crate) fn has_reserve(&self) -> bool {
        self.store.has_reserve()
    }

    /// Whether the keys of changed records are to be kept for [`Partition::take_touched`].
    pub(crate) fn set_notes_touched(&mut self, notes: bool) {
        if notes != self.touched.is_some() {
            self.touched = notes.then(Vec::new);
        }
    }

    /// Keys of the records that were changed since the last call.
    pub(crate) fn take_touched(&mut self) -> Vec<Key> {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Remembers no results, so that nothing is done once only.
    pub(crate) const fn set_forgets(&mut self, forgets: bool) {
        self.forgets = forgets;
    }

    /// An operation that may have been sent before is refused for good.
    pub(crate) fn refuse(
        &mut self,
        client: ClientId,
        numbers: (Seq, Seq),
        reason: (ErrorKind, u16),
    ) {
        self.refusals += 1;
        self.remember(client, numbers, Err(reason));
    }

    /// Clients with open references here.
    pub fn holders(&self) -> impl Iterator<Item = ClientId> {
        self.holds.clients()
    }

    /// Visits key, version and length of the records behind `after` (empty: from the first), in key order, until `visit` breaks.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn visit_records(
        &self,
        after: &[u8],
        visit: &mut dyn FnMut(&[u8], RecordMeta) -> ControlFlow<()>,
    ) -> Result<()> {
        self.store.scan(&[], after, false, 0, &mut |record| visit(record.key, record.meta))
    }

    /// A record as it is now; its pieces stay so. `None`: there is none.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn read_record(&self, key: &[u8]) -> Result<Option<(RecordMeta, Pieces)>> {
        let mut pieces = Pieces::new();
        let meta = self.store.read(key, 0, u32::MAX, &mut |piece| pieces.push(piece))?;
        Ok(meta.map(|meta| (meta, pieces)))
    }

    /// Makes a record the same as elsewhere, version included; or removes it. It may take as much
    /// of the target as `limit` says.
    ///
    /// # Errors
    /// `NoSpace`: there is no such record then.
    pub(crate) fn install(&mut self, record: &RecordCopy<'_>, limit: QuotaLimit) -> Result<()> {
        if let Some(touched) = &mut self.touched {
            touched.push(record.key.into());
        }
        let Some(pieces) = &record.value else {
            return self.store.delete(record.key).map(|_| ());
        };
        let version = record.version;
        // The old value is given back first: no client is served from it.
        self.store.delete(record.key)?;
        self.store.set_limit(limit);
        if let [ValueData::Inline(bytes)] = pieces.as_slice() {
            return self.store.put(record.key, WriteSource::Bytes(bytes), version).map(|_| ());
        }
        let len: usize = pieces.iter().map(ValueData::len).sum();
        let whole = WriteSource::Zeros(u32::try_from(len).unwrap_or(u32::MAX));
        let result = self.store.put(record.key, whole, version).and_then(|_| {
            let mut at = 0;
            for piece in pieces {
                if let ValueData::Inline(bytes) = piece {
                    self.store.set_limit(limit);
                    self.store.write(record.key, at, WriteSource::Bytes(bytes), version)?;
                }
                at += piece.len() as u32;
            }
            Ok(())
        });
        if result.is_err() {
            // Half of a record must not be taken for the whole.
            self.store.delete(record.key)?;
        }
        result
    }

    /// Appends all that it is beside its records: version, name-space generation, sessions, open
    /// references. Two copies of one partition give the same bytes.
    pub fn export_state(&self, out: &mut Vec<u8>) {
        put_u64(out, self.version.get());
        put_u64(out, self.lease_epoch.get());
        self.sessions.export(out);
        self.holds.export(out);
    }

    /// Takes over the output of [`Partition::export_state`], beside the records as they are.
    /// Delegations end.
    ///
    /// # Errors
    /// `Corrupt`: it wrote something else; nothing is changed.
    pub fn import_state(&mut self, raw: &[u8]) -> Result<()> {
        let imported = (|| {
            let mut decoder = FieldDecoder::new(raw);
            let version = Version(decoder.u64("version")?);
            let lease_epoch = Epoch(decoder.u64("lease epoch")?);
            let sessions = PartitionSessions::import(&mut decoder)?;
            let holds = OpenReferences::import(&mut decoder)?;
            decoder.finish("state")?;
            Ok((version, lease_epoch, sessions, holds))
        })();
        let (version, lease_epoch, sessions, holds) = imported
            .map_err(|error: WireError| Error::new(ErrorKind::Corrupt, error.to_string()))?;
        (self.version, self.lease_epoch) = (version, lease_epoch);
        let before = std::mem::replace(&mut self.sessions, sessions);
        self.sessions.inherit(before);
        self.holds = holds;
        self.leases = crate::RecordLeases::default();
        self.store.require_lease(lease_epoch);
        Ok(())
    }
}

pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Counts here are far below the range of a `u32`.
pub(crate) fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_le_bytes());
}

/// A count of at most `max`.
pub(crate) fn bounded(
    decoder: &mut FieldDecoder<'_>,
    max: usize,
    field: &'static str,
) -> Result<usize, WireError> {
    let count = decoder.u32(field)? as usize;
    if count > max { Err(WireError::OverLimit(field)) } else { Ok(count) }
}
