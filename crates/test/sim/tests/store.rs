//! The simulated target behaves like every other one.

use samite_backend::{Backend, PlannedChange, RecordStore, WriteSource};
use samite_sim::store::HeapBackend;
use samite_types::{DatasetId, PartitionId, Version};

#[test]
fn it_conforms() {
    samite_backend::conformance::run(&|| Box::new(HeapBackend::new(24 << 20)));
}

#[test]
fn records_read_back_and_are_listed_in_order() {
    let mut store = HeapBackend::new(1 << 20).open(DatasetId(1), PartitionId(0)).unwrap();
    let store: &mut dyn RecordStore = &mut *store;
    let source = WriteSource::Bytes(b"value");
    store.reserve(&[PlannedChange::Put { key: b"b", source: &source }]).unwrap();
    assert!(store.put(b"b", source, Version(1)).unwrap().created);
    store.write(b"a", 2, WriteSource::Bytes(b"x"), Version(2)).unwrap();
    store.truncate(b"b", 3, Version(3)).unwrap();
    store.settle();
    let listed = |after: &[u8], reverse| {
        let mut seen = Vec::new();
        let mut visit = |record: &samite_backend::ScannedRecord<'_>| {
            seen.push((record.key.to_vec(), record.value.to_vec(), record.meta.version.get()));
            std::ops::ControlFlow::Continue(())
        };
        store.scan(b"", after, reverse, 16, &mut visit).unwrap();
        seen
    };
    let (a, b) = ((b"a".to_vec(), b"\0\0x".to_vec(), 2), (b"b".to_vec(), b"val".to_vec(), 3));
    assert_eq!(listed(b"", false), [a.clone(), b.clone()]);
    assert_eq!(listed(b"", true), [b.clone(), a.clone()]);
    assert_eq!(listed(b"a", false), [b]);
    assert_eq!(listed(b"b", true), [a]);
}
