//! Each backend passes the suite.

use std::sync::Arc;

use samite_backend::conformance::{self, PartOutcome};
use samite_backend::failing::{CallFailure, FailingBackend, FailingMap};
use samite_backend::memory::MemoryBackend;
use samite_backend::memory_rows::MemoryRows;
use samite_backend::null::NullBackend;
use samite_backend::ordered::OrderedTarget;
use samite_backend::{Arena, Backend, BackendOffers, RecordStore, TargetUsage};
use samite_types::{DatasetId, PartitionId, Result};

#[test]
fn memory_conforms() {
    conformance::run(&|| Box::new(MemoryBackend::new(8 << 20, 1).expect("memory target")));
}

#[test]
fn null_conforms() {
    conformance::run(&|| Box::new(NullBackend::new(4 << 20)));
}

/// Also where any call of it may fail, as long as none does.
#[test]
fn rows_in_memory_conform() {
    conformance::run(&|| {
        let (rows, failure) = (Arc::<MemoryRows>::default(), CallFailure::default());
        let map = Arc::new(FailingMap::new(rows, failure.clone(), false));
        let target = OrderedTarget::open(map, 8 << 20).expect("a target");
        Box::new(FailingBackend::new(Box::new(target.backend()), failure))
    });
}

#[test]
fn a_part_that_is_not_offered_is_told_as_such() {
    let outcomes = |make: &dyn Fn() -> Box<dyn Backend>| -> Vec<_> {
        conformance::report(make).into_iter().map(|part| (part.part, part.outcome)).collect()
    };
    let memory = outcomes(&|| Box::new(MemoryBackend::new(8 << 20, 1).expect("memory target")));
    assert!(memory.iter().all(|(_, outcome)| *outcome == PartOutcome::Held), "{memory:?}");
    let null = outcomes(&|| Box::new(NullBackend::new(4 << 20)));
    let of = |name| &null.iter().find(|(part, _)| *part == name).expect("a part").1;
    for part in ["values read back", "writes within values", "damage is found"] {
        assert_eq!(*of(part), PartOutcome::NotOffered, "{part}");
    }
    for part in ["versions and lengths", "scans", "full target"] {
        assert_eq!(*of(part), PartOutcome::Held, "{part}");
    }
}

/// Says of itself what is not so.
#[derive(Debug)]
struct BoastfulBackend(NullBackend);

impl Backend for BoastfulBackend {
    fn open(&mut self, dataset: DatasetId, partition: PartitionId) -> Result<Box<dyn RecordStore>> {
        self.0.open(dataset, partition)
    }

    fn usage(&self) -> TargetUsage {
        self.0.usage()
    }

    fn arena(&self) -> Option<Arc<Arena>> {
        self.0.arena()
    }

    fn handle(&self) -> Box<dyn Backend> {
        Box::new(Self(self.0.clone()))
    }

    fn offers(&self) -> BackendOffers {
        BackendOffers { values: true, damage: true, ..self.0.offers() }
    }
}

#[test]
fn what_is_said_and_not_so_is_told_as_broken() {
    let report = conformance::report(&|| Box::new(BoastfulBackend(NullBackend::new(4 << 20))));
    let broken: Vec<_> = report
        .iter()
        .filter(|part| matches!(part.outcome, PartOutcome::Broken(_)))
        .map(|part| part.part)
        .collect();
    assert!(broken.contains(&"values read back") && broken.contains(&"damage is found"));
    assert!(!broken.contains(&"versions and lengths"), "{broken:?}");
}
