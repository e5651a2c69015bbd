//! The partition: records under one total order, each operation exactly once.
//!
//! [`Partition::apply`] is a function of the partition's state and its input: no clock, no I/O, no
//! threads, no randomness. Two partitions that start empty and are given the same inputs in the
//! same order answer the same and end in the same state; mirroring forwards these inputs, and a
//! simulator drives them.
//!
//! An operation is tried in this order, and nothing changes before the last step:
//!
//! 1. its lengths and counts ([`samite_wire::limits`]);
//! 2. a mutation that took effect before is answered from memory (see `sessions.rs`);
//! 3. the client's name-space generation is not older than the partition's;
//! 4. its guards are true;
//! 5. its actions can all be done, and their space is set aside;
//! 6. its actions are done, in order; the partition's version grows by one and is the version of
//!    every record they change.
//!
//! What another copy of the partition needs beside that (mirroring, checkpoints):
//! to follow the one that decides ([`PartitionStamps`], [`Partition::begin_term`]), the space of
//! its changes ([`ChangeFunds`]), a walk over the records ([`PartitionCursor`]), copies of records
//! and of the state beside them ([`Partition::read_record`], [`Partition::install`],
//! [`Partition::export_state`]), and checksums ([`StateDigest`]).

pub mod limits;

mod check;
mod context;
mod copy;
mod cursor;
mod delegations;
mod digest;
mod fields;
mod follow;
mod funds;
mod guard;
mod listing_page;
mod lost;
mod numbers;
mod open_references;
mod outcome;
mod plan;
mod publish;
mod reads;
mod refusals;
mod run;
mod scrub;
mod sessions;

use std::fmt;
use std::time::Duration;

use samite_backend::{CommitRecords, RecordStore, SharedBytes, ValuePiece};
use samite_types::{ClientId, Epoch, ErrorKind, Result, Seq, Version};
use samite_wire::op::{Action, Operation, PerAction};
use smallvec::SmallVec;

pub use context::{BlockGrants, NoGrants, RequestContext};
pub use copy::{RecordKey, ValuePieces};
pub use cursor::{CursorBatch, CursorFlow, PartitionCursor, ScrubbedBatch};
pub use delegations::{DelegationHolder, RecordLeases};
pub use digest::StateDigest;
pub use follow::PartitionStamps;
pub use funds::ChangeFunds;
use limits::REMEMBERED_LEN_MAX;
use open_references::OpenReferences;
use outcome::AppliedFailure;
pub use outcome::{ActionOutput, AppliedOutcome, Current};
pub use plan::removes;
use plan::{Plan, PlanRefusal};
use run::{ActionRun, DelegationGrantor};
use sessions::{AppliedOperation, Decided, KnownOperation, PartitionSessions, RememberedAction};

/// One partition of one dataset.
pub struct Partition {
    store: Box<dyn RecordStore>,
    version: Version,
    name_space_generation: Epoch,
    sessions: PartitionSessions,
    delegations: RecordLeases,
    open_references: OpenReferences,
    /// Records are published to clients of the host.
    shows: bool,
    /// Its operations were admitted by another partition, whose copy it is.
    follows: bool,
    /// Where the space of changes comes from, unless it follows.
    funds: ChangeFunds,
    /// The most that the last change takes of a member, in bytes.
    charge: u64,
    /// The most that a change would have taken which other members have no room for, as far as is
    /// known.
    short: Option<u64>,
    /// Refusals remembered for good.
    refusals: u64,
    /// Keys of records that were changed, when somebody asks for them.
    touched: Option<Vec<RecordKey>>,
    forgets: bool,
    /// A planned change was carried out in part: nobody knows what is here.
    failed: Option<ErrorKind>,
    trusts_store: bool,
}

