//! The subject: a partition over the memory backend, driven with the reference's operations.

use std::sync::Arc;

use samite_backend::memory::MemoryBackend;
use samite_backend::{Arena, ArenaExtent, Backend};
use samite_partition::{
    ActionOutput, AppliedOutcome, BlockGrants, NoGrants, Partition, RequestContext,
};
use samite_types::{ClientId, DatasetId, Epoch, PartitionId, Seq};
use samite_wire::op::{
    Action, BlockRef, Guard, ListedValue, ListingEntries, Operation, ReplyEncoder, ValueData,
};

use super::reference::{Act, Bytes, Cond, End, Op, Out, holders};

pub struct Subject {
    pub backend: MemoryBackend,
    pub partition: Partition,
    granted: Granted,
}

/// Blocks granted to the one connection.
struct Granted {
    arena: Arc<Arena>,
    blocks: Vec<ArenaExtent>,
}

impl BlockGrants for Granted {
    fn take(&mut self, block: &BlockRef) -> Option<ArenaExtent> {
        let is_named = |extent: &ArenaExtent| {
            extent.offset() == block.offset && extent.generation() == block.generation
        };
        let at = self.blocks.iter().position(is_named)?;
        Some(self.blocks.swap_remove(at))
    }

    fn put_back(&mut self, extent: ArenaExtent) {
        self.blocks.push(extent);
    }
}

impl Granted {
    /// Fills a granted block as a client does: through the memory file.
    fn fill(&mut self, bytes: &[u8]) -> Option<BlockRef> {
        let extent = self.arena.grant(1).pop()?;
        let block = extent.block_ref(0..bytes.len() as u32);
        self.blocks.push(extent);
        let written = rustix::io::pwrite(self.arena.fd(), bytes, block.offset).expect("pwrite");
        assert_eq!(written, bytes.len());
        Some(block)
    }

    /// `None`: the target is too full to grant the blocks that an operation needs.
    fn data<'a>(&mut self, bytes: &'a Bytes) -> Option<ValueData<'a>> {
        Some(match bytes {
            Bytes::Inline(bytes) => ValueData::Inline(bytes),
            Bytes::Zeros(len) => ValueData::Zeros(*len),
            Bytes::Blocks(blocks) => ValueData::Blocks(
                blocks.iter().map(|block| self.fill(block)).collect::<Option<_>>()?,
            ),
        })
    }

    fn action<'a>(&mut self, act: &'a Act) -> Option<Action<'a>> {
        Some(match act {
            Act::Get { key, offset, len } => Action::Get { key, offset: *offset, len: *len },
            Act::Put { key, data } => Action::Put { key, data: self.data(data)? },
            Act::Delete { key } => Action::Delete { key },
            Act::DeletePrefix { prefix, limit } => Action::DeletePrefix { prefix, limit: *limit },
            Act::Write { key, offset, data } => {
                Action::Write { key, offset: *offset, data: self.data(data)? }
            }
            Act::Append { key, data, len_max } => {
                Action::Append { key, data: self.data(data)?, len_max: *len_max }
            }
            Act::Truncate { key, len } => Action::Truncate { key, len: *len },
            Act::Add { key, offset, delta } => Action::Add { key, offset: *offset, delta: *delta },
            Act::Max { key, offset, value } => Action::Max { key, offset: *offset, value: *value },
            Act::Advance { key, offset, count, to, slack } => {
                Action::Advance { key, offset: *offset, count: *count, to: *to, slack: *slack }
            }
            Act::List { prefix, after, limit, reverse, value_len_max } => Action::List {
                prefix,
                after,
                limit: *limit,
                reverse: *reverse,
                value_len_max: *value_len_max,
            },
            Act::Punch { key, offset, len } => Action::Punch { key, offset: *offset, len: *len },
            Act::RaiseLease { epoch } => Action::RaiseLease { epoch: Epoch(*epoch) },
            Act::Hold { key, token } => Action::Hold { key, token: *token },
            Act::Release { token } => Action::Release { token: *token },
            Act::Locate { token } => Action::Locate { token: *token },
            Act::Detach { key, to } => Action::Detach { key, to },
            Act::Holders { key } => Action::Holders { key },
            Act::SetHolders { key, holders: list } => {
                Action::SetHolders { key, holders: holders(list).leak() }
            }
            Act::MoveHolds { from, to } => Action::MoveHolds { from, to },
        })
    }
}

fn guard(cond: &Cond) -> Guard<'_> {
    match cond {
        Cond::Exists(key) => Guard::Exists(key),
        Cond::Absent(key) => Guard::Absent(key),
        Cond::VersionIs(key, version) => Guard::VersionIs(key, (*version).into()),
        Cond::BytesAre(key, offset, bytes) => Guard::BytesAre { key, offset: *offset, bytes },
        Cond::LenAtMost(key, len) => Guard::LenAtMost(key, *len),
        Cond::PrefixEmpty(prefix) => Guard::PrefixEmpty(prefix),
    }
}

