//! A map diff from a peer: refused, or it leads from a lawful map to a lawful map that it leads to
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_placement::{ClusterMap, MapHistory};
use samite_wire::control::{ClusterMapData, decode};
use samite_wire::delta::MapDelta;

fuzz_target!(|raw: &[u8]| {
    let Some((cut, raw)) = raw.split_first() else { return };
    let (map, delta) = raw.split_at((usize::from(*cut) * 4).min(raw.len()));
    let Ok(map) = decode::<ClusterMapData>(map) else { return };
    let Ok(map) = ClusterMap::new(map) else { return };
    let Ok(delta) = decode::<MapDelta>(delta) else { return };
    let mut history = MapHistory::default();
    history.add(delta.clone());
    let _ = history.since(map.epoch(), delta.to);
    if let Ok(after) = map.with(&delta) {
        let again = after.changes_since(&map);
        assert!(again.is_some_and(|again| map.with(&again).is_ok()));
    }
});
