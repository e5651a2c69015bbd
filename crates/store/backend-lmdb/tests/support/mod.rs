//! Record stores that remember against their reference model: random changes, batches and restarts,
//! scans both ways, keys that share long beginnings, and a map that fails.
#![allow(dead_code, reason = "not every test file uses all of it")]

pub mod crash;

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use samite_backend::ordered::{OrderedMap, OrderedTarget, RowBounds};
use samite_backend::{
    Backend, CommitTarget, RecordStore, StoredPartition, WriteBatch, WriteSource,
};
use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Result, Version};

/// Opens the map in a directory.
pub type OpenMap = fn(&Path) -> Arc<dyn OrderedMap>;

pub const PLACE: StoredPartition = (DatasetId(3), PartitionId(9));
const CAPACITY: u64 = 64 << 20;

/// A map whose call of some number fails.
#[derive(Debug)]
pub struct FailingMap {
    map: Arc<dyn OrderedMap>,
    /// Calls that are left until one fails; 0: none does.
    left: Arc<AtomicU64>,
}

impl FailingMap {
    fn call(&self) -> Result<()> {
        let one_less = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(1) => Err(Error::new(ErrorKind::Io, "the call that fails")),
            _ => Ok(()),
        }
    }
}

impl OrderedMap for FailingMap {
    fn get(&self, place: StoredPartition, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.call()?;
        self.map.get(place, key, see)
    }

    fn scan(
        &self,
        place: StoredPartition,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.call()?;
        self.map.scan(place, bounds, reverse, visit)
    }

    fn commit(&self, batches: &[WriteBatch]) -> Result<()> {
        self.call()?;
        self.map.commit(batches)
    }

    fn stored(&self) -> Result<Vec<StoredPartition>> {
        self.map.stored()
    }

    fn has_room(&self) -> bool {
        self.map.has_room()
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    Put {
        key: u16,
        len: u32,
        fill: u8,
    },
    Zeros {
        key: u16,
        at: u32,
        len: u32,
    },
    Write {
        key: u16,
        at: u32,
        len: u32,
        fill: u8,
    },
    Truncate {
        key: u16,
        len: u32,
    },
    Delete {
        key: u16,
    },
    Rename {
        key: u16,
        to: u16,
    },
    /// A batch is taken, and committed at once or later.
    Take {
        commits: bool,
    },
    /// The batch under way is committed, and the store is told.
    Commit,
    /// The target is opened anew, with the batch under way committed or not.
    Reopen {
        commits: bool,
    },
    Scan {
        prefix: u16,
        cut: u8,
        after: u16,
        reverse: bool,
        value_len: u32,
    },
    Read {
        key: u16,
        at: u32,
        len: u32,
    },
}

/// A key: of a few lengths around those at which LMDB's keys are cut, with few different bytes.
pub fn key_of(number: u16) -> Vec<u8> {
    const LENS: [usize; 12] = [1, 2, 7, 478, 479, 480, 481, 500, 959, 960, 1440, 4160];
    let len = LENS[number as usize % LENS.len()];
    let mut key = vec![b'k'; len];
    let rest = number as usize / LENS.len();
    // Some differ at the end, some in the middle, some by a zero or the greatest byte.
    let at = [len - 1, len / 2, len.saturating_sub(2), 0][rest % 4];
    key[at] = [b'k', 0, u8::MAX, b'a'][rest / 4 % 4];
    key
}

fn keys() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 0..8_u16, 2 => 0..192_u16]
}

fn lens() -> impl Strategy<Value = u32> {
    let near = prop::sample::select(vec![8, 1024, 4096, 65_536, 131_072, 200_000_u32]);
    prop_oneof![2 => 0..1500_u32, 1 => (near, 0..9_u32).prop_map(|(near, off)| near + off - 4)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (keys(), lens(), any::<u8>()).prop_map(|(key, len, fill)| Step::Put { key, len, fill }),
        2 => (keys(), lens(), lens()).prop_map(|(key, at, len)| Step::Zeros { key, at, len }),
        6 => (keys(), lens(), lens(), any::<u8>())
            .prop_map(|(key, at, len, fill)| Step::Write { key, at, len, fill }),
        3 => (keys(), lens()).prop_map(|(key, len)| Step::Truncate { key, len }),
        2 => keys().prop_map(|key| Step::Delete { key }),
        2 => (keys(), keys()).prop_map(|(key, to)| Step::Rename { key, to }),
        2 => any::<bool>().prop_map(|commits| Step::Take { commits }),
        2 => Just(Step::Commit),
        1 => any::<bool>().prop_map(|commits| Step::Reopen { commits }),
        3 => (keys(), any::<u8>(), keys(), any::<bool>(), prop_oneof![Just(0), 1..2000_u32])
            .prop_map(|(prefix, cut, after, reverse, value_len)| {
                Step::Scan { prefix, cut, after, reverse, value_len }
            }),
        3 => (keys(), lens(), lens()).prop_map(|(key, at, len)| Step::Read { key, at, len }),
    ]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..60)
}

