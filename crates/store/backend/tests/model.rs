//! Record stores against their reference model, while values that were read are held at random,
//! with room and without.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use samite_backend::memory::MemoryBackend;
use samite_backend::null::NullBackend;
use samite_backend::{ArenaExtent, Backend, RecordStore, ValuePiece, ValueView, WriteSource};
use samite_types::{DatasetId, ErrorKind, PartitionId, Result, Version};

#[derive(Clone, Debug)]
enum Op {
    Put {
        key: u8,
        data: Data,
    },
    Write {
        key: u8,
        offset: u32,
        data: Data,
    },
    Truncate {
        key: u8,
        len: u32,
    },
    Delete {
        key: u8,
    },
    /// Reads a record and keeps what was read.
    Hold {
        key: u8,
    },
    /// Lets go of what was held first.
    Release,
}

#[derive(Clone, Debug)]
enum Data {
    Bytes {
        len: u32,
        seed: u8,
    },
    Zeros(u32),
    /// Granted blocks; a fresh one's bytes are whatever they are.
    Blocks(Vec<u32>),
}

fn place() -> impl Strategy<Value = u32> {
    let near =
        prop::sample::select(vec![4, 128, 1024, 3000, 20_000, 32_768, 65_536, 131_072, 300_000]);
    (near, 0..9_u32).prop_map(|(near, off)| near + off - 4)
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(len, seed)| Data::Bytes { len, seed }),
        1 => place().prop_map(Data::Zeros),
        1 => vec(prop_oneof![Just(65_536_u32), 1..65_536_u32], 1..4).prop_map(Data::Blocks),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..4_u8;
    prop_oneof![
        4 => (key(), data()).prop_map(|(key, data)| Op::Put { key, data }),
        4 => (key(), place(), data()).prop_map(|(key, offset, data)| Op::Write { key, offset, data }),
        2 => (key(), place()).prop_map(|(key, len)| Op::Truncate { key, len }),
        1 => key().prop_map(|key| Op::Delete { key }),
        3 => key().prop_map(|key| Op::Hold { key }),
        2 => Just(Op::Release),
    ]
}

/// Granted blocks, each with how much of it is used.
type Blocks = Vec<(ArenaExtent, u32)>;

/// A store, its reference, and the values held of it.
struct Pair<'a> {
    backend: &'a dyn Backend,
    store: Box<dyn RecordStore>,
    reference: BTreeMap<u8, Vec<u8>>,
    held: Vec<(Vec<ValuePiece>, Vec<u8>)>,
}

