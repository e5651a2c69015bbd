//! Every backend of the registry is what its entry says, and passes the suite.

use std::cell::RefCell;

use samite_backend::{Backend, conformance};
use samite_registry::{BackendEntry, ENTRIES, TargetOptions};
use tempfile::TempDir;

/// Opens targets, each in a directory of its own.
fn maker(entry: &BackendEntry) -> impl Fn() -> Box<dyn Backend> {
    let dirs = RefCell::new(Vec::new());
    move || {
        let dir = TempDir::new().expect("a directory");
        let directory = Some(dir.path().join("target"));
        dirs.borrow_mut().push(dir);
        let options = TargetOptions { capacity_bytes: 8 << 20, shards: 1, directory };
        (entry.open)(&options).expect("a target")
    }
}

#[test]
fn all_backends_conform() {
    for entry in ENTRIES {
        conformance::run(&maker(entry));
    }
}

#[test]
fn entries_say_what_their_backends_say() {
    for entry in ENTRIES {
        assert_eq!(maker(entry)().offers(), entry.offers, "{}", entry.name);
    }
}

#[test]
fn handles_are_to_the_same_target() {
    use samite_backend::WriteSource;
    use samite_types::{DatasetId, PartitionId, Version};
    for entry in ENTRIES {
        let mut first = maker(entry)();
        let second = first.handle();
        let before = second.usage();
        let mut store = first.open(DatasetId(1), PartitionId(1)).expect("open");
        store.put(b"key", WriteSource::Bytes(&[7; 5000]), Version(1)).expect("put");
        assert!(second.usage().used > before.used, "{}", entry.name);
        assert_eq!(second.usage().capacity, before.capacity);
    }
}
