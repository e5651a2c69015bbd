//! The partition: records under one total order, each operation exactly once.
//!
//! [`Partition::apply`] is a function of the partition's state and its input: no clock, no I/O, no threads, no randomness. Two
//! partitions that start empty and are given the same inputs in the same order answer the same and end in the same state; that is
//! what mirroring forwards and what a simulator drives.
//!
//! An operation is tried in this order, and nothing changes before the last step:
//!
//! 1. its lengths and counts ([`samite_wire::limits`]);
//! 2. a mutation that took effect before is answered from memory (see `sessions.rs`);
//! 3. the client's leases are not older than the partition's;
//! 4. its guards hold;
//! 5. its actions can all be done, and their space is set aside;
//! 6. its actions are done, in order; the partition's version grows by one and is the version of every record they change.

pub mod durable;
pub mod limits;
pub mod locks;

pub mod mirror;

mod check;
mod copy;
mod guard;
mod holds;
mod lost;
mod numbers;
mod outcome;
mod plan;
mod record_leases;
mod refusals;
mod run;
mod scrub;
mod sessions;
mod show;

use std::fmt;
use std::time::Duration;

use samite_backend::{Bytes, Extent, Piece, RecordStore};
use samite_types::{ClientId, Epoch, ErrorKind, Result, Seq, Version};
use samite_wire::op::{Action, BlockRef, Operation, PerAction};
use smallvec::SmallVec;

use holds::Holds;
use limits::REMEMBERED_LEN_MAX;
use mirror::Funds;
use outcome::Failure;
pub use outcome::{ActionOutput, Current, Outcome};
pub use plan::removes;
use plan::{Plan, Refusal};
pub use record_leases::{Holder, RecordLeases};
use run::{Lender, Run};
pub use scrub::ScrubbedRange;
use sessions::{Applied, Decided, Known, Remembered, Sessions};

/// What the operations of one request share.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Every mutation of this client with a smaller sequence number has been answered.
    pub answered_below: Seq,
    /// The operation may have been sent before.
    pub is_retry: bool,
    /// Lease epoch that the client relies on; `Epoch(u64::MAX)` for none.
    pub lease_epoch: Epoch,
    /// Most bytes that the operation's listings, or the record it reveals, may take in the reply's body. A listing
    /// for which nothing is left has no entries and is not complete.
    pub body_len_max: usize,
    /// The time, on a clock that never goes back; leases on records are counted by it. Zero when neither this operation nor one
    /// before it has to do with them.
    pub now: Duration,
    /// Longest term of a lease on a record that this client may have.
    pub lease_term_max: Duration,
    /// The client copies large values from the arena by itself: those that were found undamaged a moment ago are not looked at again.
    pub lends_memory: bool,
    /// The client counts on the leases that it asks for: none is refused.
    pub promises_leases: bool,
}

impl Context {
    /// Of what was posted: its client made sure of what it stands on, and counts on the leases that it asks for.
    const fn posted(now: Duration) -> Self {
        Self {
            answered_below: Seq(0),
            is_retry: false,
            lease_epoch: Epoch(u64::MAX),
            body_len_max: 0,
            now,
            lease_term_max: Duration::MAX,
            lends_memory: false,
            promises_leases: true,
        }
    }
}

/// Blocks that were granted to the connection by which an operation came.
pub trait Grants {
    /// Takes the block that `block` names: it is granted, starts there and has its generation.
    fn take(&mut self, block: &BlockRef) -> Option<Extent>;
    /// Gives back a block of an operation that had no effect: it stays granted.
    fn put_back(&mut self, extent: Extent);
}

/// No blocks are granted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGrants;

impl Grants for NoGrants {
    fn take(&mut self, _: &BlockRef) -> Option<Extent> {
        None
    }

    fn put_back(&mut self, _: Extent) {}
}

/// One partition of one dataset.
pub struct Partition {
    store: Box<dyn RecordStore>,
    version: Version,
    lease_epoch: Epoch,
    sessions: Sessions,
    leases: RecordLeases,
    holds: Holds,
    /// Clients of the host are shown records.
    shows: bool,
    /// What it applies was admitted by another, whose copy it is.
    follows: bool,
    /// Where the space of changes comes from, unless it follows.
    funds: Funds,
    /// The most that the last change takes of a member, in bytes.
    charge: u64,
    /// The most that a change would have taken which other members have no room for, as far as is known.
    short: Option<u64>,
    /// Refusals remembered for good.
    refusals: u64,
    /// Keys of records that were changed, when somebody asks for them.
    touched: Option<Vec<Key>>,
    forgets: bool,
}