fn gathered(pieces: &[ValuePiece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pieces.iter().for_each(|piece| piece.append_to(&mut bytes));
    bytes
}

impl Pair<'_> {
    /// Blocks of the given lengths and what is in them; `None` if so many cannot be granted.
    fn granted(&self, lens: &[u32]) -> Option<(Blocks, Vec<u8>)> {
        let extents = self.backend.arena()?.grant(lens.len());
        let blocks: Blocks = extents.into_iter().zip(lens.iter().copied()).collect();
        let bytes =
            blocks.iter().flat_map(|(extent, len)| &extent.as_slice()[..*len as usize]).copied();
        let bytes = bytes.collect();
        (blocks.len() == lens.len()).then_some((blocks, bytes))
    }

    /// Runs `change` with a source made of `data`; returns what was to be stored, if it was.
    fn store(
        &mut self,
        data: &Data,
        change: impl FnOnce(&mut dyn RecordStore, WriteSource<'_>) -> Result<()>,
    ) -> Option<Vec<u8>> {
        let done = |result: Result<()>, bytes| match result {
            Ok(()) => Some(bytes),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                None
            }
        };
        match data {
            Data::Bytes { len, seed } => {
                let bytes: Vec<u8> = (0..*len).map(|at| (at >> 3) as u8 ^ seed).collect();
                done(change(&mut *self.store, WriteSource::Bytes(&bytes)), bytes)
            }
            Data::Zeros(len) => {
                done(change(&mut *self.store, WriteSource::Zeros(*len)), vec![0; *len as usize])
            }
            Data::Blocks(lens) => {
                let (blocks, bytes) = self.granted(lens)?;
                done(change(&mut *self.store, WriteSource::Blocks(blocks)), bytes)
            }
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Put { key, data } => {
                let put = |store: &mut dyn RecordStore, source: WriteSource<'_>| {
                    store.put(&[*key], source, Version(1)).map(drop)
                };
                if let Some(bytes) = self.store(data, put) {
                    self.reference.insert(*key, bytes);
                }
            }
            Op::Write { key, offset, data } => {
                let write = |store: &mut dyn RecordStore, source: WriteSource<'_>| {
                    store.write(&[*key], *offset, source, Version(2)).map(drop)
                };
                if let Some(bytes) = self.store(data, write) {
                    let value = self.reference.entry(*key).or_default();
                    let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                    value.resize(value.len().max(end), 0);
                    value[start..end].copy_from_slice(&bytes);
                }
            }
            Op::Truncate { key, len } => {
                let cut = self.store.truncate(&[*key], *len, Version(3)).expect("truncate");
                assert_eq!(cut.is_some(), self.reference.contains_key(key));
                if let Some(value) = self.reference.get_mut(key) {
                    value.resize(*len as usize, 0);
                }
            }
            Op::Delete { key } => {
                let existed = self.store.delete(&[*key]).expect("delete");
                assert_eq!(existed, self.reference.remove(key).is_some());
            }
            Op::Hold { key } => {
                if let Some((pieces, bytes)) = self.read(*key) {
                    self.held.push((pieces, bytes));
                }
            }
            Op::Release if self.held.is_empty() => {}
            Op::Release => drop(self.held.remove(0)),
        }
    }

    fn read(&self, key: u8) -> Option<(Vec<ValuePiece>, Vec<u8>)> {
        let mut pieces = Vec::new();
        let mut keep = |piece| pieces.push(piece);
        let meta = self.store.read(&[key], 0, u32::MAX, &mut keep).expect("read")?;
        let bytes = gathered(&pieces);
        assert_eq!(meta.len as usize, bytes.len());
        let mut seen = Vec::new();
        let mut see = |stretch: ValueView<'_>| stretch.append_to(&mut seen);
        assert_eq!(self.store.look(&[key], 0, u32::MAX, &mut see).expect("look"), Some(meta));
        assert!(seen == bytes, "other bytes are seen than read");
        Some((pieces, bytes))
    }

    /// Everything reads as the reference says, and what is held reads as it did.
    fn check(&self) {
        let keeps = self.backend.offers().values;
        assert_eq!(self.store.record_count(), self.reference.len() as u64);
        for (key, value) in &self.reference {
            let (_, bytes) = self.read(*key).expect("a record of the reference");
            assert!(if keeps { bytes == *value } else { bytes.len() == value.len() }, "key {key}");
        }
        for (pieces, bytes) in &self.held {
            assert!(gathered(pieces) == *bytes, "what was read has changed");
        }
        assert!(self.backend.usage().used <= self.backend.usage().capacity);
    }
}

fn run(mut backend: Box<dyn Backend>, taken: usize, ops: &[Op]) {
    let elsewhere = backend.arena().map(|arena| arena.grant(taken));
    let store = backend.open(DatasetId(1), PartitionId(1)).expect("open");
    let (reference, held) = (BTreeMap::new(), Vec::new());
    let mut pair = Pair { backend: &*backend, store, reference, held };
    for op in ops {
        pair.run(op);
        pair.check();
    }
    drop(pair);
    drop(elsewhere);
    assert_eq!(backend.usage().used, 0, "something was not given back");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn memory_with_room(ops in vec(op(), 1..50)) {
        run(Box::new(MemoryBackend::new(32 << 20, 1).expect("memory target")), 0, &ops);
    }

    #[test]
    fn memory_without_room(ops in vec(op(), 1..50), taken in 4..14_usize) {
        run(Box::new(MemoryBackend::new(1 << 20, 1).expect("memory target")), taken, &ops);
    }

    #[test]
    fn null(ops in vec(op(), 1..50)) {
        run(Box::new(NullBackend::new(400)), 0, &ops);
    }
}
