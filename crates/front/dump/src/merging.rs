//! The end of a load into other partitions: what was kept until all records are there is put where
//! it belongs. Each step can be done again, and takes what it has dealt with away.

use std::collections::HashMap;

use samite_client::record_placement::RecordPlacement;
use samite_client::scan::{ScanOptions, ScanScope};
use samite_client::{ClientOperation, Dataset};
use samite_types::{Error, ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, Operation, ValueData};

use crate::record_placing::{KEPT, RecordPlacing, own_key};

/// Records that one operation removes, at most.
const REMOVED_MAX: u32 = 4096;
/// Most moves under way.
const MOVES_MAX: usize = 1 << 20;

/// The records that a load has kept for its end.
pub(crate) struct KeptRecords<'d> {
    dataset: &'d Dataset,
    placing: &'d RecordPlacing,
}

/// A record that was kept.
struct KeptRecord {
    /// The key under which it is kept, and its own.
    kept: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'d> KeptRecords<'d> {
    pub(crate) const fn new(dataset: &'d Dataset, placing: &'d RecordPlacing) -> Self {
        Self { dataset, placing }
    }

    /// Puts each where it belongs.
    pub(crate) fn put_in_place(&self) -> Result<()> {
        let mut moves: Option<HashMap<u64, Vec<u8>>> = None;
        for partition in (0..self.dataset.partitions()).map(PartitionId) {
            let options = ScanOptions {
                prefix: vec![KEPT],
                scope: ScanScope::Partition(partition),
                ..ScanOptions::default()
            };
            let scan = self.dataset.scan(&options)?;
            let mut cursor = scan.cursor();
            let mut group: Vec<KeptRecord> = Vec::new();
            while cursor.advance()? {
                let record = cursor.record();
                let Some(key) = own_key(record.key) else { continue };
                if group.first().is_some_and(|first| first.key != key) {
                    self.place_group(partition, &group, &mut moves)?;
                    group.clear();
                }
                let (kept, key) = (record.key.to_vec(), key.to_vec());
                group.push(KeptRecord { kept, key, value: record.value.to_vec() });
            }
            self.place_group(partition, &group, &mut moves)?;
        }
        Ok(())
    }

    /// Puts the records of one key in place that are kept in `partition`.
    fn place_group(
        &self,
        partition: PartitionId,
        group: &[KeptRecord],
        moves: &mut Option<HashMap<u64, Vec<u8>>>,
    ) -> Result<()> {
        let Some(first) = group.first() else { return Ok(()) };
        let mut actions: Vec<Action<'_>> = Vec::new();
        let merged;
        match self.placing.placement(&first.key) {
            Some(RecordPlacement::PerPartition) => {
                let values = group.iter().map(|one| one.value.as_slice());
                merged = samite_fs::merged_record(&first.key, values);
                let data = ValueData::Inline(&merged);
                actions.push(Action::Put { key: &first.key, data });
            }
            Some(RecordPlacement::Verdict) => {
                if moves.is_none() {
                    *moves = Some(self.moves()?);
                }
                self.place_verdict(first, moves.as_ref())?;
            }
            Some(RecordPlacement::Draft { chunks: (kind, id) }) => {
                self.remove_chunks(&[&kind[..], id].concat())?;
            }
            _ => return Err(Error::new(ErrorKind::Internal, "a record was kept for nothing")),
        }
        actions.extend(group.iter().map(|one| Action::Delete { key: &one.kept }));
        self.run(Operation::new(partition, actions))
    }

    fn run(&self, operation: Operation<'_>) -> Result<()> {
        let outcome = self.dataset.execute_one(operation.into())?;
        outcome.into_results("put a record of the dump in place").map(drop)
    }

    /// Destinations of the moves under way, by their tokens.
    fn moves(&self) -> Result<HashMap<u64, Vec<u8>>> {
        let options = ScanOptions { prefix: b"i".to_vec(), ..ScanOptions::default() };
        let scan = self.dataset.scan(&options)?;
        let mut cursor = scan.cursor();
        let mut moves = HashMap::new();
        while cursor.advance()? && moves.len() < MOVES_MAX {
            if let Some((token, key)) = samite_fs::move_of_intent(cursor.record().value) {
                moves.insert(token, key.to_vec());
            }
        }
        Ok(moves)
    }

    /// Puts a verdict beside the destination of its move. One of no move is for nobody.
    fn place_verdict(
        &self,
        verdict: &KeptRecord,
        moves: Option<&HashMap<u64, Vec<u8>>>,
    ) -> Result<()> {
        let token = samite_fs::token_of_verdict(&verdict.key);
        let destination = token.and_then(|token| moves?.get(&token));
        let placement = destination.and_then(|key| self.placing.placement(key));
        let partition = placement.and_then(|placement| self.placing.partition(&placement));
        let Some(partition) = partition else { return Ok(()) };
        let data = ValueData::Inline(&verdict.value);
        self.run(Operation::new(partition, [Action::Put { key: &verdict.key, data }]))
    }

    /// Removes the chunks of a draft, wherever they are.
    fn remove_chunks(&self, prefix: &[u8]) -> Result<()> {
        let mut left: Vec<PartitionId> = (0..self.dataset.partitions()).map(PartitionId).collect();
        while !left.is_empty() {
            let remove = |partition: &PartitionId| {
                let remove = Action::DeletePrefix { prefix, limit: REMOVED_MAX };
                ClientOperation::new(Operation::new(*partition, [remove]))
            };
            let mut operations: Vec<ClientOperation<'_>> = left.iter().map(remove).collect();
            let outcomes =
                self.dataset.execute(&mut operations, self.dataset.client().deadline())?;
            drop(operations);
            let mut more = Vec::new();
            for (partition, outcome) in left.into_iter().zip(outcomes) {
                let results = outcome.into_results("remove chunks of a draft")?;
                if results.first().ok_or(ErrorKind::Internal)?.number()? > 0 {
                    more.push(partition);
                }
            }
            left = more;
        }
        Ok(())
    }
}
