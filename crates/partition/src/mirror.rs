//! Mirroring: a partition together with its part in its mirror group. Pure, like the partition: time and messages come in, effects go out.
//!
//! **The log.** The primary applies an operation at once and writes down what happened as an *entry* ([`samite_wire::peer::Entry`]):
//! the operation as it came, where the log was before, and what the partition's version and the outcome were after. Members apply entries in
//! order; each says where the log must stand and what must come of it, so a member cannot skip one, apply one twice, or drift apart
//! without noticing. Positions count on over terms, and each term begins with an entry of its own ([`Event::Opened`](samite_wire::peer::Event::Opened)): a
//! member that has applied that one has applied all before it, and only then its acknowledgements count.
//!
//! **Committed** is what every *required* member has applied. Required are the members that the map calls good, and those that were just
//! brought up to date. A reply may leave when what it has seen is committed: [`Mirrored::apply`] gives a [`Ticket`],
//! and [`Mirrored::standing`] says what has become of it. The primary never stops requiring a member on its own: it asks ([`Effect::Missed`]) until a map
//! says that the member is not good any more, and no report is under way that it is up to date ([`Mirrored::missed_answered`]).
//!
//! **Terms.** A message of an older term is refused, and the refusal names the newer one: who gets it is not the primary any more.
//! There is one primary for a term, and it needs the acknowledgement of its successor, which refuses: so nothing is committed in a
//! term once the next has begun. The first version of a term is above all of the term before ([`Version::before`](samite_types::Version::before)).
//! Before a new primary begins its term it takes over what other good members have applied and it has not (`elect.rs`).
//!
//! **Resync** (`source.rs`, `sink.rs`): the member is walked through the keys, says what it lacks, and gets it; what changes behind the
//! walk goes to a queue; when that is short, the rest of it and the partition's state are sent, and the member follows the log from there.
//!
//! **Leases on records** are volatile. That a primary gives some is an entry; a new primary that finds it lets no mutation through until
//! they must have run out.
//!
//! **The write-ahead log** of a durable dataset is one more follower ([`Mirrored::set_logs`]): it is given each entry
//! ([`Effect::Append`]) and says how far they are on flash ([`Mirrored::logged`]).
//!
//! **Room** (`room.rs`): members keep space for what the primary decides on, so that a change fits on all members that count, or takes effect nowhere.
//!
//! **Reads by others** than the primary are lent to them (`reads.rs`), where a dataset wants that.
//!
//! Messages may be lost, come twice, late and in any order. Messages to send may be dropped as well: they are sent again.

mod beside;
mod checkpoint;
mod digest;
mod effects;
mod elect;
mod log;
mod lost;
mod packet;
mod payload;
mod peers;
mod primary;
mod reads;
mod repair;
mod resync;
mod room;
mod rules;
mod scrub;
mod secondary;
mod sink;
mod source;
mod steady;

use std::fmt;
use std::time::Duration;

use samite_types::{ClientId, DatasetId, Epoch, ErrorKind, PartitionId, Position, TargetId, Term};
use samite_wire::control::{Consistency, Group, Member};
use samite_wire::op::Operation;
use samite_wire::peer::{Envelope, Message, Point};

use crate::{Context, Grants, Outcome, Partition};
pub(crate) use digest::Digest;
pub use effects::Effect;
use effects::Effects;
use elect::Elect;
use log::Log;
pub use log::LogEntry;
pub use packet::Packet;
use primary::Primary;
use reads::Reads;
use repair::Damage;
pub(crate) use room::Funds;
use room::Kept;
pub use rules::Rules;
pub use scrub::ScrubStep;
use sink::Sink;
pub use source::{Batch, Copied, Source};

/// Times of mirroring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// What was not answered is sent again after this.
    pub retransmit: Duration,
    /// A member that did not answer for so long is reported.
    pub missed: Duration,
    /// It is reported again after this, as long as no map says so: the first time may be too early for that to count.
    pub report_again: Duration,
    /// Longest lease on a record; a new primary lets nothing be changed for so long, if leases were given.
    pub record_lease_max: Duration,
    /// A member that could not be brought up to date is tried again after this.
    pub resync_again: Duration,
    /// For so long a member may answer reads when it has asked.
    pub read_lease: Duration,
}

impl Times {
    /// What is used unless said otherwise.
    pub const DEFAULT: Self = Self {
        retransmit: Duration::from_millis(100),
        missed: Duration::from_millis(600),
        report_again: Duration::from_millis(150),
        record_lease_max: Duration::from_millis(250),
        resync_again: Duration::from_secs(1),
        read_lease: Duration::from_millis(250),
    };
}

