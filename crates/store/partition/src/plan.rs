//! Planning: everything that can refuse an operation is found out before anything changes.

use samite_backend::{
    ArenaExtent, PlannedChange, QuotaLimit, ReadRecords, RecordMeta, RecordStore, WriteSource,
};
use samite_types::{ClientId, ErrorKind};
use samite_wire::limits::{HOLDERS_LEN_MAX, RECORD_LEN_MAX};
use samite_wire::op::{Action, BlockRef, Operation, PerAction, ValueData};
use smallvec::SmallVec;

use crate::BlockGrants;
use crate::funds::ChangeFunds;
use crate::limits::REMOVAL_LEN_MAX;
use crate::numbers::{self, NUMBER_LEN, Numbers};
use crate::open_references::{HOLDER_LEN, OpenReferences};
use crate::outcome::AppliedFailure;

/// The needs of an action beside itself.
#[derive(Debug)]
pub(crate) struct PlanStep<'a> {
    /// Where an append goes.
    pub(crate) offset: u32,
    /// Bytes to store.
    pub(crate) source: Option<WriteSource<'a>>,
    /// The bytes that `Advance` writes, if no earlier action has a say in them.
    pub(crate) numbers: Option<Numbers>,
}

/// One step for each action.
pub(crate) type Plan<'a> = PerAction<PlanStep<'a>>;

/// The bytes that `Advance` writes are as long as a part of this.
const NUMBERS: Numbers = [0; size_of::<Numbers>()];

/// The number that `Add` and `Max` write is as long as this.
const NUMBER: WriteSource<'static> = WriteSource::Bytes(&[0; NUMBER_LEN as usize]);

/// Why a plan is not carried out.
pub(crate) enum PlanRefusal {
    Failed(AppliedFailure),
    /// Other members are not known to have room for its so many bytes.
    Short(AppliedFailure, u64),
}

impl From<AppliedFailure> for PlanRefusal {
    fn from(failure: AppliedFailure) -> Self {
        Self::Failed(failure)
    }
}

/// Plans the actions of a mutation, one step for each, and sets their space aside. Returns the most that they take of a member that has the same records,
/// where there are any (I11). Whether it succeeds or not, blocks of a plan that is not carried out are given back.
pub(crate) fn plan<'a>(
    (store, funds): (&mut dyn RecordStore, ChangeFunds),
    open_references: (&OpenReferences, ClientId),
    operation: &Operation<'a>,
    grants: &mut dyn BlockGrants,
    plan: &mut Plan<'a>,
) -> Result<u64, PlanRefusal> {
    let steps =
        plan_steps((store, open_references), operation, grants, plan).map_err(PlanRefusal::Failed);
    let result = steps.and_then(|()| reserve((&mut *store, funds), operation, plan));
    if result.is_err() {
        store.settle();
        give_back(plan, grants);
    }
    result
}

fn give_back(plan: &mut Plan<'_>, grants: &mut dyn BlockGrants) {
    for step in plan.drain(..) {
        if let Some(WriteSource::Blocks(blocks)) = step.source {
            for (extent, _) in blocks {
                grants.put_back(extent);
            }
        }
    }
}

fn plan_steps<'a>(
    (store, (open_references, client)): (&dyn RecordStore, (&OpenReferences, ClientId)),
    operation: &Operation<'a>,
    grants: &mut dyn BlockGrants,
    plan: &mut Plan<'a>,
) -> Result<(), AppliedFailure> {
    let mut shadow = RecordShadow {
        store,
        tracks: operation.actions.len() > 1,
        known: SmallVec::new(),
        wiped: SmallVec::new(),
        open_references,
        client,
        more_references: 0,
    };
    for (index, action) in operation.actions.iter().enumerate() {
        let mut step = PlanStep { offset: 0, source: None, numbers: None };
        shadow.plan(action, &mut step).map_err(|kind| AppliedFailure::new(kind, index))?;
        if let Action::Put { data, .. } | Action::Write { data, .. } | Action::Append { data, .. } =
            action
        {
            let source =
                resolve(data, grants).ok_or(AppliedFailure::new(ErrorKind::Invalid, index))?;
            step.source = Some(source);
        }
        plan.push(step);
    }
    Ok(())
}

