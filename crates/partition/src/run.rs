//! Carrying out the actions of an operation.

use std::ops::ControlFlow;

use samite_backend::{RecordStore, Source};
use samite_types::{Epoch, ErrorKind, Version};
use samite_wire::op::{Action, ReplyEncoder};
use smallvec::SmallVec;

use crate::limits::{DELETE_PREFIX_MAX, LISTING_LEN_MAX, REVEAL_LEN_MAX};
use crate::outcome::ActionOutput;
use crate::plan::Step;

/// An action that cannot be done says why without words: an absent record is an everyday answer.
type Result<T> = std::result::Result<T, ErrorKind>;

/// What actions work on.
pub(crate) struct Run<'a> {
    pub(crate) store: &'a mut dyn RecordStore,
    pub(crate) lease_epoch: &'a mut Epoch,
    /// The version that changed records get.
    pub(crate) version: Version,
    /// Bytes that listings may still take in the reply's body.
    pub(crate) body_left: usize,
}

impl Run<'_> {
    /// Carries out a mutation for which `step` was planned.
    pub(crate) fn change(&mut self, action: &Action<'_>, step: Step<'_>) -> Result<ActionOutput> {
        let source = step.source.unwrap_or(Source::Zeros(0));
        let version = self.version;
        let (offset, changed) = match action {
            Action::Put { key, .. } => (0, self.store.put(key, source, version)?),
            Action::Write { key, offset, .. } => {
                (*offset, self.store.write(key, *offset, source, version)?)
            }
            Action::Append { key, .. } => {
                (step.offset, self.store.write(key, step.offset, source, version)?)
            }
            Action::Truncate { key, len } => {
                let changed = self.store.truncate(key, *len, version)?;
                (*len, changed.ok_or(ErrorKind::NotFound)?)
            }
            Action::Delete { key } => {
                return Ok(ActionOutput::Deleted { existed: self.store.delete(key)? });
            }
            Action::DeletePrefix { prefix, limit } => {
                return self.delete_prefix(prefix, *limit).map(ActionOutput::Number);
            }
            Action::Add { key, offset, delta } => {
                let (before, _) = self.number(key, *offset)?;
                self.set_number(key, *offset, before.wrapping_add(*delta))?;
                return Ok(ActionOutput::Number(before));
            }
            Action::Max { key, offset, value } => {
                let (before, is_whole) = self.number(key, *offset)?;
                if *value > before || !is_whole {
                    self.set_number(key, *offset, before.max(*value))?;
                }
                return Ok(ActionOutput::Number(before));
            }
            Action::RaiseLease { epoch } => {
                let before = *self.lease_epoch;
                *self.lease_epoch = before.max(*epoch);
                return Ok(ActionOutput::Number(before.get()));
            }
            Action::Get { .. } | Action::List { .. } => return self.ask(action),
        };
        let (total_len, created) = (changed.len, changed.created);
        Ok(ActionOutput::Written { version, offset, total_len, created })
    }

    /// Answers a `Get` or `List`.
    pub(crate) fn ask(&mut self, action: &Action<'_>) -> Result<ActionOutput> {
        match action {
            Action::Get { key, offset, len } => {
                let mut pieces = SmallVec::new();
                let found = self.store.read(key, *offset, *len, &mut |piece| pieces.push(piece))?;
                let meta = found.ok_or(ErrorKind::NotFound)?;
                Ok(ActionOutput::Value { version: meta.version, total_len: meta.len, pieces })
            }
            Action::List { prefix, after, limit, reverse, value_len_max } => {
                let value_len = (*value_len_max).min(REVEAL_LEN_MAX);
                self.list(prefix, after, *limit, *reverse, value_len)
            }
            _ => Err(ErrorKind::Internal),
        }
    }

    fn list(
        &mut self,
        prefix: &[u8],
        after: &[u8],
        limit: u32,
        reverse: bool,
        value_len: u32,
    ) -> Result<ActionOutput> {
        let len_max = self.body_left.min(LISTING_LEN_MAX);
        let (mut complete, mut count, mut entries) = (true, 0, Vec::new());
        self.store.scan(prefix, after, reverse, value_len, &mut |record| {
            let end = entries.len();
            if count < limit {
                let meta = record.meta;
                ReplyEncoder::encode_list_entry(
                    &mut entries,
                    record.key,
                    meta.version,
                    meta.len,
                    record.value,
                );
            }
            if count == limit || entries.len() > len_max {
                entries.truncate(end);
                complete = false;
                return ControlFlow::Break(());
            }
            count += 1;
            ControlFlow::Continue(())
        })?;
        self.body_left -= entries.len();
        Ok(ActionOutput::Listing { complete, count, entries })
    }

    fn delete_prefix(&mut self, prefix: &[u8], limit: u32) -> Result<u64> {
        let limit = limit.min(DELETE_PREFIX_MAX) as usize;
        let mut keys = Vec::new();
        self.store.scan(prefix, &[], false, 0, &mut |record| {
            if keys.len() == limit {
                return ControlFlow::Break(());
            }
            keys.push(Box::<[u8]>::from(record.key));
            ControlFlow::Continue(())
        })?;
        for key in &keys {
            self.store.delete(key)?;
        }
        Ok(keys.len() as u64)
    }

    /// The little-endian number at `offset`, where what is not there counts as zeros, and whether all of it is there.
    fn number(&self, key: &[u8], offset: u32) -> Result<(u64, bool)> {
        let mut raw = [0; size_of::<u64>()];
        let mut at = 0;
        self.store.read(key, offset, raw.len() as u32, &mut |piece| {
            if let Some(bytes) = piece.as_bytes() {
                raw[at..at + bytes.len()].copy_from_slice(bytes);
            }
            at += piece.len();
        })?;
        Ok((u64::from_le_bytes(raw), at == raw.len()))
    }

    fn set_number(&mut self, key: &[u8], offset: u32, number: u64) -> Result<()> {
        let raw = number.to_le_bytes();
        self.store.write(key, offset, Source::Bytes(&raw), self.version)?;
        Ok(())
    }
}