/// Key of a record.
type Key = Box<[u8]>;

impl Partition {
    /// A partition whose records are in `store`, which is empty.
    #[must_use]
    pub fn new(store: Box<dyn RecordStore>) -> Self {
        Self {
            store,
            version: Version(0),
            lease_epoch: Epoch(0),
            sessions: Sessions::default(),
            leases: RecordLeases::default(),
            holds: Holds::default(),
            shows: true,
            follows: false,
            funds: Funds::Own,
            charge: 0,
            short: None,
            refusals: 0,
            touched: None,
            forgets: false,
        }
    }

    /// Whether clients of the node's host may be shown records that are made or looked up from now on ([`samite_wire::heads`]); at first they are. Not
    /// by a member of a mirror group that is not its primary, and not while something is applied that another member may not have: what is
    /// shown is read without asking. Records that are shown already stay until they change; whoever stops being the primary hides them all.
    pub const fn set_shows(&mut self, shows: bool) {
        self.shows = shows;
    }

    /// Number of the last mutation that took effect.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Least lease epoch that a client may rely on.
    #[must_use]
    pub const fn lease_epoch(&self) -> Epoch {
        self.lease_epoch
    }

    /// The leases on its records.
    pub const fn leases(&mut self) -> &mut RecordLeases {
        &mut self.leases
    }

    /// Whether the guards of `operation` hold as things are.
    #[must_use]
    pub fn would_run(&self, operation: &Operation<'_>) -> bool {
        guard::check_guards(&*self.store, operation, 0).is_ok()
    }