impl Subject {
    pub fn new(capacity_bytes: u64) -> Self {
        let mut backend = MemoryBackend::new(capacity_bytes, 1).expect("memory target");
        let arena = backend.arena().expect("arena");
        let store = backend.open(DatasetId(1), PartitionId(0)).expect("open");
        let granted = Granted { arena, blocks: Vec::new() };
        Self { backend, partition: Partition::new(store), granted }
    }

    /// `None`: no blocks can be granted, so that the operation cannot even be asked for.
    pub fn apply(
        &mut self,
        client: ClientId,
        seq: u64,
        (answered_below, is_retry): (u64, bool),
        lease: u64,
        op: &Op,
    ) -> Option<End> {
        let actions =
            op.acts.iter().map(|act| self.granted.action(act)).collect::<Option<Vec<_>>>();
        let mut operation = match actions {
            Some(actions) => Operation::new(PartitionId(0), actions).reveal(op.reveal_len),
            None => {
                self.granted.blocks.clear();
                return None;
            }
        };
        operation.guards.extend(op.guards.iter().map(guard));
        if op.is_mutation() {
            operation.seq = Seq(seq);
        }
        let context = RequestContext {
            now: std::time::Duration::ZERO,
            delegation_term_max: std::time::Duration::ZERO,
            reads_in_place: !op.is_mutation() && seq.is_multiple_of(2),
            grants_all_delegations: false,
            answered_below: Seq(answered_below),
            is_retry,
            name_space_generation: Epoch(lease),
            body_len_max: 1 << 20,
        };
        let granted = self.granted.blocks.len();
        let outcome = self.partition.apply(client, &context, &operation, &mut self.granted);
        if matches!(outcome, AppliedOutcome::Failed { .. }) {
            assert_eq!(self.granted.blocks.len(), granted, "a failed operation kept a block");
        }
        // The client gives back the blocks that it did not use.
        self.granted.blocks.clear();
        let resolves = !op.is_mutation();
        let mut resolve = |entries: &[u8], count| {
            if resolves { self.resolved(entries, count, &context) } else { entries.to_vec() }
        };
        Some(comparable(outcome, &mut resolve))
    }

    /// Entries of a listing with the values in them that they refer to or leave out.
    fn resolved(&mut self, entries: &[u8], count: u32, context: &RequestContext) -> Vec<u8> {
        let listing = ListingEntries::again(true, count, entries);
        let mut resolved = Vec::new();
        for entry in listing.entries() {
            let mut value = Vec::new();
            match entry.value {
                ListedValue::Bytes(bytes) => value.extend_from_slice(bytes),
                ListedValue::Blocks(blocks) => {
                    for block in blocks.iter() {
                        let mut bytes = vec![0; block.len as usize];
                        let read =
                            rustix::io::pread(self.granted.arena.fd(), &mut bytes, block.offset);
                        assert_eq!(read.expect("pread"), bytes.len());
                        value.append(&mut bytes);
                    }
                }
                ListedValue::Left => {
                    assert!(entry.total_len > 8192, "{} bytes have room", entry.total_len);
                    let get = Operation::get(PartitionId(0), entry.key);
                    let got = self.partition.apply(ClientId(9), context, &get, &mut NoGrants);
                    let AppliedOutcome::Done(outputs) = got else { panic!("{got:?}") };
                    let [ActionOutput::Value { pieces, .. }] = &*outputs else {
                        panic!("{outputs:?}");
                    };
                    pieces.iter().for_each(|piece| piece.append_to(&mut value));
                }
            }
            let (key, version, len) = (entry.key, entry.version, entry.total_len);
            ReplyEncoder::encode_list_entry(&mut resolved, key, version, len, &value);
        }
        resolved
    }
}

fn comparable(outcome: AppliedOutcome, resolve: &mut dyn FnMut(&[u8], u32) -> Vec<u8>) -> End {
    match outcome {
        AppliedOutcome::Failed { kind, index, current } => Err((kind, index, current)),
        AppliedOutcome::Done(outputs) => Ok(outputs
            .into_iter()
            .map(|output| match output {
                ActionOutput::Value { version, total_len, pieces } => {
                    let mut bytes = Vec::new();
                    pieces.iter().for_each(|piece| piece.append_to(&mut bytes));
                    Out::Value(version.get(), total_len, bytes)
                }
                ActionOutput::Written { version, offset, total_len, created } => {
                    Out::Written(version.get(), offset, total_len, created)
                }
                ActionOutput::Deleted { existed } => Out::Deleted(existed),
                ActionOutput::Number(number) => Out::Number(number),
                ActionOutput::Listing { complete, count, entries } => {
                    Out::Listing(complete, count, resolve(&entries, count))
                }
            })
            .collect()),
    }
}
