//! Carrying out the actions of an operation.

use std::ops::ControlFlow;
use std::time::Duration;

use samite_backend::HEAD_LEN;
use samite_backend::{
    ReadRecords, RecordChange, RecordStore, ScannedRecord, ValuePiece, ValueView, WriteSource,
};
use samite_types::{ClientId, Epoch, ErrorKind, Version};
use samite_wire::op::{
    Action, BlockRef, TouchedRecords, UNLINKED_KEPT, UNLINKED_NONE, UNLINKED_REMOVED, WHOLE_VALUES,
};
use smallvec::SmallVec;

use crate::delegations::RecordLeases;
use crate::limits::{DELETE_PREFIX_MAX, REFERRING_LISTING_LEN_MAX, REVEAL_LEN_MAX};
use crate::listing_page::{ListingPage, WholeListing};
use crate::numbers::{self, NUMBER_LEN, Numbers};
use crate::open_references::OpenReferences;
use crate::outcome::ActionOutput;
use crate::plan::PlanStep;

/// An action that cannot be done says why without words: an absent record is an everyday answer.
type Result<T> = std::result::Result<T, ErrorKind>;

/// The state that actions work on.
pub(crate) struct ActionRun<'a> {
    pub(crate) store: &'a mut dyn RecordStore,
    pub(crate) name_space_generation: &'a mut Epoch,
    pub(crate) open_references: &'a mut OpenReferences,
    /// The client that asks.
    pub(crate) client: ClientId,
    /// The version that changed records get.
    pub(crate) version: Version,
    /// Bytes that listings may still take in the reply's body.
    pub(crate) body_left: usize,
    /// Listed records may be published to clients of the host: nothing changes.
    pub(crate) shows: bool,
    /// Takes the keys of records that are changed.
    pub(crate) touched: Option<&'a mut Vec<Box<[u8]>>>,
    /// The client copies large values from the arena.
    pub(crate) reads_in_place: bool,
    /// Grants delegations; `None`: they are refused.
    pub(crate) grantor: Option<DelegationGrantor<'a>>,
}

/// The needs of a grant of a delegation.
pub(crate) struct DelegationGrantor<'a> {
    pub(crate) delegations: &'a mut RecordLeases,
    pub(crate) client: ClientId,
    pub(crate) term_max: Duration,
    pub(crate) now: Duration,
    /// The client counts on the delegations that it asks for.
    pub(crate) is_certain: bool,
}

