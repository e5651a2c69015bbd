//! Prints the costs of operations in one partition, without transport: nanoseconds each, the best
//! of a few rounds.
//!
//! `cargo run --release -p samite-partition --example timing`

use std::hint::black_box;
use std::io::Write as _;

use samite_backend::memory::MemoryBackend;
use samite_backend::null::NullBackend;
use samite_backend::{Arena, ArenaExtent, Backend};
use samite_partition::{AppliedOutcome, BlockGrants, NoGrants, Partition, RequestContext};
use samite_types::{ClientId, Clock, DatasetId, Epoch, PartitionId, Seq, SystemClock};
use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::{Action, BlockRef, Guard, Operation, ValueData};

const ROUNDS: u32 = 5;
const RECORDS: u32 = 20_000;
const CLIENT: ClientId = ClientId(1);
const PARTITION: PartitionId = PartitionId(0);

/// One partition and its client.
struct Bench {
    partition: Partition,
    seq: u64,
    window: u64,
}

impl Bench {
    fn new(backend: &mut dyn Backend) -> Self {
        let store = backend.open(DatasetId(1), PARTITION).expect("open");
        Self { partition: Partition::new(store), seq: 0, window: 1 }
    }

    fn apply(
        &mut self,
        mut operation: Operation<'_>,
        grants: &mut dyn BlockGrants,
    ) -> AppliedOutcome {
        if operation.is_mutation() {
            self.seq += 1;
            operation.seq = Seq(self.seq);
        }
        let context = RequestContext {
            now: std::time::Duration::ZERO,
            delegation_term_max: std::time::Duration::ZERO,
            reads_in_place: false,
            grants_all_delegations: false,
            answered_below: Seq((self.seq + 1).saturating_sub(self.window)),
            is_retry: false,
            name_space_generation: Epoch(u64::MAX),
            body_len_max: 1 << 20,
        };
        self.partition.apply(CLIENT, &context, &operation, grants)
    }

    fn done(&mut self, operation: Operation<'_>) {
        let outcome = self.apply(operation, &mut NoGrants);
        assert!(matches!(black_box(outcome), AppliedOutcome::Done(_)));
    }
}

/// Runs `each` `count` times in each round, and prints the best round.
fn time(name: &str, count: u32, mut each: impl FnMut(u32)) {
    let mut best = u128::MAX;
    for _ in 0..ROUNDS {
        let start = SystemClock.monotonic();
        (0..count).for_each(&mut each);
        best = best.min((SystemClock.monotonic() - start).as_nanos());
    }
    let each_ns = best / u128::from(count);
    let _ = writeln!(std::io::stdout(), "{name:<44} {each_ns:>8} ns");
}

/// A key like those of directory entries, in no order.
fn key(index: u32) -> Vec<u8> {
    let mut key = b"e\0\0\0\0\0\0\0\x01file-".to_vec();
    key.extend(format!("{:08x}", index.wrapping_mul(0x9e37_79b1)).bytes());
    key
}

fn small_records(name: &str, backend: &mut dyn Backend) {
    let keys: Vec<Vec<u8>> = (0..RECORDS).map(key).collect();
    let key = |index: u32| keys[index as usize].as_slice();
    let mut bench = Bench::new(backend);
    let value = [7; 100];
    for index in 0..RECORDS {
        bench.done(Operation::put(PARTITION, key(index), &value));
    }
    time(&format!("{name}/put/100B"), RECORDS, |index| {
        bench.done(Operation::put(PARTITION, key(index), &value));
    });
    time(&format!("{name}/get/100B"), RECORDS, |index| {
        bench.done(Operation::get(PARTITION, key(index)));
    });
    time(&format!("{name}/get/absent"), RECORDS, |_| {
        let outcome =
            bench.apply(Operation::get(PARTITION, b"e\0\0\0\0\0\0\0\x01none"), &mut NoGrants);
        assert!(matches!(outcome, AppliedOutcome::Failed { .. }));
    });
    time(&format!("{name}/add"), RECORDS, |index| {
        let add = Action::Add { key: key(index), offset: 8, delta: 1 };
        bench.done(Operation::new(PARTITION, [add]));
    });
    let entry = [1; 128];
    time(&format!("{name}/create+delete/128B"), RECORDS, |index| {
        let name = &mut keys[index as usize].clone();
        name.push(b'+');
        let put = Action::Put { key: name, data: ValueData::Inline(&entry) };
        let create = Operation::new(PARTITION, [put]).guard(Guard::Absent(name)).reveal(128);
        bench.done(create.guard(Guard::Absent(b"s\0\0\0\0\0\0\0\x01")));
        bench.done(Operation::new(PARTITION, [Action::Delete { key: name }]));
    });
    time(&format!("{name}/list/1000"), 100, |_| {
        let list = Action::List {
            prefix: b"e",
            after: b"",
            limit: 1000,
            reverse: false,
            value_len_max: 128,
        };
        bench.done(Operation::new(PARTITION, [list]));
    });
}

/// Grants one block after the other, as a client that fills them would have them.
struct Granted<'a>(&'a std::sync::Arc<Arena>);

impl BlockGrants for Granted<'_> {
    fn take(&mut self, _: &BlockRef) -> Option<ArenaExtent> {
        self.0.grant(1).pop()
    }

    fn put_back(&mut self, _: ArenaExtent) {}
}

fn large_records(backend: &mut dyn Backend) {
    let arena = backend.arena().expect("arena");
    while arena.populated() < backend.usage().capacity {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let mut bench = Bench::new(backend);
    let block = BlockRef { offset: 0, len: BLOCK_LEN as u32, generation: 0 };
    for (name, count) in [("64KiB", 1), ("1MiB", 16)] {
        time(&format!("memory/put/adopt/{name}"), 100, |index| {
            let data = ValueData::Blocks((0..count).map(|_| block).collect());
            let put = Action::Put { key: &index.to_be_bytes(), data };
            let outcome = bench.apply(Operation::new(PARTITION, [put]), &mut Granted(&arena));
            assert!(matches!(outcome, AppliedOutcome::Done(_)));
        });
        time(&format!("memory/get/pieces/{name}"), 100, |index| {
            bench.done(Operation::get(PARTITION, &index.to_be_bytes()));
        });
    }
    for len in [4 << 10, 64 << 10, 1 << 20] {
        let value = vec![3; len];
        time(&format!("memory/put/copy/{}KiB", len >> 10), 100, |index| {
            bench.done(Operation::put(PARTITION, &index.to_be_bytes(), &value));
        });
    }
    let piece = [5; 4096];
    time("memory/write/4KiB of 1MiB", 100, |index| {
        let data = ValueData::Inline(&piece);
        let write = Action::Write { key: &index.to_be_bytes(), offset: 100_000, data };
        bench.done(Operation::new(PARTITION, [write]));
    });
}

fn main() {
    let mut memory = MemoryBackend::new(256 << 20, 1).expect("memory target");
    large_records(&mut memory);
    small_records("memory", &mut memory);
    small_records("null", &mut NullBackend::new(64 << 20));
}
