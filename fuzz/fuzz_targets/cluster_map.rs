//! A cluster map from a peer: refused, or it answers every question without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_placement::ClusterMap;
use samite_types::Redundancy;
use samite_wire::control::{ClusterMapData, decode};

fuzz_target!(|raw: &[u8]| {
    let Ok(data) = decode::<ClusterMapData>(raw) else { return };
    let Ok(map) = ClusterMap::new(data) else { return };
    let partition = map.partition_of(raw);
    assert!(map.node_of(Redundancy(1), partition).is_some());
    for dataset in map.datasets() {
        let distribution = map.distribution(dataset);
        for chunk in [0, 1, u64::MAX] {
            assert!(distribution.chunk_partition(7, chunk).get() < map.partitions());
        }
    }
});
