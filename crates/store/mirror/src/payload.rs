//! The data of an operation on its way to other members: without a copy where the record has it in
//! a place of its own.

use samite_backend::{ArenaExtent, ValuePiece};
use samite_partition::{ActionOutput, BlockGrants, Partition};
use samite_wire::op::{Action, BlockRef, Operation, ValueData};
use samite_wire::peer::data_of;

/// Data of at least so many bytes is sent from where the record has it; less is copied, so that the
/// next change of the record need not go elsewhere.
const READ_BACK_MIN: usize = 16 << 10;

/// The data of an operation that was just applied to `partition`, in order; `taken`: those of the
/// blocks that were copied. `None`: the store does not give back the bytes of blocks that it has
/// just taken, and nobody else has them.
pub(crate) fn of_applied(
    partition: &Partition,
    operation: &Operation<'_>,
    outputs: &[ActionOutput],
    taken: Vec<ValuePiece>,
) -> Option<Vec<ValuePiece>> {
    let is_single = changes_once(operation);
    let mut taken = taken.into_iter();
    let mut payload = Vec::new();
    for (index, data) in data_of(operation) {
        let is_copied = match data {
            ValueData::Inline(bytes) => !is_single || bytes.len() < READ_BACK_MIN,
            _ => !is_single,
        };
        match data {
            ValueData::Inline(bytes) if is_copied => {
                payload.push(ValuePiece::Bytes((*bytes).into()))
            }
            ValueData::Blocks(blocks) if is_copied => {
                payload.extend(taken.by_ref().take(blocks.len()))
            }
            _ => match (read_back(partition, (operation, index), outputs, data.len()), data) {
                (Some(pieces), _) => payload.extend(pieces),
                (None, ValueData::Inline(bytes)) => {
                    payload.push(ValuePiece::Bytes((*bytes).into()));
                }
                (None, _) => return None,
            },
        }
    }
    Some(payload)
}

/// The bytes that action `index` has just stored, where they are now. `None`: they cannot be read.
fn read_back(
    partition: &Partition,
    (operation, index): (&Operation<'_>, usize),
    outputs: &[ActionOutput],
    len: usize,
) -> Option<Vec<ValuePiece>> {
    let offset = match outputs.get(index) {
        Some(ActionOutput::Written { offset, .. }) => *offset,
        _ => 0,
    };
    let (Action::Put { key, .. } | Action::Write { key, .. } | Action::Append { key, .. }) =
        &operation.actions[index]
    else {
        return None;
    };
    let (mut found, mut pieces) = (0, Vec::new());
    let read = partition.read_range(key, (offset, len as u32), &mut |piece| {
        found += piece.len();
        pieces.push(match piece {
            ValuePiece::Zeros(len) => ValuePiece::Bytes(vec![0; len as usize].as_slice().into()),
            piece => piece,
        });
    });
    (read.is_ok() && found == len).then_some(pieces)
}

/// Whether only one action changes records: then the value that it stored is there when the
/// operation is done.
fn changes_once(operation: &Operation<'_>) -> bool {
    operation.actions.iter().filter(|action| action.is_mutation()).count() == 1
}

/// Grants, and copies of the values in the blocks that are taken from them, where they cannot be
/// read back.
pub(crate) struct GrantCopies<'g> {
    grants: &'g mut dyn BlockGrants,
    copies: bool,
    pub(crate) taken: Vec<ValuePiece>,
}

impl<'g> GrantCopies<'g> {
    pub(crate) fn new(grants: &'g mut dyn BlockGrants, operation: &Operation<'_>) -> Self {
        Self { grants, copies: !changes_once(operation), taken: Vec::new() }
    }
}

impl BlockGrants for GrantCopies<'_> {
    fn take(&mut self, block: &BlockRef) -> Option<ArenaExtent> {
        let extent = self.grants.take(block)?;
        if self.copies {
            let len = extent.len().min(block.len as usize);
            self.taken.push(ValuePiece::Bytes(extent.as_slice()[..len].into()));
        }
        Some(extent)
    }

    fn put_back(&mut self, extent: ArenaExtent) {
        self.grants.put_back(extent);
    }
}
