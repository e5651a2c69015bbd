//! What the death of a node without mirrors has lost is told until it is acknowledged.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::Samite;

/// A store of two nodes, of which the second has died and come back empty.
fn bereft() -> Samite {
    let samite = Samite::up(2);
    for name in ["k1", "k2", "k3"] {
        samite.ok(["kv", "put", name, "value"]);
    }
    assert!(samite.ok(["status"]).starts_with("OK\n"));
    samite.ok(["fault", "kill", "1"]);
    assert!(samite.command(["status"]).output().unwrap().stdout.starts_with(b"DEGRADED\n"));
    samite.ok(["node", "restart", "1"]);
    samite
}

/// What `samite ARGS` prints, which must exit with `code`.
fn said(samite: &Samite, code: i32, args: &[&str]) -> String {
    let output = samite.command(args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_loss_is_told_until_it_is_acknowledged() {
    let samite = bereft();
    for is_again in [false, true] {
        let told = said(&samite, 6, &["status"]);
        assert!(told.starts_with("LOST  all records in 32 of 64 partitions of `files`"), "{told}");
        let json: serde_json::Value =
            serde_json::from_str(&said(&samite, 6, &["status", "--json"])).unwrap();
        assert_eq!(json["health"], "LOST");
        assert_eq!(json["losses"][1]["dataset"], "kv");
        assert_eq!(json["losses"][1]["partitions"], 32);
        assert!(samite.fails(6, ["scrub"]).contains("lost: all records in 32 of 64"));
        if !is_again {
            samite.ok(["acknowledge-loss"]);
            assert!(samite.ok(["status"]).starts_with("OK\n"));
            samite.ok(["fault", "kill", "1"]);
            samite.ok(["node", "restart", "1"]);
        }
    }
    // The coordinator's own node keeps what it knows of losses on disk.
    samite.ok(["fault", "kill", "0"]);
    samite.ok(["node", "restart", "0"]);
    let told = said(&samite, 6, &["status"]);
    assert!(told.starts_with("LOST  all records in 64 of 64 partitions of `files`"), "{told}");
    let some = samite.ok(["acknowledge-loss", "kv"]);
    assert!(
        some.starts_with("acknowledged: all records in 64 of 64 partitions of `kv`\n"),
        "{some}"
    );
    assert!(some.contains("still lost: ") && !some.contains("64 partitions of `kv`,"), "{some}");
    samite.ok(["scrub", "kv"]);
    samite.fails(6, ["scrub", "files"]);
    assert!(samite.fails(4, ["acknowledge-loss", "none"]).contains("none"));
    let json: serde_json::Value =
        serde_json::from_str(&samite.ok(["acknowledge-loss", "--json"])).unwrap();
    assert_eq!(json["acknowledged"][0]["dataset"], "files");
    assert_eq!(json["left"], serde_json::json!([]));
    assert!(samite.ok(["status"]).starts_with("OK\n"));
    samite.ok(["scrub"]);
    assert_eq!(samite.ok(["acknowledge-loss"]), "nothing is lost\n");
    samite.ok(["down"]);
}
