//! Operations that nobody waits for at once.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use samite_kv::KvView;
use samite_testkit::datasets::{
    TRANSPORTS, block_on, break_links, client, cluster, dataset, pattern,
};

#[test]
fn many_are_under_way_and_end_in_any_order() {
    let cluster = cluster(2, 64);
    for transport in TRANSPORTS {
        let kv = KvView::new(dataset(&client(&cluster, transport), "kv"));
        let keys: Vec<Vec<u8>> = (0..200u32).map(|index| index.to_be_bytes().to_vec()).collect();
        let puts: Vec<_> = keys.iter().map(|key| kv.submit_put(key, key).unwrap()).collect();
        for put in puts.into_iter().rev() {
            put.wait().unwrap();
        }
        let gets: Vec<_> = keys.iter().map(|key| kv.submit_get(key).unwrap()).collect();
        for (get, key) in gets.into_iter().zip(&keys).rev() {
            let value = block_on(get).unwrap().unwrap();
            assert_eq!(value.bytes, *key);
        }
        assert!(block_on(kv.submit_delete(&keys[0]).unwrap()).unwrap());
        assert_eq!(block_on(kv.submit_get(&keys[0]).unwrap()).unwrap(), None);
    }
}

#[test]
fn what_needs_more_than_one_answer_is_finished_all_the_same() {
    let cluster = cluster(2, 128);
    for transport in TRANSPORTS {
        let kv = KvView::new(dataset(&client(&cluster, transport), &format!("more-{transport}")));
        let value = pattern(5 << 20, 1);
        kv.put(b"large", &value).unwrap();
        let get = kv.submit_get(b"large").unwrap();
        assert!(block_on(get).unwrap().unwrap().bytes == value);
        block_on(kv.submit_put(b"large", b"now small").unwrap()).unwrap();
        assert_eq!(kv.get(b"large").unwrap().unwrap().bytes, b"now small");
    }
}

#[test]
fn a_broken_connection_does_not_lose_what_was_submitted() {
    let cluster = cluster(2, 64);
    for transport in TRANSPORTS {
        let client = client(&cluster, transport);
        let kv = KvView::new(dataset(&client, &format!("broken-{transport}")));
        for round in 0..30u32 {
            let keys: Vec<Vec<u8>> = (0..20u32)
                .map(|index| [round.to_be_bytes(), index.to_be_bytes()].concat())
                .collect();
            let appends: Vec<_> =
                keys.iter().map(|key| kv.submit_put(key, b"x").unwrap()).collect();
            break_links(&client);
            for (index, append) in appends.into_iter().enumerate() {
                if index % 2 == 0 {
                    append.wait().unwrap()
                } else {
                    block_on(append).unwrap()
                };
            }
        }
        assert_eq!(kv.list(b"", b"", 1000).unwrap().entries.len(), 600);
    }
}
