//! Nodes are restarted in turn while programs work. That nodes of another build may be among them is
//! tested by `make test-upgrade`, and by the bytes of its handshake.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::process::{Child, Command, Stdio};

use common::Samite;

/// A shell that puts and compares files and gets further all the time, until `stop` is there.
const WORK: &str = r#"
set -eu
mkdir "/samite/$2"
i=0
while [ ! -e "$1/stop" ]; do
  i=$((i + 1))
  seq "$i" $((i + 500)) > "/samite/$2/$((i % 20))"
  [ "$(sha256sum < "/samite/$2/$((i % 20))")" = "$(seq "$i" $((i + 500)) | sha256sum)" ]
  echo "$i" > "$1/$2.new"
  mv "$1/$2.new" "$1/$2"
done
"#;

fn worker(samite: &Samite, name: &str) -> Child {
    let mut command: Command = samite.interposed("bash");
    command.args(["-c", WORK, "bash"]).arg(samite.scratch()).arg(name);
    command.stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn nodes_are_upgraded_in_turn_while_programs_work() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "3", "--memory", "128M", "--mirror", "2"]);
    let count = |name: &str| {
        let text = std::fs::read_to_string(samite.scratch().join(name)).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    let mut workers: Vec<(Child, &str)> =
        ["a", "b"].map(|name| (worker(&samite, name), name)).into();
    let mut further = || {
        for (worker, name) in &mut workers {
            let before = count(name);
            while count(name) < before + 2 {
                assert!(worker.try_wait().unwrap().is_none(), "{name} has ended");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    };
    further();
    let pids = || samite.pids("default");
    let before = pids();
    let said = samite.ok(["node", "upgrade"]);
    assert!(said.contains("3 nodes restarted in turn by samite "), "{said}");
    assert!(pids().iter().zip(&before).all(|(now, before)| now != before));
    further();
    std::fs::write(samite.scratch().join("stop"), "").unwrap();
    for (mut worker, name) in workers {
        assert!(worker.wait().unwrap().success(), "{name}");
    }
    assert!(samite.ok(["status"]).starts_with("OK\n"));
}

#[test]
fn a_store_whose_nodes_have_the_only_copies_is_not_upgraded() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "2", "--memory", "64M"]);
    samite.ok(["kv", "put", "k", "v"]);
    let said = samite.fails(5, ["node", "upgrade"]);
    assert!(said.contains("would be lost with it"), "{said}");
    samite.fails(4, ["node", "upgrade", "7"]);
    assert_eq!(samite.ok(["kv", "get", "k"]), "v");
}
