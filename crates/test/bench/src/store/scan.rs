//! Scans of more records than any cache holds.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use samite_client::scan::ScanOptions;
use samite_client::{ClientOperation, Dataset, OwnedOutcome, TransportKind};
use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::MEMORY_BACKEND;
use samite_wire::op::Operation;

use crate::floor::{SUMMED_LEN, sum};
use crate::measure::{Workload, steps};
use crate::place::BenchPlace;
use crate::store::RecordHost;

/// Length of the value of each record.
pub const VALUE_LEN: usize = 4096;
const RECORDS: usize = SUMMED_LEN / VALUE_LEN;
/// Records that are made together.
const BATCH: usize = 1000;

/// All values of a dataset are looked at in this thread, by every step.
pub fn whole(transport: TransportKind, place: &mut BenchPlace) -> Result<Box<dyn Workload>> {
    let host = RecordHost::One;
    let name = "bench-scan";
    let cluster = place.store(host)?;
    fill(&cluster.dataset(name, TransportKind::Shm, MEMORY_BACKEND, host)?)?;
    let dataset = cluster.dataset(name, transport, MEMORY_BACKEND, host)?;
    Ok(steps(RECORDS as u64, SUMMED_LEN as u64, move || {
        let (records, total) = (AtomicU64::new(0), AtomicU64::new(0));
        dataset.scan(&ScanOptions::default())?.run(1, |record| {
            records.fetch_add(1, Ordering::Relaxed);
            total.fetch_add(sum(record.value), Ordering::Relaxed);
            ControlFlow::Continue(())
        })?;
        black_box(total.into_inner());
        match records.into_inner() as usize {
            RECORDS => Ok(()),
            _ => Err(Error::new(ErrorKind::Corrupt, "scan: not the records that were made")),
        }
    }))
}

fn fill(dataset: &Dataset) -> Result<()> {
    let value = [0x5a; VALUE_LEN];
    let keys: Vec<String> = (0..RECORDS).map(|number| format!("scan:{number:010}")).collect();
    for keys in keys.chunks(BATCH) {
        let mut ops: Vec<ClientOperation<'_>> = keys
            .iter()
            .map(|key| {
                let partition = dataset.partition_of(key.as_bytes());
                ClientOperation::new(Operation::put(partition, key.as_bytes(), &value))
            })
            .collect();
        let outcomes = dataset.execute(&mut ops, dataset.client().deadline())?;
        if let Some(failure) = outcomes.iter().find_map(OwnedOutcome::failure) {
            return Err(failure.clone().into_error("put"));
        }
    }
    Ok(())
}