impl Partition {
    /// A partition whose records are in `store`, which is empty.
    #[must_use]
    pub fn new(store: Box<dyn RecordStore>) -> Self {
        Self {
            store,
            version: Version(0),
            name_space_generation: Epoch(0),
            sessions: PartitionSessions::default(),
            delegations: RecordLeases::default(),
            open_references: OpenReferences::default(),
            shows: true,
            follows: false,
            funds: ChangeFunds::Own,
            charge: 0,
            short: None,
            refusals: 0,
            touched: None,
            forgets: false,
            failed: None,
            trusts_store: false,
        }
    }

    /// Whether records that are made or looked up from now on are published to clients of the
    /// node's host ([`samite_backend::PublishRecords`]); at first they are. Not by a member of a mirror group
    /// that is not its primary, and not while something is applied that another member may not
    /// have: a published record is read without asking. Records that are published already stay
    /// until they change; a member that stops being the primary retracts them all.
    pub const fn set_shows(&mut self, shows: bool) {
        self.shows = shows;
    }

    /// Number of the last mutation that took effect.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Least name-space generation that a client may rely on.
    #[must_use]
    pub const fn name_space_generation(&self) -> Epoch {
        self.name_space_generation
    }

    /// The delegations on its records.
    pub const fn delegations(&mut self) -> &mut RecordLeases {
        &mut self.delegations
    }

    /// Whether the guards of `operation` are true as things are.
    #[must_use]
    pub fn would_run(&self, operation: &Operation<'_>) -> bool {
        guard::check_guards(&*self.store, operation, 0).is_ok()
    }

    /// Its store, if that remembers.
    pub fn commits(&mut self) -> Option<&mut dyn CommitRecords> {
        self.store.commits()
    }

    /// Why it can serve no more, if so: the store has failed in the midst of a change. From then on
    /// it answers `Unavailable`, and its driver is to end; what was committed before is right.
    #[must_use]
    pub const fn failed(&self) -> Option<ErrorKind> {
        self.failed
    }