impl Default for Times {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A mirror group, as a map has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Epoch of the map.
    pub epoch: Epoch,
    /// Term of the group.
    pub term: Term,
    /// Members; the first is the primary.
    pub members: Vec<Member>,
    /// Incarnation of each member's node: after another one the member has nothing of what it acknowledged.
    pub incarnations: Vec<u64>,
    /// What the partition held died with its nodes, and nobody has taken note of it: see [`ErrorKind::Lost`].
    pub is_lost: bool,
}

impl View {
    /// The view of `group` in the map of `epoch`, which gives the incarnation of each target's node.
    #[must_use]
    pub fn new(epoch: Epoch, group: &Group, incarnation_of: impl Fn(TargetId) -> u64) -> Self {
        let members = group.members.clone();
        let incarnations = members.iter().map(|member| incarnation_of(member.target)).collect();
        Self { epoch, term: group.term, members, incarnations, is_lost: false }
    }
}

/// When an operation is applied.
#[derive(Clone, Copy, Debug, Default)]
pub struct At {
    /// The time, on a clock that never goes back. Of no meaning to a partition that is [plain](Mirrored::is_plain).
    pub now: Duration,
    /// The lease of the node runs until then.
    pub lease_until: Duration,
}

/// What a reply has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Which time that this member was primary.
    reign: u32,
    /// The last entry that the reply has seen.
    pub position: Position,
}

/// What has become of a [`Ticket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// The reply may leave.
    Committed,
    /// Not yet.
    Waiting,
    /// This member is not the primary any more: whether the operation lives nobody here knows. The answer is [`ErrorKind::StaleMap`].
    Lost,
}

/// What this member is to the group.
#[derive(Debug)]
enum Role {
    /// Not a member, or not told yet, or deposed and not told by whom.
    Out,
    /// It applies what the primary sends.
    Secondary,
    /// It is to decide, and takes over what others have first.
    Elect(Box<Elect>),
    /// It decides on the order.
    Primary(Box<Primary>),
}

/// One partition of one dataset on one target, with its part in the mirror group. See the [module](self).
///
/// The driver calls, in any order: [`configure`](Self::configure) with each new map, before anything is reported by it; [`apply`](Self::apply);
/// [`receive`](Self::receive); [`tick`](Self::tick) at [`next_tick`](Self::next_tick); [`resync_step`](Self::resync_step) as fast as it
/// lets resync be; and after each of them takes all [effects](Self::next_effect).
///
/// A group is shared by the partitions of all datasets of one redundancy: a member of it is good when the partitions of all of them are up to
/// date ([`Mirrored::ready`]), and needs a resync when one of them has missed something.
pub struct Mirrored {
    partition: Partition,
    dataset: DatasetId,
    id: PartitionId,
    me: TargetId,
    epoch: Epoch,
    /// Newest term that is known.
    term: Term,
    /// More than one member: nothing is served without a lease.
    is_group: bool,
    role: Role,
    /// Counts the times that this member has become primary.
    reign: u32,
    /// Where the log stands here.
    at: Point,
    /// The records and `at` belong together; else this member has to be brought up to date.
    is_fit: bool,
    /// Its records may differ from those of others at the same version: a resync copies all.
    is_doubtful: bool,
    /// See [`View::is_lost`].
    is_lost: bool,
    /// A primary may have given leases on records.
    lends: bool,
    /// Whom this member follows.
    primary: TargetId,
    log: Log,
    /// A checkpoint under way.
    checkpoint: Option<Source>,
    /// Entries are written to a log on flash, and are there up to this one.
    logged: Option<Position>,
    sink: Option<Sink>,
    damage: Damage,
    /// Entries come from a log on flash: nobody is to be told anything.
    is_replaying: bool,
    /// The last try to bring this member up to date, and its term.
    last_attempt: (Term, u32),
    reads: Reads,
    kept: Kept,
    effects: Effects,
    times: Times,
    rules: Rules,
}

impl Mirrored {
    /// The part of target `me` in the group of `partition`. It knows no group yet: [`Mirrored::configure`] tells.
    #[must_use]
    pub fn new(partition: Partition, dataset: DatasetId, id: PartitionId, me: TargetId) -> Self {
        Self {
            partition,
            dataset,
            id,
            me,
            epoch: Epoch(0),
            term: Term(0),
            is_group: true,
            role: Role::Out,
            reign: 0,
            at: Point::default(),
            is_fit: true,
            is_doubtful: false,
            is_lost: false,
            lends: false,
            primary: TargetId(0),
            log: Log::default(),
            checkpoint: None,
            logged: None,
            sink: None,
            damage: Damage::default(),
            is_replaying: false,
            last_attempt: (Term(0), 0),
            reads: Reads::default(),
            kept: Kept::default(),
            effects: Effects::default(),
            times: Times::DEFAULT,
            rules: Rules::default(),
        }
    }