impl ActionRun<'_> {
    /// Carries out a mutation for which `step` was planned.
    pub(crate) fn change(
        &mut self,
        action: &Action<'_>,
        step: &mut PlanStep<'_>,
    ) -> Result<ActionOutput> {
        let source = step.source.take().unwrap_or(WriteSource::Zeros(0));
        let version = self.version;
        self.note(action);
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
                self.open_references.forget(key);
                return Ok(ActionOutput::Deleted { existed: self.store.delete(key)? });
            }
            Action::DeletePrefix { prefix, limit } => {
                return self.delete_prefix(prefix, *limit).map(ActionOutput::Number);
            }
            Action::Punch { key, offset, .. } => {
                return self.punch(key, *offset, source).map(ActionOutput::Number);
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
            Action::Advance { key, offset, count, to, slack } => (
                *offset,
                self.advance(key, (*offset, *count), (*to, *slack), step.numbers.as_ref())?,
            ),
            Action::RaiseLease { epoch } => {
                let before = *self.name_space_generation;
                *self.name_space_generation = before.max(*epoch);
                self.store.require_lease(*epoch);
                return Ok(ActionOutput::Number(before.get()));
            }
            Action::Detach { key, to } => return self.unlink(key, to).map(ActionOutput::Number),
            Action::SetHolders { key, holders } => {
                return Ok(ActionOutput::Number(self.open_references.set(key, holders)));
            }
            Action::MoveHolds { from, to } => {
                return Ok(ActionOutput::Number(self.open_references.move_all(from, to)));
            }
            // Planned: the record is there, and there is room.
            Action::Hold { key, token } => return Ok(self.take_reference(key, *token)),
            // Planned when it was there: an earlier action of the same operation has let it go.
            Action::Locate { .. } => return Ok(self.ask(action).unwrap_or_else(|_| bytes(&[]))),
            // Damage is found by then, but not that of everything that a listing shows: it is asked for again.
            Action::List { .. } => return Ok(self.ask(action).unwrap_or_else(|_| no_listing())),
            _ => return self.ask(action),
        };
        let (total_len, created) = (changed.len, changed.created);
        Ok(ActionOutput::Written { version, offset, total_len, created })
    }

    /// Notes the records that `action` changes, as far as it names them.
    fn note(&mut self, action: &Action<'_>) {
        let Some(touched) = &mut self.touched else { return };
        match action.touched() {
            TouchedRecords::Key(key) => touched.push(key.into()),
            TouchedRecords::Moved(from, to) => touched.extend([from.into(), to.into()]),
            // Records that are removed by their prefix are noted when they are found.
            TouchedRecords::Nothing | TouchedRecords::Prefix(_) => {}
        }
    }

    /// Answers an action that changes no record.
    pub(crate) fn ask(&mut self, action: &Action<'_>) -> Result<ActionOutput> {
        match action {
            Action::Get { key, offset, len } => {
                let mut pieces = SmallVec::new();
                let mut out = |piece| pieces.push(piece);
                let found = match self.reads_in_place {
                    true => self.store.read_in_place(key, *offset, *len, &mut out)?,
                    false => self.store.read(key, *offset, *len, &mut out)?,
                };
                let meta = found.ok_or(ErrorKind::NotFound)?;
                Ok(ActionOutput::Value { version: meta.version, total_len: meta.len, pieces })
            }
            Action::List { prefix, after, limit, reverse, value_len_max: WHOLE_VALUES } => {
                self.list_whole(prefix, after, *limit, *reverse)
            }
            Action::List { prefix, after, limit, reverse, value_len_max } => {
                let value_len = (*value_len_max).min(REVEAL_LEN_MAX);
                self.list(prefix, after, *limit, *reverse, value_len)
            }
            Action::Extents { prefix, after, limit } => self.extents(prefix, after, *limit),
            Action::Lease { key, term_us } => {
                let term = Duration::from_micros(u64::from(*term_us));
                let granted = self.grantor.as_mut().map_or(Duration::ZERO, |grantor| {
                    let term = term.min(grantor.term_max);
                    if grantor.is_certain {
                        grantor.delegations.grant_certain(grantor.client, key, term, grantor.now);
                        return term;
                    }
                    grantor.delegations.grant(grantor.client, key, term, grantor.now)
                });
                // No longer than the length that was asked for, which fits.
                Ok(ActionOutput::Number(granted.as_micros() as u64))
            }
            Action::Hold { key, token } => {
                self.check_reference(key, 1)?;
                Ok(self.take_reference(key, *token))
            }
            Action::Release { token } => {
                Ok(ActionOutput::Number(self.open_references.release(*token)))
            }
            Action::Locate { token } => {
                self.open_references.locate(*token).map(bytes).ok_or(ErrorKind::NotFound)
            }
            Action::Holders { key } => Ok(bytes(&self.open_references.list(key))),
            _ => Err(ErrorKind::Internal),
        }
    }

    /// Takes or releases the open reference of an operation that changes no record, all of whose
    /// actions have been [checked](Self::check_reference): the store is not asked again.
    pub(crate) fn end_reading(&mut self, action: &Action<'_>, output: &mut ActionOutput) {
        match action {
            Action::Hold { key, token } => *output = self.take_reference(key, *token),
            Action::Release { token } => {
                *output = ActionOutput::Number(self.open_references.release(*token));
            }
            _ => {}
        }
    }

    /// Fails unless the record at `key` can get an open reference, as one of `count` of this
    /// operation.
    pub(crate) fn check_reference(&self, key: &[u8], count: usize) -> Result<()> {
        self.open_references.check_room(self.client, count)?;
        match self.store.meta(key)? {
            Some(_) => Ok(()),
            None => Err(ErrorKind::NotFound),
        }
    }

    fn take_reference(&mut self, key: &[u8], token: u64) -> ActionOutput {
        ActionOutput::Number(self.open_references.open_reference(self.client, key, token))
    }

    fn unlink(&mut self, key: &[u8], to: &[u8]) -> Result<u64> {
        if !self.open_references.is_referenced(key) {
            self.open_references.forget(key);
            let existed = self.store.delete(key)?;
            return Ok(if existed { UNLINKED_REMOVED } else { UNLINKED_NONE });
        }
        let is_there = match key == to {
            true => self.store.meta(key)?.is_some(),
            false => self.store.rename(key, to, self.version)?,
        };
        if !is_there {
            self.open_references.forget(key);
            return Ok(UNLINKED_NONE);
        }
        self.open_references.became_orphan(key, to);
        Ok(UNLINKED_KEPT)
    }

    fn list(
        &mut self,
        prefix: &[u8],
        after: &[u8],
        limit: u32,
        reverse: bool,
        value_len: u32,
    ) -> Result<ActionOutput> {
        let mut page = ListingPage::new(limit, self.body_left);
        let (store, shows) = (&*self.store, self.shows && value_len as usize >= HEAD_LEN);
        store.scan(prefix, after, reverse, value_len, &mut |record| {
            let flow = page.add(record.key, record.meta, record.value);
            // A client that lists a directory with attributes mostly looks the entries up next.
            if shows && flow.is_continue() {
                store.publish(record.key, record.meta, record.value);
            }
            flow
        })?;
        self.body_left -= page.len();
        Ok(page.listing())
    }

    /// Lists records with whole values: as references where the client can follow them.
    fn list_whole(
        &mut self,
        prefix: &[u8],
        after: &[u8],
        limit: u32,
        reverse: bool,
    ) -> Result<ActionOutput> {
        let room = match self.reads_in_place {
            true => self.body_left.min(REFERRING_LISTING_LEN_MAX),
            false => self.body_left,
        };
        let mut page = WholeListing::new(limit, room);
        let shown_len = page.shown_len();
        if self.reads_in_place {
            let mut visit =
                |record: &ScannedRecord<'_>, blocks: &[BlockRef]| page.add(record, blocks);
            self.store.scan_in_place(prefix, after, reverse, shown_len, &mut visit)?;
        } else {
            let mut visit = |record: &ScannedRecord<'_>| page.add(record, &[]);
            self.store.scan(prefix, after, reverse, shown_len, &mut visit)?;
        }
        self.body_left -= page.len();
        Ok(page.listing())
    }

    fn extents(&mut self, prefix: &[u8], after: &[u8], limit: u32) -> Result<ActionOutput> {
        let mut page = ListingPage::new(limit, self.body_left);
        let store = &*self.store;
        let (mut ranges, mut result) = (Vec::new(), Ok(()));
        store.scan(prefix, after, false, 0, &mut |record| {
            ranges.clear();
            match data_ranges(store, record.key, &mut ranges) {
                Ok(()) => page.add(record.key, record.meta, &ranges),
                Err(kind) => {
                    result = Err(kind);
                    ControlFlow::Break(())
                }
            }
        })?;
        result?;
        self.body_left -= page.len();
        Ok(page.listing())
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
            self.open_references.forget(key);
            self.store.delete(key)?;
        }
        let count = keys.len() as u64;
        if let Some(touched) = &mut self.touched {
            touched.append(&mut keys);
        }
        Ok(count)
    }

    /// The number at `offset`, and whether all of it is there.
    fn number(&self, key: &[u8], offset: u32) -> Result<(u64, bool)> {
        let found = numbers::read(self.store, key, (offset, 1))?;
        let number = found.numbers.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
        Ok((number, found.len == NUMBER_LEN as usize))
    }

    /// Moves numbers forward, each unless it is a little later already.
    fn advance(
        &mut self,
        key: &[u8],
        (offset, count): (u32, u8),
        (to, slack): (i64, u64),
        known: Option<&Numbers>,
    ) -> Result<RecordChange> {
        let numbers = match known {
            Some(numbers) => *numbers,
            None => numbers::advanced(self.store, key, (offset, count), (to, slack))?.numbers,
        };
        let source = WriteSource::Bytes(&numbers[..usize::from(count) * NUMBER_LEN as usize]);
        Ok(self.store.write(key, offset, source, self.version)?)
    }

    /// Writes the zeros of `source`, if there are any. Returns how many.
    fn punch(&mut self, key: &[u8], offset: u32, source: WriteSource<'_>) -> Result<u64> {
        let len = source.len();
        if len > 0 {
            self.store.write(key, offset, source, self.version)?;
        }
        Ok(len as u64)
    }

    fn set_number(&mut self, key: &[u8], offset: u32, number: u64) -> Result<()> {
        let raw = number.to_le_bytes();
        self.store.write(key, offset, WriteSource::Bytes(&raw), self.version)?;
        Ok(())
    }
}