    /// Records in the partition.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.store.record_count()
    }

    /// Orphans to which there is no open reference any more.
    #[must_use]
    pub const fn leaked_orphans(&self) -> u64 {
        self.open_references.leaked_orphans()
    }

    /// Ends all open references of a client that is gone.
    pub fn drop_client(&mut self, client: ClientId) {
        self.open_references.drop_client(client);
    }

    /// Applies one operation of `client`. It takes effect whole, exactly once however often it
    /// comes, or not at all.
    ///
    /// `Corrupt`: the record that it would read is damaged where it lies; it has no effect.
    ///
    /// Failures beside those of guards ([`ErrorKind::Conflict`]) and actions (`NotFound`,
    /// `TooLarge`, `NoSpace`): `Invalid` (makes no sense: a mutation without a sequence number, an
    /// empty key, a block that is not granted, a question about a record that an earlier
    /// `DeletePrefix` of the same operation may have removed), `StaleLease`, `SessionLost` (a retry
    /// whose first outcome is forgotten), `Busy` (sent so late that the session's window has passed
    /// it; it was not done, send it under a new number).
    pub fn apply(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
    ) -> AppliedOutcome {
        let outputs = if operation.is_mutation() {
            self.mutate(client, context, operation, grants)
        } else {
            self.ask(client, context, operation)
        };
        match outputs {
            Ok(outputs) => AppliedOutcome::Done(outputs),
            Err(AppliedFailure { kind, index, current }) => {
                AppliedOutcome::Failed { kind, index, current }
            }
        }
    }

    /// Applies a mutation that counts as done already: it comes once, and no client waits for its
    /// outcome, which is certain, also where the target is full.
    ///
    /// An obstacle to one action (a damaged record, too many open references) does not keep the
    /// others from taking effect. Delegations are counted from `now` on; zero when no client has
    /// any.
    ///
    /// # Errors
    /// Why it had no effect all the same, or not all of it.
    pub fn apply_certain(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        now: Duration,
    ) -> Result<(), ErrorKind> {
        let context = RequestContext::of_certain(now);
        let funds = std::mem::replace(&mut self.funds, ChangeFunds::Promised);
        let mut done = self.try_certain(client, operation, &context);
        if done.is_err_and(|kind| kind != ErrorKind::Conflict) && operation.actions.len() > 1 {
            done = self.try_one_by_one(client, operation, &context);
        }
        self.funds = funds;
        done
    }

    /// The next operation is about the record at `key`, which is there: it is fetched meanwhile.
    pub fn fetch(&self, key: &[u8]) {
        self.store.fetch(key);
    }

    /// Applies the first action, under the guards, and if that takes effect the others.
    #[cold]
    fn try_one_by_one(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        context: &RequestContext,
    ) -> Result<(), ErrorKind> {
        let mut done = Ok(());
        for (index, action) in operation.actions.iter().enumerate() {
            let mut alone = Operation::new(operation.partition, [action.clone()]);
            alone.seq = operation.seq;
            if index == 0 {
                alone.guards.clone_from(&operation.guards);
                self.try_certain(client, &alone, context)?;
            } else {
                done = done.and(self.try_certain(client, &alone, context));
            }
        }
        done
    }

    fn try_certain(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        context: &RequestContext,
    ) -> Result<(), ErrorKind> {
        check::check(operation)
            .and_then(|()| self.try_change(client, context, operation, &mut NoGrants, None))
            .map_err(|failure| failure.kind)
    }

    /// Open references are taken and released last, once nothing can fail any more.
    fn ask(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
    ) -> Result<Outputs, AppliedFailure> {
        check::check(operation)?;
        self.admit(context, operation)?;
        let shows = self.shows;
        let mut run = self.run((client, true), context);
        run.shows = shows;
        let mut outputs = Outputs::new();
        let mut open_references = 0;
        for (index, action) in operation.actions.iter().enumerate() {
            let output = match action {
                Action::Hold { key, .. } => {
                    open_references += 1;
                    run.check_reference(key, open_references).map(|()| ActionOutput::Number(0))
                }
                Action::Release { .. } => Ok(ActionOutput::Number(0)),
                _ => run.ask(action),
            };
            outputs.push(output.map_err(|kind| AppliedFailure::new(kind, index))?);
        }
        for (action, output) in operation.actions.iter().zip(&mut outputs) {
            run.end_reading(action, output);
        }
        if shows {
            publish::found(&*self.store, operation, &outputs);
        }
        Ok(outputs)
    }

    fn mutate(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
    ) -> Result<Outputs, AppliedFailure> {
        check::check(operation)?;
        let (seq, answered_below) = (operation.seq, context.answered_below);
        if seq == Seq(0) {
            return Err(AppliedFailure::new(ErrorKind::Invalid, 0));
        }
        if !self.follows {
            self.sessions.hear(client, answered_below);
        }
        match self.sessions.look_up(client, seq, context.is_retry) {
            KnownOperation::New => {}
            KnownOperation::Applied(AppliedOperation { results: Err((kind, index)), .. }) => {
                return Err(self.refused(operation, (*kind, *index), context));
            }
            KnownOperation::Refused(kind, index) => {
                return Err(self.refused(operation, (kind, index), context));
            }
            KnownOperation::Applied(AppliedOperation { version, results: Ok(results), .. }) => {
                let (version, results) = (*version, results.clone());
                return self.replay(client, context, operation, version, &results);
            }
            KnownOperation::Lost => return Err(AppliedFailure::new(ErrorKind::SessionLost, 0)),
            KnownOperation::Behind => return Err(AppliedFailure::new(ErrorKind::Busy, 0)),
        }
        if self.shows {
            publish::expect(&*self.store, operation);
        }
        let mut outputs = Outputs::new();
        match self.try_change(client, context, operation, grants, Some(&mut outputs)) {
            Ok(()) => {
                let pairs = operation.actions.iter().zip(&outputs);
                let results = pairs.map(|(action, output)| remembered(action, output)).collect();
                self.remember(client, (seq, answered_below), Ok(results));
                Ok(outputs)
            }
            Err(failure) => {
                if is_final(failure.kind) {
                    self.note_refusal(client, context, seq, (failure.kind, failure.index));
                }
                Err(failure)
            }
        }
    }

    /// Why an operation was refused before.
    fn refused(
        &self,
        operation: &Operation<'_>,
        (kind, index): (ErrorKind, u16),
        context: &RequestContext,
    ) -> AppliedFailure {
        let index = usize::from(index);
        match kind {
            ErrorKind::Conflict => {
                guard::broken(&*self.store, operation, index, context.body_len_max)
            }
            kind => AppliedFailure::new(kind, index),
        }
    }

    fn remember(&mut self, client: ClientId, (seq, below): (Seq, Seq), decided: Decided) {
        if !self.forgets {
            self.sessions.remember(client, seq, below, self.version, decided);
        }
    }

    /// `outputs`, if anybody wants them, get one for each action.
    fn try_change(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
        outputs: Option<&mut Outputs>,
    ) -> Result<(), AppliedFailure> {
        self.admit(context, operation)?;
        let mut plan = Plan::new();
        let is_kept = self.follows && self.funds != ChangeFunds::Promised;
        let funds = if is_kept { ChangeFunds::Kept } else { self.funds };
        let store: &mut dyn RecordStore = &mut *self.store;
        match plan::plan(
            (store, funds),
            (&self.open_references, client),
            operation,
            grants,
            &mut plan,
        ) {
            Ok(charge) => self.charge = charge,
            Err(PlanRefusal::Failed(failure)) => return Err(failure),
            Err(PlanRefusal::Short(failure, charge)) => {
                self.short = Some(charge);
                return Err(failure);
            }
        }
        let done = self.change(client, context, operation, &mut plan, outputs);
        self.store.settle();
        done?;
        if self.shows {
            publish::made(&*self.store, operation, self.version);
        }
        self.delegations.changed(client, operation, context.now);
        Ok(())
    }

    /// Steps 3 and 4.
    fn admit(
        &self,
        context: &RequestContext,
        operation: &Operation<'_>,
    ) -> Result<(), AppliedFailure> {
        if self.failed.is_some() {
            return Err(AppliedFailure::new(ErrorKind::Unavailable, 0));
        }
        if context.name_space_generation < self.name_space_generation && !only_releases(operation) {
            return Err(AppliedFailure::new(ErrorKind::StaleLease, 0));
        }
        guard::check_guards(&*self.store, operation, context.body_len_max)
    }

    /// Step 6. Nothing here can fail unless the store does: the space is set aside. Then nobody
    /// knows what is here any more.
    fn change(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        plan: &mut Plan<'_>,
        mut outputs: Option<&mut Outputs>,
    ) -> Result<(), AppliedFailure> {
        self.version = Version(self.version.get() + 1);
        let mut run = self.run((client, true), context);
        for (index, (action, step)) in operation.actions.iter().zip(plan).enumerate() {
            // An output is large: it is moved no more often than it has to be.
            match run.change(action, step) {
                Ok(output) => {
                    if let Some(outputs) = &mut outputs {
                        outputs.push(output);
                    }
                }
                Err(kind) => {
                    self.fail(kind);
                    return Err(AppliedFailure::new(ErrorKind::Unavailable, index));
                }
            }
        }
        Ok(())
    }

    /// Answers a mutation that took effect before. Long values that it read beside are read again,
    /// as they are now; a delegation that it was granted is the one of then.
    fn replay(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        version: Version,
        results: &[RememberedAction],
    ) -> Result<Outputs, AppliedFailure> {
        if results.len() != operation.actions.len() {
            // The client has given one number to two operations.
            return Err(AppliedFailure::new(ErrorKind::Invalid, 0));
        }
        let mut run = self.run((client, false), context);
        let mut outputs = Outputs::new();
        for (action, result) in operation.actions.iter().zip(results) {
            outputs.push(match result {
                RememberedAction::Written { offset, total_len, created } => ActionOutput::Written {
                    version,
                    offset: *offset,
                    total_len: *total_len,
                    created: *created,
                },
                RememberedAction::Deleted(existed) => ActionOutput::Deleted { existed: *existed },
                RememberedAction::Number(number) => ActionOutput::Number(*number),
                RememberedAction::Value { version, total_len, bytes } => ActionOutput::Value {
                    version: *version,
                    total_len: *total_len,
                    pieces: short(bytes).collect(),
                },
                RememberedAction::Asked => match run.ask(action) {
                    Err(kind @ (ErrorKind::Corrupt | ErrorKind::Unavailable)) => {
                        return Err(AppliedFailure::new(kind, 0));
                    }
                    // It has taken effect: it is to be asked for again.
                    Err(ErrorKind::Io) => {
                        return Err(AppliedFailure::new(ErrorKind::Unavailable, 0));
                    }
                    found => found.unwrap_or_else(|_| gone()),
                },
            });
        }
        Ok(outputs)
    }

    /// `takes_delegation`: the client is granted the delegations that it asks for.
    fn run(
        &mut self,
        (client, takes_delegation): (ClientId, bool),
        context: &RequestContext,
    ) -> ActionRun<'_> {
        let delegations = &mut self.delegations;
        ActionRun {
            store: &mut *self.store,
            open_references: &mut self.open_references,
            client,
            name_space_generation: &mut self.name_space_generation,
            version: self.version,
            body_left: context.body_len_max,
            shows: false,
            touched: self.touched.as_mut(),
            reads_in_place: context.reads_in_place,
            grantor: takes_delegation.then_some(DelegationGrantor {
                delegations,
                client,
                term_max: context.delegation_term_max,
                now: context.now,
                is_certain: context.grants_all_delegations,
            }),
        }
    }
}