    /// The same with other times.
    #[must_use]
    pub const fn with_times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    /// The same, wrong in some way. For tests of tests.
    #[doc(hidden)]
    #[must_use]
    pub const fn with_rules(mut self, rules: Rules) -> Self {
        self.partition.set_forgets(rules.forgets_results);
        self.rules = rules;
        self
    }

    /// Where its log stands, as a write-ahead log and its checkpoint gave it back; before the first [`Mirrored::configure`].
    #[must_use]
    pub const fn recovered(mut self, at: Point, lends: bool) -> Self {
        self.at = at;
        self.lends = lends;
        self
    }

    /// The partition.
    #[must_use]
    pub const fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The partition, for what is no part of the order of operations: leases on records, and what is shown.
    pub const fn partition_mut(&mut self) -> &mut Partition {
        &mut self.partition
    }

    /// This target.
    #[must_use]
    pub const fn me(&self) -> TargetId {
        self.me
    }

    /// Newest term that is known.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// Where its log stands.
    #[must_use]
    pub const fn point(&self) -> Point {
        self.at
    }

    /// Whether this member follows the log; otherwise it has to be brought up to date.
    #[must_use]
    pub const fn is_fit(&self) -> bool {
        self.is_fit
    }

    /// Whether the map names it the primary, and it does not decide yet: it takes over what others have first.
    #[must_use]
    pub const fn is_elect(&self) -> bool {
        matches!(self.role, Role::Elect(_))
    }

