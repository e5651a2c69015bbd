//! Listing over all partitions, in key order.
//!
//! Each partition lists its own keys in order; the client merges them. A cursor is nothing but the
//! last key seen, so a listing can be taken up again at any time, by anybody, over any number of
//! nodes.

use std::collections::VecDeque;

use samite_types::{Deadline, Error, ErrorKind, PartitionId, Result, Version};
use samite_wire::limits::LIST_ENTRIES_MAX;
use samite_wire::op::{Action, Operation};

use crate::outcome::{OwnedEntry, OwnedResult};
use crate::{ClientOperation, Dataset};

/// Most listings in one call: their entries share the body of a reply, and each must have room for
/// at least one.
const LISTINGS_MAX: usize = 128;

/// Fewest entries to ask a partition for.
const ENTRIES_MIN: usize = 16;

/// A kind of records whose keys are a prefix and a name.
#[derive(Clone, Copy, Debug)]
pub struct RecordStream<'s> {
    /// Prefix.
    pub kind_prefix: &'s [u8],
    /// Bytes of each value to fetch.
    pub value_len_max: u32,
}

/// One record found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRecord {
    /// Name: its key without the prefix of its kind.
    pub key: Vec<u8>,
    /// Which kind it is: its index in the streams that were asked for.
    pub stream: usize,
    /// Version of the record.
    pub version: Version,
    /// Whole length of its value, in bytes.
    pub total_len: u32,
    /// The first bytes of the value, [`RecordStream::value_len_max`] at most.
    pub value: Box<[u8]>,
}

/// The records of one partition of one kind, as far as they are known.
struct ListingSource {
    partition: PartitionId,
    stream: usize,
    prefix: Vec<u8>,
    /// Bytes of the prefix that every record of the kind has.
    kind_len: usize,
    /// Key of the last record fetched.
    after: Vec<u8>,
    fetched: VecDeque<OwnedEntry>,
    complete: bool,
    /// There may have been more, which died with a node.
    is_lost: bool,
}

impl ListingSource {
    /// The name of a record: its key without the prefix of its kind.
    fn name<'e>(&self, entry: &'e OwnedEntry) -> &'e [u8] {
        &entry.key[self.kind_len..]
    }
}

/// At most `limit` records of the given kinds whose names start with `prefix` and come after
/// `after` (empty: from the first), by name; and whether there is nothing behind them. They are
/// those of one partition, or of all (`None`). A name that two kinds have comes once.
///
/// # Errors
/// `Lost`: partitions are lost, and the others have nothing more; as [`Dataset::execute`].
pub fn list_sorted(
    dataset: &Dataset,
    partition: Option<PartitionId>,
    streams: &[RecordStream<'_>],
    prefix: &[u8],
    after: &[u8],
    limit: usize,
) -> Result<(Vec<FoundRecord>, bool)> {
    let partitions = match partition {
        Some(only) => vec![only],
        None => (0..dataset.partitions()).map(PartitionId).collect(),
    };
    let mut sources: Vec<ListingSource> = Vec::with_capacity(partitions.len() * streams.len());
    for partition in &partitions {
        for (index, stream) in streams.iter().enumerate() {
            let after =
                if after.is_empty() { vec![] } else { [stream.kind_prefix, after].concat() };
            sources.push(ListingSource {
                partition: *partition,
                stream: index,
                prefix: [stream.kind_prefix, prefix].concat(),
                kind_len: stream.kind_prefix.len(),
                after,
                fetched: VecDeque::new(),
                complete: false,
                is_lost: false,
            });
        }
    }
    let share = (limit / partitions.len() * 2).max(ENTRIES_MIN).min(limit.max(1));
    let deadline = dataset.client().deadline();
    let mut found: Vec<FoundRecord> = Vec::new();
    while found.len() < limit {
        fetch(dataset, streams, &mut sources, share, deadline)?;
        // Every source has its next record at hand, or none at all: the least of them is the next.
        let next = sources.iter_mut().filter(|source| !source.fetched.is_empty()).min_by(|a, b| {
            a.fetched
                .front()
                .map(|next| a.name(next))
                .cmp(&b.fetched.front().map(|next| b.name(next)))
        });
        let Some(source) = next else { break };
        let Some(entry) = source.fetched.pop_front() else { break };
        let key = source.name(&entry);
        if found.last().is_none_or(|last| last.key != key) {
            let (key, stream) = (key.to_vec(), source.stream);
            let OwnedEntry { version, total_len, value, .. } = entry;
            found.push(FoundRecord { key, stream, version, total_len, value });
        }
    }
    let has_lost = sources.iter().any(|source| source.is_lost);
    if has_lost && found.is_empty() && limit > 0 {
        return Err(Error::new(ErrorKind::Lost, format!("list: {}", ErrorKind::Lost.words())));
    }
    let complete = sources.iter().all(|source| source.complete && source.fetched.is_empty());
    // Where something is lost, a client that asks for names after the last one is told so.
    Ok((found, complete && !has_lost))
}

/// Asks every partition whose records are used up for more.
fn fetch(
    dataset: &Dataset,
    streams: &[RecordStream<'_>],
    sources: &mut [ListingSource],
    share: usize,
    deadline: Deadline,
) -> Result<()> {
    let mut empty: Vec<&mut ListingSource> =
        sources.iter_mut().filter(|source| source.fetched.is_empty() && !source.complete).collect();
    for wave in empty.chunks_mut(LISTINGS_MAX) {
        let mut ops: Vec<ClientOperation<'_>> = wave
            .iter()
            .map(|source| {
                let action = Action::List {
                    prefix: &source.prefix,
                    after: &source.after,
                    limit: (share as u32).min(LIST_ENTRIES_MAX),
                    reverse: false,
                    value_len_max: streams[source.stream].value_len_max,
                };
                ClientOperation::new(Operation::new(source.partition, [action]))
            })
            .collect();
        let outcomes = dataset.execute(&mut ops, deadline)?;
        drop(ops);
        for (source, outcome) in wave.iter_mut().zip(outcomes) {
            if outcome.failure().is_some_and(|failure| failure.kind == ErrorKind::Lost) {
                (source.complete, source.is_lost) = (true, true);
                continue;
            }
            let mut results = outcome.into_results("list")?;
            let Some(OwnedResult::Listing { complete, entries }) = results.pop() else {
                return Err(ErrorKind::Corrupt.into());
            };
            let entries = entries.to_vec();
            if entries.iter().any(|entry| entry.key.len() < source.kind_len)
                || (entries.is_empty() && !complete)
            {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "list: a partition's answer makes no sense",
                ));
            }
            source.complete = complete;
            if let Some(last) = entries.last() {
                source.after = last.key.to_vec();
            }
            source.fetched = entries.into();
        }
    }
    Ok(())
}