fn bytes_of(len: u32, fill: u8) -> Vec<u8> {
    // Some end in zeros, some are zeros.
    let byte = |at: u32| match fill % 4 {
        0 => 0,
        1 if at > len / 2 => 0,
        _ => (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ fill,
    };
    (0..len).map(byte).collect()
}

type Records = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// The records as they should be, in each layer.
#[derive(Clone, Debug, Default)]
struct Model {
    now: Records,
    under_way: Option<(Records, u64)>,
    committed: Option<(Records, u64)>,
}

/// A store that remembers, and its model.
pub struct Pair<'a> {
    dir: &'a Path,
    open: OpenMap,
    left: Arc<AtomicU64>,
    target: Option<Arc<OrderedTarget>>,
    store: Option<Box<dyn RecordStore>>,
    batch: Option<WriteBatch>,
    model: Model,
    versions: u64,
}

fn open(dir: &Path, map: OpenMap, left: &Arc<AtomicU64>) -> Arc<OrderedTarget> {
    let map = FailingMap { map: map(dir), left: Arc::clone(left) };
    OrderedTarget::open(Arc::new(map), CAPACITY).expect("open")
}

impl<'a> Pair<'a> {
    pub fn new(dir: &'a Path, map: OpenMap) -> Self {
        let left = Arc::new(AtomicU64::new(0));
        let target = open(dir, map, &left);
        let store = Some(target.backend().open(PLACE.0, PLACE.1).expect("open"));
        let model = Model::default();
        Self { dir, open: map, left, target: Some(target), store, batch: None, model, versions: 0 }
    }

    fn store(&mut self) -> &mut dyn RecordStore {
        &mut **self.store.as_mut().expect("a store")
    }

    fn target(&self) -> &Arc<OrderedTarget> {
        self.target.as_ref().expect("a target")
    }

    fn seen(&self) -> &dyn RecordStore {
        &**self.store.as_ref().expect("a store")
    }

    fn commit(&mut self) -> Result<()> {
        let Some(batch) = &self.batch else { return Ok(()) };
        self.target().commit(std::slice::from_ref(batch))?;
        self.batch = None;
        self.model.committed = self.model.under_way.take();
        self.store().commits().expect("it remembers").committed();
        Ok(())
    }

    /// Carries a step out; an error leaves all as it was.
    fn run(&mut self, step: &Step) -> Result<()> {
        let number = self.versions + 1;
        let version = Version(number);
        match step {
            Step::Put { key, len, fill } => {
                let (key, bytes) = (key_of(*key), bytes_of(*len, *fill));
                self.store().put(&key, WriteSource::Bytes(&bytes), version)?;
                self.model.now.insert(key, (number, bytes));
            }
            Step::Zeros { key, at, len } => {
                let key = key_of(*key);
                self.store().write(&key, *at, WriteSource::Zeros(*len), version)?;
                self.model_write(key, number, *at, &vec![0; *len as usize]);
            }
            Step::Write { key, at, len, fill } => {
                let (key, bytes) = (key_of(*key), bytes_of(*len, *fill));
                self.store().write(&key, *at, WriteSource::Bytes(&bytes), version)?;
                self.model_write(key, number, *at, &bytes);
            }
            Step::Truncate { key, len } => {
                let key = key_of(*key);
                let cut = self.store().truncate(&key, *len, version)?;
                let record = self.model.now.get_mut(&key);
                assert_eq!(cut.is_some(), record.is_some());
                if let Some(record) = record {
                    record.0 = number;
                    record.1.resize(*len as usize, 0);
                }
            }
            Step::Delete { key } => {
                let key = key_of(*key);
                let was_there = self.store().delete(&key)?;
                assert_eq!(was_there, self.model.now.remove(&key).is_some());
            }
            Step::Rename { key, to } => {
                let (key, to) = (key_of(*key), key_of(*to));
                if to.len() <= key.len() {
                    let was_there = self.store().rename(&key, &to, version)?;
                    let record = self.model.now.remove(&key);
                    assert_eq!(was_there, record.is_some());
                    if let Some((_, value)) = record {
                        self.model.now.insert(to, (number, value));
                    }
                }
            }
            Step::Take { commits } => {
                if self.batch.is_none() {
                    let state = number.to_le_bytes();
                    let records = self.store().commits().expect("it remembers");
                    let batch = records.take_batch(Some(&state));
                    self.batch = Some(batch);
                    self.model.under_way = Some((self.model.now.clone(), number));
                }
                if *commits {
                    self.versions = number;
                    self.commit()?;
                }
            }
            Step::Commit => self.commit()?,
            Step::Reopen { commits } => self.reopen(*commits)?,
            Step::Scan { .. } | Step::Read { .. } => self.look(step)?,
        }
        self.versions = number;
        Ok(())
    }

    fn model_write(&mut self, key: Vec<u8>, version: u64, at: u32, bytes: &[u8]) {
        let record = self.model.now.entry(key).or_default();
        let (start, end) = (at as usize, at as usize + bytes.len());
        record.0 = version;
        record.1.resize(record.1.len().max(end), 0);
        record.1[start..end].copy_from_slice(bytes);
    }

