//! Values that change while they are read: a reader sees one or the other, never a mixture, on every transport.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::atomic::{AtomicBool, Ordering};

use samite_client::{ClientOperation, Dataset, OwnedResult};
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset};
use samite_wire::op::{Action, Operation, ValueData};

const LEN: usize = 300_000;
const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];

fn write(dataset: &Dataset, key: &[u8], byte: u8, in_place: bool) {
    let bytes = vec![byte; LEN];
    let data = ValueData::Inline(&bytes);
    let action =
        if in_place { Action::Write { key, offset: 0, data } } else { Action::Put { key, data } };
    let op = ClientOperation::new(Operation::new(dataset.partition_of(key), [action]));
    assert!(dataset.execute_one(op).unwrap().is_done());
}

fn is_whole(bytes: &[u8]) -> bool {
    bytes.len() == LEN && bytes.iter().all(|byte| *byte == bytes[0])
}

fn read_alone(dataset: &Dataset, key: &[u8]) -> bool {
    let mut dest = vec![0; LEN + 1];
    let op =
        ClientOperation::new(Operation::get(dataset.partition_of(key), key)).into_dest(&mut dest);
    let (_, _, len) =
        dataset.execute_one(op).unwrap().into_results("get").unwrap()[0].value().unwrap();
    is_whole(&dest[..len])
}

fn read_together(dataset: &Dataset) -> bool {
    let operations = KEYS.map(|key| Operation::get(dataset.partition_of(key), key));
    let outcomes = dataset.submit(&operations).unwrap().wait().unwrap();
    outcomes.into_iter().all(|outcome| match &outcome.into_results("get").unwrap()[0] {
        OwnedResult::Value { data, .. } => is_whole(data),
        _ => false,
    })
}

#[test]
fn readers_never_see_a_mixture() {
    let cluster = cluster(2, 64);
    for in_place in [false, true] {
        let name = format!("inconsistent-{in_place}");
        let writer = dataset(&client(&cluster, TRANSPORTS[0]), &name);
        KEYS.iter().for_each(|key| write(&writer, key, 0, in_place));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut byte = 0u8;
                while !over.load(Ordering::Relaxed) {
                    byte = byte.wrapping_add(1);
                    KEYS.iter().for_each(|key| write(&writer, key, byte, in_place));
                }
            });
            let readers: Vec<_> = TRANSPORTS
                .iter()
                .map(|transport| {
                    let dataset = dataset(&client(&cluster, *transport), &name);
                    scope.spawn(move || {
                        (0..60).all(|_| read_alone(&dataset, b"a") && read_together(&dataset))
                    })
                })
                .collect();
            let whole: Vec<bool> =
                readers.into_iter().map(|reader| reader.join().unwrap_or(false)).collect();
            over.store(true, Ordering::Relaxed);
            assert_eq!(whole, [true; 3], "in place: {in_place}");
        });
    }
}
