//! Mirroring: a partition together with its part in its mirror group. Pure, like the partition:
//! time and messages come in, effects go out. The data of durable partitions on flash are in
//! [`durable`].
//!
//! **The log.** The primary applies an operation at once and writes it down as an *entry*
//! ([`samite_wire::peer::PartitionLogEntry`]): the operation as it came, where the log was before,
//! and what the partition's version and the outcome were after. Members apply entries in order;
//! each says where the log must stand and which result it must have, so a member cannot skip one,
//! apply one twice, or drift apart without noticing. Positions count on over terms, and each term
//! begins with an entry of its own ([`Event::Opened`](samite_wire::peer::EntryEvent::Opened)): a
//! member that has applied it has all before it, and only then its acknowledgements count.
//!
//! **Committed** is what every *required* member has applied. Required are the members that the map
//! calls good, and those that were just brought up to date. A reply may leave when what it has seen
//! is committed: [`MirroredPartition::apply`] gives a [`CommitPosition`], and
//! [`MirroredPartition::commit_status`] gives its status. The primary never stops requiring a
//! member on its own: it asks ([`MirrorEffect::Missed`]) until a map says that the member is not
//! good any more, and no report is under way that it is up to date
//! ([`MirroredPartition::missed_answered`]).
//!
//! **Terms.** A message of an older term is refused, and the refusal names the newer one: a member
//! that gets it is not the primary any more. There is one primary for a term, and it needs the
//! acknowledgement of its successor, which refuses: so nothing is committed in a term once the next
//! has begun. The first version of a term is above all of the term before
//! ([`Version::before`](samite_types::Version::before)). Before a new primary begins its term it
//! takes over what other good members have applied and it has not (`member/catching_up.rs`).
//!
//! **Resync** (`copy_source.rs`, `member/sink.rs`): the member is walked through the keys, says
//! which records it lacks, and gets them; keys that change behind the walk go to a queue; when that
//! is short, the rest of it and the partition's state are sent, and the member follows the log from
//! there.
//!
//! **Delegations** are volatile. That a primary grants some is an entry; a new primary that finds
//! it lets no mutation through until they must have run out.
//!
//! **The write-ahead log** of a durable dataset is one more follower
//! ([`MirroredPartition::set_logs`]): it is given each entry ([`MirrorEffect::Append`]) and says
//! how far they are on flash ([`MirroredPartition::logged`]).
//!
//! **Room** (`room.rs`): members keep space for the changes that the primary decides on, so
//! that a change fits on all members that count, or takes effect nowhere.
//!
//! **Reads by others** than the primary need a read lease (`member/reads.rs`), if the dataset wants
//! that.
//!
//! Messages may be lost, come twice, late and in any order. Messages to send may be dropped as
//! well: they are sent again.

pub mod durable;

mod catching_up;
mod commit;
mod copy_source;
mod damage;
mod digest;
mod effects;
mod group_view;
mod log;
mod member;
mod member_state;
mod packet;
mod payload;
mod peers;
mod read_leases;
mod resync_sink;
mod resync_source;
mod role;
mod room;
mod rules;
mod steady;
mod times;

pub use commit::{ApplyTime, CommitPosition, CommitStatus};
pub use copy_source::{CopiedRecord, CopyBatch, CopySource};
pub use effects::MirrorEffect;
pub use group_view::GroupView;
pub use log::LogEntry;
pub use member::scrub::ScrubStep;
pub use member::{MemberCommit, MirroredPartition};
pub use packet::PeerPacket;
pub use rules::MirrorRules;
pub use times::MirrorTimes;
