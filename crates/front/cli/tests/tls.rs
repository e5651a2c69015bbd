//! `samite up --tls` by the command line: calls that go through, peers that are refused, and
//! garbage at the port.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;
use std::time::Duration;

use common::Samite;

/// `samite ARGS` over this transport only.
fn by(samite: &Samite, transport: &str, args: &[&str]) -> Output {
    samite.command(args).env("SAMITE_TRANSPORT", transport).output().unwrap()
}

fn ok(samite: &Samite, args: &[&str]) -> Vec<u8> {
    let output = by(samite, "tls", args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    output.stdout
}

/// `HOST:PORT` of each node.
fn ports(samite: &Samite) -> Vec<String> {
    let file = std::fs::read(samite.runtime().join("default/cluster.json")).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let of = |node: &serde_json::Value| {
        let text = node["tcp"].as_str().unwrap();
        text.rsplit('/').next().unwrap().to_owned()
    };
    file["nodes"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn keys_and_files_go_by_tls_and_nobody_without_the_key() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "2", "--memory", "64M", "--mirror", "2", "--tls"]);
    ok(&samite, &["kv", "put", "greeting", "hello"]);
    assert_eq!(ok(&samite, &["kv", "get", "greeting"]), b"hello");
    let local = samite.scratch().join("local");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|number| ((number * 7) >> 3) as u8).collect();
    std::fs::write(&local, &bytes).unwrap();
    ok(&samite, &["mkdir", "/dir"]);
    ok(&samite, &["put", local.to_str().unwrap(), "/dir/file"]);
    assert_eq!(ok(&samite, &["cat", "/dir/file"]), bytes);
    assert_eq!(ok(&samite, &["ls", "/dir"]), b"file\n");
    // Files that came by TLS are there by other ways, and not by plain tcp.
    assert_eq!(by(&samite, "shm", &["cat", "/dir/file"]).stdout, bytes);
    let refused = by(&samite, "tcp", &["kv", "get", "greeting"]);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    // Another key is no key.
    let key = samite.runtime().join("default/key");
    let right = std::fs::read(&key).unwrap();
    let write = |bytes: &[u8]| {
        std::fs::write(&key, bytes).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write(&[1; 32]);
    for args in [&["kv", "get", "greeting"][..], &["cat", "/dir/file"]] {
        let refused = by(&samite, "tls", args);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    }
    write(&right);
    assert_eq!(ok(&samite, &["kv", "get", "greeting"]), b"hello");
    samite.ok(["down"]);
}

/// Begins a handshake and ends it with garbage, or begins with that.
fn attack(port: &str, round: u32) {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut state = round.wrapping_mul(2_654_435_761).max(1);
    let mut garbage = |len: usize| -> Vec<u8> {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        (0..len).map(|_| next()).collect()
    };
    // Handshake, alert, data; or nothing known.
    let kind = [22, 21, 23, round as u8][round as usize % 4];
    let len = [1usize, 300, 16_000, 65_535][round as usize / 4 % 4];
    let [high, low] = (len as u16).to_be_bytes();
    let mut bytes = vec![kind, 3, 3, high, low];
    bytes.extend(garbage(len.min(4000)));
    // The node may have closed it by now.
    let _ = stream.write_all(&bytes);
    let _ = stream.read(&mut [0; 512]);
    let _ = stream.write_all(&garbage(2000));
}

#[test]
fn garbage_at_the_port_disturbs_nobody() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "2", "--memory", "64M", "--tls"]);
    let ports = ports(&samite);
    // Connections that send nothing more stay until the end.
    let mut silent: Vec<TcpStream> = Vec::new();
    for round in 0..64 {
        let port = &ports[round as usize % ports.len()];
        attack(port, round);
        let mut stream = TcpStream::connect(port).unwrap();
        stream.write_all(&[22, 3, 1, 2]).unwrap();
        silent.push(stream);
        if round % 8 == 0 {
            let value = format!("value {round}");
            ok(&samite, &["kv", "put", "key", &value]);
            assert_eq!(ok(&samite, &["kv", "get", "key"]), value.as_bytes());
        }
    }
    for node in 0..2 {
        let log = samite.runtime().join(format!("default/n{node}.log"));
        let log = std::fs::read_to_string(log).unwrap();
        assert!(!log.contains("panicked"), "{log}");
    }
    assert!(samite.ok(["status"]).contains("serving"));
    drop(silent);
    samite.ok(["down"]);
}

#[test]
fn datasets_that_up_makes_are_read_as_it_was_told() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "2", "--memory", "64M", "--mirror", "2", "--reads", "any"]);
    samite.ok(["kv", "put", "key", "value"]);
    samite.ok(["dataset", "create", "own"]);
    samite.ok(["dataset", "create", "else", "--reads", "primary"]);
    let list = samite.ok(["dataset", "list", "--json"]);
    let list: Vec<serde_json::Value> =
        list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (name, reads) in [("files", "any"), ("kv", "any"), ("own", "any"), ("else", "primary")] {
        let found = list.iter().find(|one| one["name"] == name).unwrap();
        assert_eq!(found["reads"], reads, "{found}");
    }
    assert_eq!(samite.ok(["kv", "get", "key"]), "value");
    samite.ok(["down"]);
}
