//! Many operations at a time.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult};
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset};
use samite_wire::op::{Action, Operation};

#[test]
fn more_operations_than_one_request_holds_are_carried_out_all_the_same() {
    let cluster = cluster(2, 64);
    let client = client(&cluster, TRANSPORTS[0]);
    let dataset = dataset(&client, "many");
    let keys: Vec<[u8; 4]> = (0..10_000u32).map(u32::to_be_bytes).collect();
    let mut ops: Vec<ClientOperation<'_>> = keys
        .iter()
        .map(|key| {
            let add = Action::Add { key, offset: 0, delta: 5 };
            ClientOperation::new(Operation::new(dataset.partition_of(key), [add]))
        })
        .collect();
    for _ in 0..2 {
        let outcomes = dataset.execute(&mut ops, client.deadline()).unwrap();
        assert_eq!(outcomes.len(), keys.len());
        assert!(outcomes.iter().all(OwnedOutcome::is_done));
    }
    for key in [&keys[0], &keys[9_999]] {
        let op = ClientOperation::new(Operation::get(dataset.partition_of(key), key));
        let results = dataset.execute_one(op).unwrap().into_results("get").unwrap();
        let OwnedResult::Value { data, .. } = &results[0] else { panic!() };
        assert_eq!(data[..], 10u64.to_le_bytes());
    }
}