    /// Whether it decides on the order of operations.
    #[must_use]
    pub const fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary(_))
    }

    /// Whether leases on records may be out, of this primary or one before it.
    #[must_use]
    pub const fn lends(&self) -> bool {
        self.lends
    }

    /// Whether it is alone in its group and nothing is logged: then an operation is applied, and that is all.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => primary.is_plain,
            _ => false,
        }
    }

    /// Entries are written to a log on flash from here on; all up to now are there, or in its checkpoint.
    pub fn set_logs(&mut self) {
        self.logged = Some(self.at.position);
        self.refresh_plain();
    }

    /// The log on flash has all entries up to `position`.
    pub fn logged(&mut self, position: Position) {
        let Some(logged) = &mut self.logged else { return };
        if position <= *logged || position > self.at.position {
            return;
        }
        *logged = position;
        match self.role {
            Role::Primary(_) => self.advance(),
            Role::Secondary if self.is_fit && self.at.term == self.term => self.acknowledge(),
            _ => {}
        }
    }

    /// The next effect. All are to be taken after each call.
    pub fn next_effect(&mut self) -> Option<Effect> {
        let envelope = self.envelope(TargetId(0));
        self.effects.next(&envelope)
    }

    /// Takes up a newer map.
    pub fn configure(&mut self, view: &View, now: Duration) {
        self.see_time(now);
        if view.epoch <= self.epoch {
            return;
        }
        self.epoch = view.epoch;
        self.is_lost = view.is_lost;
        // Somebody of a newer term has been heard of: this map is behind.
        if view.term < self.term {
            return;
        }
        if view.term > self.term {
            self.sink = None;
        }
        self.is_group = view.members.len() > 1;
        match view.members.iter().position(|member| member.target == self.me) {
            // One that was started again leads nothing while a good one is waited for: its log is another in the same term.
            Some(0) if view.members[0].consistency == Consistency::Good => self.named(view, now),
            Some(_) => {
                self.depose();
                self.term = view.term;
                self.role = Role::Secondary;
            }
            None => {
                self.depose();
                self.term = view.term;
                self.role = Role::Out;
            }
        }
    }

    /// Stops being the primary, or about to be it.
    fn depose(&mut self) {
        match self.role {
            Role::Out | Role::Secondary => return,
            Role::Elect(_) => return self.role = Role::Out,
            Role::Primary(_) => self.role = Role::Out,
        }
        // What waits is lost, also when this member answers reads later.
        self.reign += 1;
        self.reads.deposed();
        self.partition.set_follows(true);
        self.partition.set_notes_touched(false);
        self.effects.deposed();
    }

    /// Applies an operation of a client. The reply may leave when the ticket, if there is one, is [committed](Self::standing).
    ///
    /// Failures beside those of [`Partition::apply`]: `StaleMap` (another member is the primary), `Unavailable` (the lease of the node is over,
    /// too much waits for members, or leases of an earlier primary may run: see [`Mirrored::mutable_at`]); this sending did nothing then, an
    /// earlier one may have.
    pub fn apply(
        &mut self,
        client: ClientId,
        context: &Context,
        operation: &Operation<'_>,
        grants: &mut dyn Grants,
        at: At,
    ) -> (Outcome, Option<Ticket>) {
        match &self.role {
            Role::Primary(primary) if primary.is_plain => {
                let outcome = self.apply_unless_lost(client, context, operation, grants);
                (self.unless_damaged(outcome, at.now), None)
            }
            Role::Primary(_) => self.serve(client, context, operation, grants, at),
            Role::Secondary if self.rules.reads_anywhere && !operation.is_mutation() => {
                (self.partition.apply(client, context, operation, grants), None)
            }
            Role::Elect(_) => (refused(ErrorKind::Unavailable), None),
            _ if self.may_read(operation) => self.read(client, context, operation, at),
            _ => (refused(ErrorKind::StaleMap), None),
        }
    }

    /// What is said instead, when an operation has found what it reads damaged.
    fn unless_damaged(&mut self, outcome: Outcome, now: Duration) -> Outcome {
        match outcome {
            Outcome::Failed { kind: ErrorKind::Corrupt, .. } => {
                refused(self.note_damage(Vec::new(), now))
            }
            outcome => outcome,
        }
    }

    /// What has become of a ticket.
    #[must_use]
    pub fn standing(&self, ticket: Ticket) -> Standing {
        let committed = match &self.role {
            Role::Primary(primary) => primary.committed,
            Role::Secondary => self.reads.committed(self.term),
            Role::Out | Role::Elect(_) => return Standing::Lost,
        };
        match ticket.position <= committed {
            _ if ticket.reign != self.reign => Standing::Lost,
            true => Standing::Committed,
            false => Standing::Waiting,
        }
    }

    /// A message from another member.
    pub fn receive(&mut self, envelope: &Envelope, message: &Message<'_>, now: Duration) {
        if envelope.to != self.me {
            return;
        }
        self.see_time(now);
        let heeds_terms = !self.rules.ignores_terms;
        let is_old = envelope.term < self.term;
        if is_old && heeds_terms {
            if speaks_as_primary(message) {
                self.answer(envelope.from, &Message::Stale);
            }
            return;
        }
        if envelope.term > self.term && (heeds_terms || !self.is_primary()) {
            self.depose();
            self.term = envelope.term;
            self.sink = None;
        }
        let from = envelope.from;
        match message {
            Message::Fetch { key } => self.fetch_asked(from, key, now),
            Message::Fetched { record } => self.fetched(from, record, now),
            Message::AskTail { have } => self.asked_tail(from, *have),
            Message::Tail(entry) => self.take_over(from, entry, now),
            Message::TailEnd { upto } => self.tail_ends(from, *upto, now),
            _ if !speaks_as_primary(message) => self.answered(from, message, now),
            _ if !self.is_primary() || !heeds_terms => self.follow(from, message, now),
            _ => {}
        }
    }

    fn envelope(&self, to: TargetId) -> Envelope {
        Envelope {
            dataset: self.dataset,
            partition: self.id,
            from: self.me,
            to,
            term: self.term,
            epoch: self.epoch,
        }
    }

    /// Sends a small message.
    fn answer(&mut self, to: TargetId, message: &Message<'_>) {
        let envelope = self.envelope(to);
        self.effects.send(Packet::new(&envelope, message));
    }

    fn refresh_plain(&mut self) {
        let is_logged = self.logged.is_some();
        if let Role::Primary(primary) = &mut self.role {
            primary.is_plain = !self.is_group && !is_logged && !self.reads.is_on;
            if primary.is_plain {
                // What members had room for counts no more, and is not looked at again.
                self.partition.set_funds(Funds::Own);
            }
        }
    }
}

/// Whether only a primary says so.
const fn speaks_as_primary(message: &Message<'_>) -> bool {
    matches!(
        message,
        Message::Entry(_)
            | Message::Begin { .. }
            | Message::Compare { .. }
            | Message::Records { .. }
            | Message::State { .. }
            | Message::LendReads { .. }
            | Message::AskRoom { .. }
            | Message::AskTail { .. }
    )
}

fn refused(kind: ErrorKind) -> Outcome {
    refused_at(kind, 0)
}

fn refused_at(kind: ErrorKind, index: u16) -> Outcome {
    Outcome::Failed { kind, index, current: None }
}

impl fmt::Debug for Mirrored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Out => "out",
            Role::Secondary => "secondary",
            Role::Elect(_) => "elect",
            Role::Primary(_) => "primary",
        };
        let Self { dataset, id, me, term, at, .. } = self;
        write!(f, "{dataset} {id} on {me}: {role} of {term}, {} at {}", at.position, at.version)
    }
}