fn reserve(
    (store, funds): (&mut dyn RecordStore, ChangeFunds),
    operation: &Operation<'_>,
    plan: &Plan<'_>,
) -> Result<u64, PlanRefusal> {
    let mut changes = PerAction::<PlannedChange<'_>>::new();
    let mut last = 0;
    for (index, (action, step)) in operation.actions.iter().zip(plan).enumerate() {
        let change = match (action, &step.source) {
            (Action::Put { key, .. }, Some(source)) => PlannedChange::Put { key, source },
            (
                Action::Write { key, offset, .. } | Action::Advance { key, offset, .. },
                Some(source),
            ) => PlannedChange::Write { key, offset: *offset, source },
            (Action::Punch { .. }, Some(WriteSource::Zeros(0))) => continue,
            (Action::Append { key, .. } | Action::Punch { key, .. }, Some(source)) => {
                PlannedChange::Write { key, offset: step.offset, source }
            }
            (Action::Add { key, offset, .. } | Action::Max { key, offset, .. }, _) => {
                PlannedChange::Write { key, offset: *offset, source: &NUMBER }
            }
            (Action::Detach { key, to }, _) => PlannedChange::Moves { key, to },
            // The old value is given back, and has to be found again. A value that was read is kept
            // for the reply: a change of it goes elsewhere.
            (
                Action::Delete { key } | Action::Truncate { key, .. } | Action::Get { key, .. },
                _,
            ) => PlannedChange::Moves { key, to: key },
            (Action::DeletePrefix { prefix, .. }, _) => PlannedChange::Wipes { prefix },
            _ => continue,
        };
        if change.key().is_some() {
            last = index;
        }
        changes.push(change);
    }
    let charge = match funds {
        ChangeFunds::Own | ChangeFunds::Promised => 0,
        ChangeFunds::Members { .. } | ChangeFunds::Kept => store.charge_max(&changes),
    };
    let makes_room = makes_room(operation);
    match funds {
        ChangeFunds::Kept => store.draw(charge),
        ChangeFunds::Members { has_reserve: Some(true), .. } if makes_room => {}
        ChangeFunds::Members { bytes, full_above, has_reserve } if charge > bytes => {
            let is_full = charge > full_above && !(makes_room && has_reserve.is_none());
            let kind = if is_full { ErrorKind::NoSpace } else { ErrorKind::Unavailable };
            return Err(PlanRefusal::Short(AppliedFailure::new(kind, last), charge));
        }
        _ => {}
    }
    store.set_limit(match funds {
        ChangeFunds::Promised => QuotaLimit::Beyond,
        ChangeFunds::Own | ChangeFunds::Members { .. } if !makes_room => QuotaLimit::Open,
        _ => QuotaLimit::Whole,
    });
    store.reserve(&changes).map_err(|error| AppliedFailure::new(error.kind(), last))?;
    Ok(charge)
}

/// Whether an operation removes something, and brings next to nothing.
fn makes_room(operation: &Operation<'_>) -> bool {
    let brought = operation.actions.iter().map(|action| match action {
        Action::Put { data, .. } | Action::Write { data, .. } | Action::Append { data, .. } => {
            data.len()
        }
        _ => 0,
    });
    operation.actions.iter().any(removes) && brought.sum::<usize>() <= REMOVAL_LEN_MAX
}

/// Whether an action removes records, or a part of one: its operation may give space back.
#[must_use]
pub const fn removes(action: &Action<'_>) -> bool {
    matches!(
        action,
        Action::Delete { .. }
            | Action::DeletePrefix { .. }
            | Action::Detach { .. }
            | Action::Truncate { .. }
            | Action::Punch { .. }
    )
}

