//! Records of a dataset.

use std::ops::ControlFlow;
use std::vec::IntoIter;

use samite_client::Dataset;
use samite_client::scan::{ScanOptions, ScanScope};
use samite_kv::{KvView, StoredRecord};
use samite_types::{NodeId, PartitionId, Result};

use super::{InputPiece, InputRecord, WorkerPlace};
use crate::messages::KeyRange;
use crate::tasks::TaskState;

/// Records after which the task looks whether it is to end.
const CHECK_INTERVAL: u32 = 256;

/// See the module.
pub(super) struct RecordInput {
    dataset: Dataset,
    node: NodeId,
    is_raw: bool,
    range: KeyRange,
    partitions: IntoIter<(u64, PartitionId)>,
    partition: Option<PartitionId>,
}

impl RecordInput {
    pub(super) fn new(
        place: &WorkerPlace,
        dataset: Dataset,
        is_raw: bool,
        (range, partitions): (KeyRange, Vec<(u64, PartitionId)>),
    ) -> Self {
        let (node, partitions) = (place.node, partitions.into_iter());
        Self { dataset, node, is_raw, range, partitions, partition: None }
    }

    /// Number of the first piece that is left.
    pub(super) fn first_piece(&self) -> u64 {
        self.partitions.as_slice().first().map_or(0, |(number, _)| *number)
    }

    pub(super) fn next_piece(&mut self, state: &TaskState) -> Option<InputPiece> {
        let next = self.partitions.next();
        self.partition = next.map(|(_, partition)| partition);
        let (number, _) = next?;
        state.begin_piece(number);
        Some(InputPiece::Partition)
    }

    pub(super) fn visit(
        &mut self,
        state: &TaskState,
        visit: &mut dyn FnMut(InputRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(partition) = self.partition.take() else { return Ok(()) };
        let named = |error: samite_types::Error| {
            error.context(format_args!("{partition} of dataset {:?}", self.dataset.spec().name))
        };
        // Keys of the view have another byte in front; those of groups their placement key.
        let prefix = if self.is_raw { self.range.prefix.clone() } else { Vec::new() };
        let scope = ScanScope::Partition(partition);
        let options = ScanOptions { prefix, values: true, scope, from: None };
        let scan = self.dataset.scan(&options)?;
        let mut cursor = scan.cursor();
        let is_local = self.dataset.node_of(partition)? == self.node;
        let mut seen = 0_u32;
        while cursor.advance().map_err(named)? {
            seen = seen.wrapping_add(1);
            if seen.is_multiple_of(CHECK_INTERVAL) {
                state.check()?;
            }
            let record = cursor.record();
            let len = (record.key.len() + record.value.len()) as u64;
            state.add_input(len, is_local);
            let flow = self.show(state, (record.key, record.value), visit).map_err(|error| {
                named(
                    error.context(format_args!("record {:?}", samite_client::key_text(record.key))),
                )
            })?;
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Shows one record, if it is one of those that are wanted. `Break`: none will be.
    fn show(
        &self,
        state: &TaskState,
        (raw, value): (&[u8], &[u8]),
        visit: &mut dyn FnMut(InputRecord<'_>) -> Result<()>,
    ) -> Result<ControlFlow<()>> {
        let record = if self.is_raw { StoredRecord::Value(raw) } else { StoredRecord::of_key(raw) };
        let (group, key, is_large) = match record {
            StoredRecord::Value(key) => (None, key, false),
            StoredRecord::Large(key) => (None, key, true),
            StoredRecord::GroupValue(group, key) => (Some(group), key, false),
            StoredRecord::GroupLarge(group, key) => (Some(group), key, true),
            StoredRecord::Part => return Ok(ControlFlow::Continue(())),
        };
        if !self.range.has(key) {
            // Keys come in order only where nothing stands in front of them.
            let is_behind = self.range.to.as_ref().is_some_and(|to| key >= to.as_slice());
            let is_over = self.is_raw && is_behind;
            return Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
        }
        state.add_record();
        if !is_large {
            visit(InputRecord { key, value })?;
            return Ok(ControlFlow::Continue(()));
        }
        let view = KvView::new(self.dataset.clone());
        let view = group.map_or(Ok(view.clone()), |place| view.group(place))?;
        // `None`: it was removed meanwhile.
        if let Some(whole) = view.get(key)? {
            state.add_input(whole.bytes.len() as u64, false);
            visit(InputRecord { key, value: &whole.bytes })?;
        }
        Ok(ControlFlow::Continue(()))
    }
}