    /// Records held.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.store.record_count()
    }

    /// Detached records that nobody holds any more.
    #[must_use]
    pub const fn abandoned(&self) -> u64 {
        self.holds.abandoned()
    }

    /// Ends all holds of a client that is gone.
    pub fn drop_client(&mut self, client: ClientId) {
        self.holds.drop_client(client);
    }

    /// Applies one operation of `client`. It takes effect whole, exactly once however often it comes, or not at all.
    ///
    /// `Corrupt`: what it would read is damaged where it lies; it has no effect.
    ///
    /// Failures beside those of guards ([`ErrorKind::Conflict`]) and actions (`NotFound`, `TooLarge`, `NoSpace`):
    /// `Invalid` (makes no sense: a mutation without a sequence number, an empty key, a block that is not granted, a question about a record
    /// that an earlier `DeletePrefix` of the same operation may have removed), `StaleLease`, `SessionLost` (a retry whose first outcome is
    /// forgotten), `Busy` (sent so late that the session's window has passed it; it was not done, send it under a new number).
    pub fn apply(
        &mut self,
        client: ClientId,
        context: &Context,
        operation: &Operation<'_>,
        grants: &mut dyn Grants,
    ) -> Outcome {
        let outputs = if operation.is_mutation() {
            self.mutate(client, context, operation, grants)
        } else {
            self.ask(client, context, operation)
        };
        match outputs {
            Ok(outputs) => Outcome::Done(outputs),
            Err(Failure { kind, index, current }) => Outcome::Failed { kind, index, current },
        }
    }

    /// Applies a mutation that a client has [posted](samite_wire::posts): it comes once, and nobody waits for its outcome, which is certain, also where the
    /// target is full.
    ///
    /// What stands in the way of one action (a damaged record, too many holds) does not keep the others from taking effect. Leases are counted from `now` on;
    /// zero when nobody has any.
    ///
    /// # Errors
    /// Why it had no effect all the same, or not all of it.
    pub fn apply_posted(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        now: Duration,
    ) -> Result<(), ErrorKind> {
        let context = Context::posted(now);
        let funds = std::mem::replace(&mut self.funds, Funds::Promised);
        let mut done = self.try_posted(client, operation, &context);
        if done.is_err_and(|kind| kind != ErrorKind::Conflict) && operation.actions.len() > 1 {
            done = self.try_one_by_one(client, operation, &context);
        }
        self.funds = funds;
        done
    }

    /// What is posted next is about the record at `key`, which is there: it is fetched meanwhile.
    pub fn fetch(&self, key: &[u8]) {
        self.store.fetch(key);
    }

    /// Applies the first action, under the guards, and if that takes effect the others.
    #[cold]
    fn try_one_by_one(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        context: &Context,
    ) -> Result<(), ErrorKind> {
        let mut done = Ok(());
        for (index, action) in operation.actions.iter().enumerate() {
            let mut alone = Operation::new(operation.partition, [action.clone()]);
            alone.seq = operation.seq;
            if index == 0 {
                alone.guards.clone_from(&operation.guards);
                self.try_posted(client, &alone, context)?;
            } else {
                done = done.and(self.try_posted(client, &alone, context));
            }
        }
        done
    }

    fn try_posted(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        context: &Context,
    ) -> Result<(), ErrorKind> {
        check::check(operation)
            .and_then(|()| self.try_change(client, context, operation, &mut NoGrants, None))
            .map_err(|failure| failure.kind)
    }

    /// Holds are taken and released last, once nothing can fail any more.
    fn ask(
        &mut self,
        client: ClientId,
        context: &Context,
        operation: &Operation<'_>,
    ) -> Result<Outputs, Failure> {
        check::check(operation)?;
        self.admit(context, operation)?;
        let shows = self.shows;
        let mut run = self.run((client, true), context);
        run.shows = shows;
        let mut outputs = Outputs::new();
        let mut holds = 0;
        for (index, action) in operation.actions.iter().enumerate() {
            let output = match action {
                Action::Hold { key, .. } => {
                    holds += 1;
                    run.check_hold(key, holds).map(|()| ActionOutput::Number(0))
                }
                Action::Release { .. } => Ok(ActionOutput::Number(0)),
                _ => run.ask(action),
            };
            outputs.push(output.map_err(|kind| Failure::new(kind, index))?);
        }
        for (index, action) in operation.actions.iter().enumerate() {
            if matches!(action, Action::Hold { .. } | Action::Release { .. }) {
                outputs[index] = run.ask(action).map_err(|kind| Failure::new(kind, index))?;
            }
        }
        if shows {
            show::found(&*self.store, operation, &outputs);
        }
        Ok(outputs)
    }

    fn mutate(
        &mut self,
        client: ClientId,
        context: &Context,
        operation: &Operation<'_>,
        grants: &mut dyn Grants,
    ) -> Result<Outputs, Failure> {
        check::check(operation)?;
        let (seq, answered_below) = (operation.seq, context.answered_below);
        if seq == Seq(0) {
            return Err(Failure::new(ErrorKind::Invalid, 0));
        }
        if !self.follows {
            self.sessions.hear(client, answered_below);
        }
        match self.sessions.look_up(client, seq, context.is_retry) {
            Known::New => {}
            Known::Applied(Applied { results: Err((kind, index)), .. }) => {
                return Err(self.refused(operation, (*kind, *index), context));
            }
            Known::Refused(kind, index) => {
                return Err(self.refused(operation, (kind, index), context));
            }
            Known::Applied(Applied { version, results: Ok(results), .. }) => {
                let (version, results) = (*version, results.clone());
                return self.replay(client, context, operation, version, &results);
            }
            Known::Lost => return Err(Failure::new(ErrorKind::SessionLost, 0)),
            Known::Behind => return Err(Failure::new(ErrorKind::Busy, 0)),
        }
        if self.shows {
            show::expect(&*self.store, operation);
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
        context: &Context,
    ) -> Failure {
        let index = usize::from(index);
        match kind {
            ErrorKind::Conflict => {
                guard::broken(&*self.store, operation, index, context.body_len_max)
            }
            kind => Failure::new(kind, index),
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
        context: &Context,
        operation: &Operation<'_>,
        grants: &mut dyn Grants,
        outputs: Option<&mut Outputs>,
    ) -> Result<(), Failure> {
        self.admit(context, operation)?;
        let mut plan = Plan::new();
        let is_kept = self.follows && self.funds != Funds::Promised;
        let funds = if is_kept { Funds::Kept } else { self.funds };
        let store: &mut dyn RecordStore = &mut *self.store;
        match plan::plan((store, funds), (&self.holds, client), operation, grants, &mut plan) {
            Ok(charge) => self.charge = charge,
            Err(Refusal::Failed(failure)) => return Err(failure),
            Err(Refusal::Short(failure, charge)) => {
                self.short = Some(charge);
                return Err(failure);
            }
        }
        let done = self.change(client, context, operation, &mut plan, outputs);
        self.store.settle();
        done?;
        if self.shows {
            show::made(&*self.store, operation, self.version);
        }
        self.leases.changed(client, operation, context.now);
        Ok(())
    }

    /// Steps 3 and 4.
    fn admit(&self, context: &Context, operation: &Operation<'_>) -> Result<(), Failure> {
        if context.lease_epoch < self.lease_epoch && !only_releases(operation) {
            return Err(Failure::new(ErrorKind::StaleLease, 0));
        }
        guard::check_guards(&*self.store, operation, context.body_len_max)
    }

    /// Step 6. Nothing here can fail unless the store breaks its promise to have set the space aside.
    fn change(
        &mut self,
        client: ClientId,
        context: &Context,
        operation: &Operation<'_>,
        plan: &mut Plan<'_>,
        mut outputs: Option<&mut Outputs>,
    ) -> Result<(), Failure> {
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
                    debug_assert!(false, "planned action {index} failed: {kind:?}");
                    return Err(Failure::new(kind, index));
                }
            }
        }
        Ok(())
    }

    /// Answers a mutation that took effect before. Long values that it read beside are read again, as they are now; a lease that it was
    /// given is the one of then.
    fn replay(
        &mut self,
        client: ClientId,
        context: &Context,
        operation: &Operation<'_>,
        version: Version,
        results: &[Remembered],
    ) -> Result<Outputs, Failure> {
        if results.len() != operation.actions.len() {
            // The client has given one number to two operations.
            return Err(Failure::new(ErrorKind::Invalid, 0));
        }
        let mut run = self.run((client, false), context);
        let mut outputs = Outputs::new();
        for (action, result) in operation.actions.iter().zip(results) {
            outputs.push(match result {
                Remembered::Written { offset, total_len, created } => ActionOutput::Written {
                    version,
                    offset: *offset,
                    total_len: *total_len,
                    created: *created,
                },
                Remembered::Deleted(existed) => ActionOutput::Deleted { existed: *existed },
                Remembered::Number(number) => ActionOutput::Number(*number),
                Remembered::Value { version, total_len, bytes } => ActionOutput::Value {
                    version: *version,
                    total_len: *total_len,
                    pieces: short(bytes).collect(),
                },
                Remembered::Asked => match run.ask(action) {
                    Err(ErrorKind::Corrupt) => return Err(Failure::new(ErrorKind::Corrupt, 0)),
                    found => found.unwrap_or_else(|_| gone()),
                },
            });
        }
        Ok(outputs)
    }

    /// `borrows`: the client is given the leases that it asks for.
    fn run(&mut self, (client, borrows): (ClientId, bool), context: &Context) -> Run<'_> {
        let leases = &mut self.leases;
        Run {
            store: &mut *self.store,
            holds: &mut self.holds,
            client,
            lease_epoch: &mut self.lease_epoch,
            version: self.version,
            body_left: context.body_len_max,
            shows: false,
            touched: self.touched.as_mut(),
            lends_memory: context.lends_memory,
            lender: borrows.then_some(Lender {
                leases,
                client,
                term_max: context.lease_term_max,
                now: context.now,
                is_promised: context.promises_leases,
            }),
        }
    }
}

