//! Keys and values of 100 bytes.

use std::collections::VecDeque;

use samite_client::{ClientOperation, Dataset, TransportKind};
use samite_kv::KvView;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::op::Operation;

use crate::measure::{Workload, steps};
use crate::place::BenchPlace;
use crate::store::RecordHost;

/// Keys in use.
pub const KEYS: usize = 10_000;
/// Requests in flight when pipelined.
pub const IN_FLIGHT: usize = 64;
/// Windows that those are sent in: while the node works on one, the client works on the other.
pub const WINDOWS: usize = 2;
/// Operations of one batch.
pub const BATCH: usize = 1000;
pub const VALUE_LEN: usize = 100;
/// Step through the keys: prime to their number, so that all are met, far from one another.
const STRIDE: usize = 7919;

/// Operations on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyVerb {
    Get,
    Put,
}

impl KeyVerb {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
        }
    }
}

/// All keys, in an order that no cache foresees, and one value.
pub struct KeySet {
    keys: Vec<[u8; 16]>,
    at: usize,
    value: [u8; VALUE_LEN],
}

impl KeySet {
    pub fn new() -> Self {
        let keys = (0..KEYS)
            .map(|number| {
                let mut key = *b"bench:0000000000";
                key[6..].copy_from_slice(format!("{number:010}").as_bytes());
                key
            })
            .collect();
        Self { keys, at: 0, value: [0x5a; VALUE_LEN] }
    }

    /// The next key, and a value for it.
    pub fn next(&mut self) -> (&[u8; 16], &[u8; VALUE_LEN]) {
        self.at = (self.at + STRIDE) % KEYS;
        (&self.keys[self.at], &self.value)
    }
}

/// Where and how.
#[derive(Clone, Copy, Debug)]
pub struct KeySetting {
    pub verb: KeyVerb,
    pub transport: TransportKind,
    pub backend: &'static str,
    pub host: RecordHost,
}

/// One request in flight, through the key-value view.
pub fn one(setting: KeySetting, place: &mut BenchPlace) -> Result<Box<dyn Workload>> {
    let KeySetting { transport, backend, host, .. } = setting;
    let dataset = place.store(host)?.dataset("bench-kv", transport, backend, host)?;
    let kv = KvView::new(dataset);
    let mut keys = KeySet::new();
    // A durable put waits for the disk: a few keys do.
    let known = if host == RecordHost::Durable { 0 } else { KEYS };
    for _ in 0..known {
        let (key, value) = keys.next();
        kv.put(key, value)?;
    }
    Ok(match setting.verb {
        KeyVerb::Get => steps(1, 0, move || match kv.get(keys.next().0)? {
            Some(value) if value.bytes.len() == VALUE_LEN => Ok(()),
            _ => Err(Error::new(ErrorKind::Corrupt, "get: not the value that was put")),
        }),
        KeyVerb::Put => steps(1, 0, move || {
            let (key, value) = keys.next();
            kv.put(key, value).map(drop)
        }),
    })
}

/// A dataset with all keys in it as plain records.
fn records(setting: KeySetting, place: &mut BenchPlace) -> Result<(Dataset, KeySet)> {
    let KeySetting { transport, backend, host, .. } = setting;
    let dataset = place.store(host)?.dataset("bench-records", transport, backend, host)?;
    let mut keys = KeySet::new();
    for _ in 0..KEYS / BATCH {
        batch(&dataset, KeyVerb::Put, &mut keys)?;
    }
    Ok((dataset, keys))
}

/// Many operations in flight, sent a window at a time.
pub fn pipelined(setting: KeySetting, place: &mut BenchPlace) -> Result<Box<dyn Workload>> {
    let (dataset, mut keys) = records(setting, place)?;
    let window = IN_FLIGHT / WINDOWS;
    let mut flying = VecDeque::new();
    Ok(steps(window as u64, 0, move || {
        while flying.len() < WINDOWS {
            let chosen = choose(&mut keys, window);
            let operations = operations(&dataset, setting.verb, &chosen);
            flying.push_back(dataset.submit(&operations)?);
        }
        let Some(pending) = flying.pop_front() else { return Ok(()) };
        all_done(&pending.wait()?)
    }))
}

/// Batches of operations on different keys.
pub fn batches(setting: KeySetting, place: &mut BenchPlace) -> Result<Box<dyn Workload>> {
    let (dataset, mut keys) = records(setting, place)?;
    Ok(steps(BATCH as u64, 0, move || batch(&dataset, setting.verb, &mut keys)))
}

fn batch(dataset: &Dataset, verb: KeyVerb, keys: &mut KeySet) -> Result<()> {
    let chosen = choose(keys, BATCH);
    let mut ops: Vec<ClientOperation<'_>> =
        operations(dataset, verb, &chosen).into_iter().map(ClientOperation::new).collect();
    all_done(&dataset.execute(&mut ops, dataset.client().deadline())?)
}

fn choose(keys: &mut KeySet, count: usize) -> Vec<([u8; 16], [u8; VALUE_LEN])> {
    (0..count)
        .map(|_| {
            let (key, value) = keys.next();
            (*key, *value)
        })
        .collect()
}

fn operations<'a>(
    dataset: &Dataset,
    verb: KeyVerb,
    chosen: &'a [([u8; 16], [u8; VALUE_LEN])],
) -> Vec<Operation<'a>> {
    chosen
        .iter()
        .map(|(key, value)| {
            let partition = dataset.partition_of(key);
            match verb {
                KeyVerb::Get => Operation::get(partition, key),
                KeyVerb::Put => Operation::put(partition, key, value),
            }
        })
        .collect()
}

fn all_done(outcomes: &[samite_client::OwnedOutcome]) -> Result<()> {
    match outcomes.iter().find_map(samite_client::OwnedOutcome::failure) {
        None => Ok(()),
        Some(failure) => Err(failure.clone().into_error("batch")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_are_met_before_one_comes_again() {
        let mut keys = KeySet::new();
        let mut met: Vec<_> = choose(&mut keys, KEYS).into_iter().map(|(key, _)| key).collect();
        met.sort_unstable();
        met.dedup();
        assert_eq!(met.len(), KEYS);
    }
}