    /// Drops everything, and opens the target again.
    fn reopen(&mut self, commits: bool) -> Result<()> {
        if commits && let Some(batch) = &self.batch {
            // The store is not told.
            self.target().commit(std::slice::from_ref(batch))?;
            self.model.committed = self.model.under_way.take();
        }
        self.model.under_way = None;
        (self.batch, self.store) = (None, None);
        let failing = self.left.swap(0, Ordering::Relaxed);
        // The directory is in use until the last of it is dropped.
        self.target = None;
        self.target = Some(open(self.dir, self.open, &self.left));
        let mut store = self.target().backend().open(PLACE.0, PLACE.1)?;
        let state = store.commits().expect("it remembers").state()?;
        self.store = Some(store);
        let (records, number) = match &self.model.committed {
            Some((records, number)) => (records.clone(), Some(*number)),
            None => (Records::new(), None),
        };
        self.model.now = records;
        assert_eq!(state, number.map(|number| number.to_le_bytes().to_vec()), "state");
        self.left.store(failing, Ordering::Relaxed);
        Ok(())
    }

    fn look(&self, step: &Step) -> Result<()> {
        match step {
            Step::Scan { prefix, cut, after, reverse, value_len } => {
                let (prefix, after) = (key_of(*prefix), key_of(*after));
                let prefix = &prefix[..prefix.len() * usize::from(*cut) / 255];
                let after = if after.len() == 2 { &[][..] } else { &after[..] };
                let mut found = Vec::new();
                self.seen().scan(prefix, after, *reverse, *value_len, &mut |record| {
                    let head = record.value.to_vec();
                    found.push((record.key.to_vec(), record.meta.version.get(), head));
                    ControlFlow::Continue(())
                })?;
                let within = |key: &[u8]| {
                    let beyond = if *reverse { key < after } else { key > after };
                    key.starts_with(prefix) && (after.is_empty() || beyond)
                };
                let head = |value: &[u8]| value[..value.len().min(*value_len as usize)].to_vec();
                let records = self.model.now.iter().filter(|(key, _)| within(key));
                let mut right: Vec<_> = records
                    .map(|(key, (version, value))| (key.clone(), *version, head(value)))
                    .collect();
                if *reverse {
                    right.reverse();
                }
                assert!(found == right, "{step:?} gives other records");
            }
            Step::Read { key, at, len } => {
                let key = key_of(*key);
                let mut bytes = Vec::new();
                let meta =
                    self.seen().read(&key, *at, *len, &mut |piece| piece.append_to(&mut bytes))?;
                let Some((version, value)) = self.model.now.get(&key) else {
                    assert_eq!(meta, None);
                    return Ok(());
                };
                let meta = meta.expect("a record of the model");
                assert_eq!((meta.version.get(), meta.len as usize), (*version, value.len()));
                let start = value.len().min(*at as usize);
                let end = value.len().min(*at as usize + *len as usize);
                assert!(bytes == value[start..end], "{step:?} gives other bytes");
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything is as the model says.
    fn check(&self) {
        let all = Step::Scan { prefix: 0, cut: 0, after: 1, reverse: false, value_len: 1 << 20 };
        self.look(&all).expect("scan");
        assert_eq!(self.seen().record_count(), self.model.now.len() as u64);
    }
}

/// Runs steps in a new directory.
pub fn run(map: OpenMap, steps: &[Step]) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::new(dir.path(), map);
    for step in steps {
        pair.run(step).expect("a step");
    }
    pair.check();
    for commits in [true, false] {
        pair.run(&Step::Take { commits }).expect("take");
        pair.run(&Step::Reopen { commits }).expect("reopen");
        pair.check();
    }
    for key in 0..192 {
        pair.run(&Step::Delete { key }).expect("delete");
    }
    assert_eq!(pair.target().backend().usage().used, 0, "something is charged for nothing");
    pair.run(&Step::Take { commits: true }).expect("take");
    drop(pair);
    let all = (Bound::Unbounded, Bound::Unbounded);
    let mut count = 0;
    let mut visit = |_: &[u8], _: &[u8]| {
        count += 1;
        ControlFlow::Continue(())
    };
    map(dir.path()).scan(PLACE, all, false, &mut visit).expect("scan");
    assert_eq!(count, 1, "rows of records are left over");
}

/// Runs steps while calls of the map fail, every `nth`: an error changes nothing, and what failed
/// works when it is tried again.
pub fn run_failing(map: OpenMap, steps: &[Step], nth: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::new(dir.path(), map);
    for step in steps {
        pair.left.store(nth, Ordering::Relaxed);
        let done = pair.run(step);
        let has_failed = pair.left.swap(0, Ordering::Relaxed) == 0;
        match done {
            Ok(()) => assert!(
                !has_failed || matches!(step, Step::Reopen { .. }),
                "{step:?}: an error was lost"
            ),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{step:?}: {error}");
                pair.check();
                pair.run(step).expect("the same again");
            }
        }
    }
    pair.check();
    pair.run(&Step::Take { commits: true }).expect("take");
    pair.run(&Step::Reopen { commits: true }).expect("reopen");
    pair.check();
}