type Outputs = PerAction<ActionOutput>;

/// The pieces of a short value.
fn short(bytes: &[u8]) -> impl Iterator<Item = Piece> {
    (!bytes.is_empty()).then(|| Piece::Bytes(Bytes::from(bytes))).into_iter()
}

/// What a replayed `Get` finds when the record is no more: no bytes, at no version.
fn gone() -> ActionOutput {
    ActionOutput::Value { version: Version(0), total_len: 0, pieces: SmallVec::new() }
}

/// Whether a refusal is the last word on an operation: its client does not send it again.
const fn is_final(kind: ErrorKind) -> bool {
    use ErrorKind::{Conflict, NoSpace, NotFound, TooLarge, TooManyOpen};
    matches!(kind, Conflict | NoSpace | NotFound | TooLarge | TooManyOpen)
}

/// Whether an operation does nothing but let go, which needs no cached directory.
fn only_releases(operation: &Operation<'_>) -> bool {
    let mut actions = operation.actions.iter();
    actions.all(|action| matches!(action, Action::Release { .. } | Action::Locate { .. }))
}

fn remembered(action: &Action<'_>, output: &ActionOutput) -> Remembered {
    match output {
        ActionOutput::Value { version, total_len, pieces } => {
            let len: usize = pieces.iter().map(Piece::len).sum();
            if len > REMEMBERED_LEN_MAX {
                return Remembered::Asked;
            }
            let mut bytes = Vec::with_capacity(len);
            pieces.iter().for_each(|piece| piece.append_to(&mut bytes));
            Remembered::Value { version: *version, total_len: *total_len, bytes: bytes.into() }
        }
        _ if !action.is_mutation() => Remembered::Asked,
        ActionOutput::Written { offset, total_len, created, .. } => {
            Remembered::Written { offset: *offset, total_len: *total_len, created: *created }
        }
        ActionOutput::Deleted { existed } => Remembered::Deleted(*existed),
        ActionOutput::Number(number) => Remembered::Number(*number),
        ActionOutput::Listing { .. } => Remembered::Asked,
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partition({} records at {})", self.record_count(), self.version)
    }
}