/// Nothing is listed, and there may be more.
const fn no_listing() -> ActionOutput {
    ActionOutput::Listing { complete: false, count: 0, entries: Vec::new() }
}

/// The ranges of a value that are no holes, as [`samite_wire::op::extents`] reads them.
fn data_ranges(store: &dyn ReadRecords, key: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut at = 0u32;
    let mut open: Option<(u32, u32)> = None;
    let mut close = |open: Option<(u32, u32)>| {
        if let Some((start, end)) = open {
            out.extend_from_slice(&start.to_le_bytes());
            out.extend_from_slice(&end.to_le_bytes());
        }
    };
    store.look(key, 0, u32::MAX, &mut |seen| {
        let start = at;
        at += seen.len() as u32;
        open = match (&seen, open) {
            (ValueView::Zeros(_), _) => {
                close(open);
                None
            }
            (_, Some((first, _))) => Some((first, at)),
            (_, None) => Some((start, at)),
        };
    })?;
    close(open);
    Ok(())
}

/// A value of these bytes, of no record.
fn bytes(bytes: &[u8]) -> ActionOutput {
    let mut pieces = SmallVec::new();
    if !bytes.is_empty() {
        pieces.push(ValuePiece::Bytes(bytes.into()));
    }
    // Keys and lists of holders are far shorter.
    ActionOutput::Value { version: Version(0), total_len: bytes.len() as u32, pieces }
}