/// The bytes that `data` means; `None`, with nothing taken, if it names a block that is not granted.
fn resolve<'a>(data: &ValueData<'a>, grants: &mut dyn BlockGrants) -> Option<WriteSource<'a>> {
    match data {
        ValueData::Inline(bytes) => Some(WriteSource::Bytes(bytes)),
        ValueData::Zeros(len) => Some(WriteSource::Zeros(*len)),
        ValueData::Blocks(refs) => {
            let mut blocks: Vec<(ArenaExtent, u32)> = Vec::with_capacity(refs.len());
            for block in refs {
                match take(block, grants) {
                    Some(extent) => blocks.push((extent, block.len)),
                    None => {
                        blocks.into_iter().for_each(|(extent, _)| grants.put_back(extent));
                        return None;
                    }
                }
            }
            Some(WriteSource::Blocks(blocks))
        }
    }
}

fn take(block: &BlockRef, grants: &mut dyn BlockGrants) -> Option<ArenaExtent> {
    let extent = grants.take(block)?;
    if block.len == 0 || block.len as usize > extent.len() {
        grants.put_back(extent);
        return None;
    }
    Some(extent)
}

/// The known state of a record at some point of an operation.
#[derive(Clone, Copy)]
enum RecordFate {
    Absent,
    Len(u32),
    /// An earlier action may have removed it.
    Unknown,
}

impl RecordFate {
    fn of(found: Option<RecordMeta>) -> Self {
        found.map_or(Self::Absent, |meta| Self::Len(meta.len))
    }

    /// Length of the record, if there is one.
    const fn len(self) -> Result<Option<u32>, ErrorKind> {
        match self {
            Self::Absent => Ok(None),
            Self::Len(len) => Ok(Some(len)),
            Self::Unknown => Err(ErrorKind::Invalid),
        }
    }

    /// Its length after a write up to `end`.
    fn grown(self, end: u32) -> Self {
        match self {
            Self::Absent => Self::Len(end),
            Self::Len(len) => Self::Len(len.max(end)),
            Self::Unknown => Self::Unknown,
        }
    }
}

