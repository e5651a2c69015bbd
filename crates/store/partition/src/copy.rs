//! Copying a partition: records by key, and all state that stands beside them.

use std::ops::ControlFlow;

use samite_backend::{QuotaLimit, RecordMeta, ValuePiece, WriteSource};
use samite_types::{ClientId, Epoch, Error, ErrorKind, Result, Version};
use samite_wire::op::ValueData;
use samite_wire::peer::RecordCopy;
use samite_wire::{FieldDecoder, WireError};
use smallvec::SmallVec;

use crate::Partition;
use crate::fields::put_u64;
use crate::open_references::OpenReferences;
use crate::sessions::PartitionSessions;

/// Key of a record.
pub type RecordKey = Box<[u8]>;

/// The pieces of a record's value, in order.
pub type ValuePieces = SmallVec<[ValuePiece; 1]>;

impl Partition {
    /// Clients with open references here.
    pub fn holders(&self) -> impl Iterator<Item = ClientId> {
        self.open_references.clients()
    }

    /// Whether the keys of changed records are to be kept for [`Partition::take_touched`].
    pub fn set_notes_touched(&mut self, notes: bool) {
        if notes != self.touched.is_some() {
            self.touched = notes.then(Vec::new);
        }
    }

    /// Keys of the records that were changed since the last call.
    pub fn take_touched(&mut self) -> Vec<RecordKey> {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Visits key, version and length of the records behind `after` (empty: from the first), in key
    /// order, until `visit` breaks.
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
    pub fn read_record(&self, key: &[u8]) -> Result<Option<(RecordMeta, ValuePieces)>> {
        let mut pieces = ValuePieces::new();
        let meta = self.store.read(key, 0, u32::MAX, &mut |piece| pieces.push(piece))?;
        Ok(meta.map(|meta| (meta, pieces)))
    }

    /// Reads up to `len` bytes of a record from `offset` on, and gives their pieces to `out`, in
    /// order; a piece stays as it is. `None`: there is no such record.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn read_range(
        &self,
        key: &[u8],
        (offset, len): (u32, u32),
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        self.store.read(key, offset, len, out)
    }

    /// Makes a record the same as elsewhere, version included; or removes it. It may take as much
    /// of the target as `limit` says.
    ///
    /// # Errors
    /// `NoSpace`: there is no such record then. Others of the store: the partition has
    /// [failed](Partition::failed).
    pub fn install(&mut self, record: &RecordCopy<'_>, limit: QuotaLimit) -> Result<()> {
        let installed = self.replace(record, limit);
        if let Err(error) = &installed
            && error.kind() != ErrorKind::NoSpace
        {
            self.fail(error.kind());
        }
        installed
    }

    fn replace(&mut self, record: &RecordCopy<'_>, limit: QuotaLimit) -> Result<()> {
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
        put_u64(out, self.name_space_generation.get());
        self.sessions.export(out);
        self.open_references.export(out);
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
            let name_space_generation = Epoch(decoder.u64("name-space generation")?);
            let sessions = PartitionSessions::import(&mut decoder)?;
            let open_references = OpenReferences::import(&mut decoder)?;
            decoder.finish("state")?;
            Ok((version, name_space_generation, sessions, open_references))
        })();
        let (version, name_space_generation, sessions, open_references) = imported
            .map_err(|error: WireError| Error::new(ErrorKind::Corrupt, error.to_string()))?;
        (self.version, self.name_space_generation) = (version, name_space_generation);
        let before = std::mem::replace(&mut self.sessions, sessions);
        self.sessions.inherit(before);
        self.open_references = open_references;
        self.delegations = crate::RecordLeases::default();
        self.store.require_lease(name_space_generation);
        Ok(())
    }
}
