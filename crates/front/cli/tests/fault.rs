//! `samite fault`, seen from outside.

mod common;

use std::time::{Duration, Instant};

use common::Samite;

#[test]
fn tables_are_set_listed_told_and_cleared() {
    let samite = Samite::up(2);
    assert_eq!(samite.ok(["fault", "list"]), "n0: no faults\nn1: no faults\n");
    samite.ok(["fault", "set", "seed 7", "delay 1ms c 1 # slow", "--node", "n1"]);
    samite.ok_with(["put", "-", "/file"], &[7; 3000]);
    let listed = samite.ok(["fault", "list", "--json"]);
    let nodes: Vec<serde_json::Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(nodes[0]["table"].is_null(), "{listed}");
    let table = nodes[1]["table"].as_array().unwrap();
    assert!(table[0].as_str().unwrap().starts_with("start "), "{listed}");
    assert_eq!((&table[1], &table[2]), (&"seed 7".into(), &"delay 1ms c 1".into()));
    samite.ok_with(["fault", "load", "-"], b"duplicate 100% * *\n");
    samite.ok(["kv", "put", "a", "1"]);
    let told = samite.ok(["fault", "log"]);
    assert!(told.lines().any(|line| line.contains(" duplicate c n0 Control ")), "{told}");
    let told = samite.ok(["fault", "log", "--json", "--node", "1"]);
    assert!(told.lines().any(|line| line.contains("\"fault\":\"delay\"")), "{told}");
    samite.ok(["fault", "clear"]);
    assert_eq!(samite.ok(["fault", "list"]), "n0: no faults\nn1: no faults\n");
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn who_cuts_everything_off_can_still_clear_it() {
    let samite = Samite::up(2);
    samite.ok(["fault", "set", "cut * *"]);
    samite.fails(3, ["kv", "put", "a", "1", "--timeout", "0.5"]);
    assert!(samite.ok(["fault", "list"]).contains("  cut * *"));
    samite.ok(["fault", "clear"]);
    samite.ok(["kv", "put", "a", "1"]);
}

#[test]
fn nonsense_is_refused_with_its_line() {
    let samite = Samite::up(1);
    let said = samite.fails(2, ["fault", "set", "cut 0 c", "drop 5 0 c"]);
    assert!(said.contains("line 2: \"5\" is no share"), "{said}");
    let file = samite.scratch().join("t.faults");
    std::fs::write(&file, "# fine\nlose 5% 0 c\n").unwrap();
    let said = samite.fails(2, ["fault", "load", file.to_str().unwrap()]);
    assert!(said.contains("t.faults: line 2: \"lose\" is no fault"), "{said}");
    assert_eq!(samite.ok(["fault", "list"]), "n0: no faults\n");
    assert!(samite.fails(4, ["fault", "kill", "7"]).contains("no node n7"));
    assert!(samite.fails(2, ["fault", "pause", "0", "--for", "long"]).contains("is no time"));
}

#[test]
fn nodes_pause_resume_and_die() {
    let samite = Samite::up(2);
    let begun = Instant::now();
    samite.ok(["fault", "pause", "1", "--for", "300ms"]);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    samite.ok(["status"]);
    samite.ok(["fault", "pause", "n1"]);
    samite.fails(3, ["fault", "list", "--node", "1", "--timeout", "0.3"]);
    samite.ok(["fault", "resume", "1"]);
    samite.ok(["status"]);
    samite.ok(["fault", "kill", "1"]);
    assert!(samite.fails(3, ["fault", "kill", "1"]).contains("does not live"));
    assert!(samite.fails(3, ["status"]).contains("n1"));
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn a_node_that_starts_again_goes_by_the_faults_that_were_set() {
    let samite = Samite::up(2);
    samite.ok(["fault", "set", "delay 1ms c 1"]);
    samite.ok(["fault", "kill", "1"]);
    samite.ok(["node", "restart", "1"]);
    assert_eq!(samite.ok(["fault", "list"]).matches("  delay 1ms c 1").count(), 2);
    samite.ok(["fault", "clear"]);
    samite.ok(["fault", "kill", "1"]);
    samite.ok(["node", "restart", "1"]);
    assert_eq!(samite.ok(["fault", "list"]), "n0: no faults\nn1: no faults\n");
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

/// The kernel takes a while to give back the memory of a killed node; until then its process is still there.
#[test]
fn a_node_is_started_again_right_after_it_was_killed_and_its_loss_is_told() {
    let samite = Samite::up(2);
    let file = samite.scratch().join("large");
    std::fs::write(&file, vec![7; 100 << 20]).unwrap();
    samite.ok(["put", file.to_str().unwrap(), "/large"]);
    for _ in 0..5 {
        let pid = samite.pids("default")[1];
        let sent = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        assert!(sent.unwrap().success());
        let said = samite.ok(["node", "restart", "1"]);
        assert!(said.contains("\nlost: all records in 32 of 64 partitions of `files`"), "{said}");
    }
    samite.ok(["down"]);
    samite.assert_nothing_left();
}