/// The records as they will be after the actions planned so far.
struct RecordShadow<'a, 's> {
    store: &'s dyn ReadRecords,
    /// Another action may ask for the state that this one leaves.
    tracks: bool,
    /// Later entries count.
    known: PerAction<(&'a [u8], RecordFate)>,
    /// Prefixes of which an earlier action removes records, nobody knows yet which.
    wiped: SmallVec<[&'a [u8]; 1]>,
    open_references: &'s OpenReferences,
    client: ClientId,
    /// Open references that the actions planned so far take.
    more_references: usize,
}

impl<'a> RecordShadow<'a, '_> {
    /// The state in which earlier actions leave the record at `key`; `None`: they have nothing to
    /// do with it.
    fn left(&self, key: &[u8]) -> Option<RecordFate> {
        if let Some((_, fate)) = self.known.iter().rev().find(|(known, _)| *known == key) {
            return Some(*fate);
        }
        self.wiped.iter().any(|prefix| key.starts_with(prefix)).then_some(RecordFate::Unknown)
    }

    fn fate(&self, key: &[u8]) -> Result<RecordFate, ErrorKind> {
        match self.left(key) {
            Some(fate) => Ok(fate),
            None => Ok(RecordFate::of(self.store.meta(key)?)),
        }
    }

    /// The fate of a record that takes a write whatever it is: not found out when nobody will ask,
    /// and no record refuses it.
    fn fate_if_asked(&self, key: &[u8]) -> Result<Option<RecordFate>, ErrorKind> {
        (self.tracks || self.store.verifies_meta()).then(|| self.fate(key)).transpose()
    }

    /// Length of the record at `key`, which must exist.
    fn existing(&self, key: &[u8]) -> Result<u32, ErrorKind> {
        self.fate(key)?.len()?.ok_or(ErrorKind::NotFound)
    }

    /// The fate of a record that is to be read, too; fails when those bytes are damaged.
    fn readable(&self, key: &[u8], offset: u32, len: u32) -> Result<RecordFate, ErrorKind> {
        let found = self.store.look(key, offset, len, &mut |_| {})?;
        Ok(self.left(key).unwrap_or_else(|| RecordFate::of(found)))
    }

    /// Finds obstacles to `action`, and notes the state that it will leave.
    fn plan(&mut self, action: &Action<'a>, step: &mut PlanStep<'_>) -> Result<(), ErrorKind> {
        let (key, fate) = match action {
            Action::Get { key, offset, len } => {
                let fate = self.readable(key, *offset, *len)?;
                fate.len()?.ok_or(ErrorKind::NotFound)?;
                (*key, fate)
            }
            Action::Put { key, data } => (*key, RecordFate::Len(data.len() as u32)),
            Action::Delete { key } => (*key, RecordFate::Absent),
            Action::Write { key, offset, data } => {
                let end = *offset + data.len() as u32;
                let known = self.fate_if_asked(key)?;
                (*key, known.map_or(RecordFate::Len(end), |fate| fate.grown(end)))
            }
            Action::Append { key, data, len_max } => {
                step.offset = self.fate(key)?.len()?.unwrap_or(0);
                let end = step.offset as usize + data.len();
                if end > (*len_max as usize).min(RECORD_LEN_MAX) {
                    return Err(ErrorKind::TooLarge);
                }
                (*key, RecordFate::Len(end as u32))
            }
            Action::Truncate { key, len } => {
                self.existing(key)?;
                (*key, RecordFate::Len(*len))
            }
            Action::Add { key, offset, .. } => {
                let fate = self.readable(key, *offset, NUMBER_LEN)?;
                (*key, fate.grown(*offset + NUMBER_LEN))
            }
            Action::Advance { key, offset, count, to, slack } => {
                // Also the space that is reserved.
                let len = u32::from(*count) * NUMBER_LEN;
                step.source = Some(WriteSource::Bytes(&NUMBERS[..len as usize]));
                let found = numbers::advanced(self.store, key, (*offset, *count), (*to, *slack))?;
                let fate = match self.left(key) {
                    // The numbers are found when it is carried out.
                    Some(fate) => fate,
                    None => {
                        step.numbers = Some(found.numbers);
                        RecordFate::of(found.meta)
                    }
                };
                (*key, fate.grown(*offset + len))
            }
            Action::Max { key, offset, .. } => {
                let fate = self.readable(key, *offset, NUMBER_LEN)?;
                fate.len()?.ok_or(ErrorKind::NotFound)?;
                (*key, fate.grown(*offset + NUMBER_LEN))
            }
            Action::Punch { key, offset, len } => {
                let fate = self.fate(key)?;
                let there = fate.len()?.unwrap_or(0).saturating_sub(*offset).min(*len);
                step.offset = *offset;
                step.source = Some(WriteSource::Zeros(there));
                (*key, fate)
            }
            Action::DeletePrefix { prefix, .. } => {
                self.known.retain(|(key, _)| !key.starts_with(prefix));
                self.wiped.push(prefix);
                return Ok(());
            }
            _ => return self.plan_hold(action),
        };
        if self.tracks {
            self.known.push((key, fate));
        }
        Ok(())
    }

    /// The same, of an action on open references or one without obstacles.
    fn plan_hold(&mut self, action: &Action<'a>) -> Result<(), ErrorKind> {
        match action {
            Action::Hold { key, .. } => {
                self.existing(key)?;
                self.more_references += 1;
                self.open_references.check_room(self.client, self.more_references)
            }
            Action::SetHolders { key, holders } => {
                self.existing(key)?;
                self.more_references += holders.len() / HOLDER_LEN;
                self.open_references.check_room(self.client, self.more_references)
            }
            Action::Holders { key } if self.open_references.list(key).len() > HOLDERS_LEN_MAX => {
                Err(ErrorKind::TooLarge)
            }
            Action::Detach { key, to } => {
                // Whether the record goes or gets the other key, no later action of this operation needs to know.
                self.known
                    .push((key, if key == to { RecordFate::Unknown } else { RecordFate::Absent }));
                self.known.push((to, RecordFate::Unknown));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