type Outputs = PerAction<ActionOutput>;

/// The pieces of a short value.
fn short(bytes: &[u8]) -> impl Iterator<Item = ValuePiece> {
    (!bytes.is_empty()).then(|| ValuePiece::Bytes(SharedBytes::from(bytes))).into_iter()
}

/// The result of a replayed `Get` when the record is no more: no bytes, at no version.
fn gone() -> ActionOutput {
    ActionOutput::Value { version: Version(0), total_len: 0, pieces: SmallVec::new() }
}

/// Whether a refusal is the last word on an operation: its client does not send it again.
const fn is_final(kind: ErrorKind) -> bool {
    use ErrorKind::{Conflict, Io, NoSpace, NotFound, TooLarge, TooManyOpen};
    matches!(kind, Conflict | Io | NoSpace | NotFound | TooLarge | TooManyOpen)
}

/// Whether an operation does nothing but let go, which needs no cached directory.
fn only_releases(operation: &Operation<'_>) -> bool {
    let mut actions = operation.actions.iter();
    actions.all(|action| matches!(action, Action::Release { .. } | Action::Locate { .. }))
}

fn remembered(action: &Action<'_>, output: &ActionOutput) -> RememberedAction {
    match output {
        ActionOutput::Value { version, total_len, pieces } => {
            let len: usize = pieces.iter().map(ValuePiece::len).sum();
            if len > REMEMBERED_LEN_MAX {
                return RememberedAction::Asked;
            }
            let mut bytes = Vec::with_capacity(len);
            pieces.iter().for_each(|piece| piece.append_to(&mut bytes));
            RememberedAction::Value {
                version: *version,
                total_len: *total_len,
                bytes: bytes.into(),
            }
        }
        _ if !action.is_mutation() => RememberedAction::Asked,
        ActionOutput::Written { offset, total_len, created, .. } => {
            RememberedAction::Written { offset: *offset, total_len: *total_len, created: *created }
        }
        ActionOutput::Deleted { existed } => RememberedAction::Deleted(*existed),
        ActionOutput::Number(number) => RememberedAction::Number(*number),
        ActionOutput::Listing { .. } => RememberedAction::Asked,
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partition({} records at {})", self.record_count(), self.version)
    }
}
