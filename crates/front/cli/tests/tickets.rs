//! Tickets and changes of the cluster key, with the real binary.

#![expect(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use common::Samite;

const USER: u32 = 47_112;

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A ticket of the cluster `default` for [`USER`].
fn issue(owner: &Samite, name: &str) -> PathBuf {
    let file = owner.scratch().join(name);
    owner.ok(["ticket", "issue", "--user", &USER.to_string(), "--out", &text(&file)]);
    file
}

/// The value of the cluster map's owner of a dataset, as `dataset ls` has it.
fn owner_of(samite: &Samite, dataset: &str) -> u64 {
    let listed = samite.ok(["dataset", "ls", "--json"]);
    let all = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let found = all.into_iter().find(|one| one["name"] == dataset).unwrap();
    found["owner"].as_u64().unwrap()
}

fn lines_with(samite: &Samite, node: &str, words: &str) -> usize {
    let log = samite.runtime().join("default").join(format!("{node}.log"));
    std::fs::read_to_string(log).unwrap().lines().filter(|line| line.contains(words)).count()
}

#[test]
fn the_holder_of_a_ticket_is_its_user_and_has_what_is_his() {
    let owner = Samite::up(1);
    owner.ok(["kv", "put", "greeting", "hello"]);
    let file = issue(&owner, "user.ticket");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let shown = owner.ok(["ticket", "show", "--json", &text(&file)]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((shown["uid"].as_u64(), shown["key"].as_u64()), (Some(USER.into()), Some(1)));

    let user = Samite::new();
    assert!(user.ok(["ticket", "use", &text(&file)]).contains("ticket of uid 47112"));
    assert!(!user.runtime().join("default/key").exists());
    let said = user.fails(1, ["kv", "get", "greeting"]);
    assert!(said.contains("belongs to uid"), "{said}");
    user.ok(["dataset", "create", "own"]);
    assert_eq!(owner_of(&user, "own"), u64::from(USER));
    user.ok(["kv", "put", "--dataset", "own", "k", "mine"]);
    assert_eq!(user.ok(["kv", "get", "--dataset", "own", "k"]), "mine");
    // What only the owner may do, and a ticket cannot make.
    let said = user.fails(1, ["scrub"]);
    assert!(said.contains("uid 47112 may not"), "{said}");
    let said = user.fails(4, ["ticket", "issue", "--user", "0", "--out", "/dev/null"]);
    assert!(said.contains("the owner of store default has it"), "{said}");
    // The nodes are not his to end.
    assert!(user.ok(["down"]).contains("the ticket is removed, the nodes serve on"));
    assert!(!user.runtime().exists() || std::fs::read_dir(user.runtime()).unwrap().count() == 0);
    assert_eq!(owner.pids("default").len(), 1);
    owner.ok(["dataset", "ls"]);
    // A key that is here is not replaced.
    assert!(owner.fails(5, ["ticket", "use", &text(&file)]).contains("the cluster key"));
}

#[test]
fn the_private_key_can_stay_with_its_user() {
    let owner = Samite::up(1);
    let user = Samite::new();
    let (key, public, file) = ("private", "public", "user.ticket");
    let [key, public, file] = [key, public, file].map(|name| text(&user.scratch().join(name)));
    std::fs::write(&public, user.ok(["ticket", "key", &key])).unwrap();
    let uid = USER.to_string();
    owner.ok(["ticket", "issue", "--user", &uid, "--public-key", &public, "--out", &file]);
    assert!(user.ok(["ticket", "show", &file]).contains("its private key is not in this file"));
    user.fails(1, ["ticket", "use", &file]);
    let other = text(&user.scratch().join("other"));
    user.ok(["ticket", "key", &other]);
    let said = user.fails(1, ["ticket", "use", &file, "--key", &other]);
    assert!(said.contains("not the one that the ticket was made for"), "{said}");
    user.ok(["ticket", "use", &file, "--key", &key]);
    user.ok(["dataset", "create", "own"]);
    assert_eq!(owner_of(&user, "own"), u64::from(USER));
}

#[test]
fn a_false_ticket_is_refused_with_words_and_logged_once() {
    let owner = Samite::up(1);
    let elsewhere = Samite::up(1);
    let (own, foreign) = (issue(&owner, "own"), issue(&elsewhere, "foreign"));
    let read = |path: &Path| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let mut bent = read(&foreign);
    bent["nodes"] = read(&own)["nodes"].clone();
    std::fs::write(&foreign, bent.to_string()).unwrap();
    let user = Samite::new();
    user.ok(["ticket", "use", &text(&foreign)]);
    for _ in 0..3 {
        let said = user.fails(3, ["ls"]);
        assert!(said.contains("not signed by key 1 of this cluster"), "{said}");
    }
    assert_eq!(lines_with(&owner, "n0", "not signed by key 1"), 1);
}

#[test]
fn files_that_others_may_read_are_refused_with_the_command_that_mends_them() {
    let owner = Samite::up(1);
    let file = issue(&owner, "user.ticket");
    let user = Samite::new();
    user.ok(["ticket", "use", &text(&file)]);
    let key = owner.runtime().join("default/key");
    let ticket = user.runtime().join("default/ticket");
    for (samite, path) in [(&owner, key), (&user, ticket)] {
        let loosen = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        loosen(0o640);
        let said = samite.fails(1, ["dataset", "ls"]);
        assert!(said.contains(&format!("`chmod 600 {}`", path.display())), "{said}");
        loosen(0o600);
        samite.ok(["dataset", "ls"]);
    }
}

#[test]
fn a_node_gives_tickets_to_the_users_of_its_host() {
    let owner = Samite::new();
    let shared = owner.scratch().join("tickets");
    owner.ok(["up", "--local", "1", "--memory", "128M", "--shared", &text(&shared)]);
    let user = Samite::new();
    let own = rustix::process::geteuid().as_raw();
    let uid = if own == 0 { USER } else { own };
    let mut get = user.command(["ticket", "get", &text(&shared)]);
    if own == 0 {
        for dir in [owner.scratch(), user.scratch()] {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        chown(user.scratch(), Some(uid), Some(uid)).unwrap();
        get.uid(uid).gid(uid);
    } else {
        samite_testkit::skip_part("root");
    }
    let output = get.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.contains(&format!("ticket of uid {uid}, which counts for ")), "{words}");
    let mut make = user.command(["dataset", "create", "own"]);
    if own == 0 {
        make.uid(uid).gid(uid);
    }
    let output = make.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(owner_of(&owner, "own"), u64::from(uid));
    owner.ok(["down"]);
    assert!(!shared.exists());
}

#[test]
fn the_key_changes_while_the_store_serves() {
    let owner = Samite::up(2);
    owner.ok(["kv", "put", "greeting", "hello"]);
    let user = Samite::new();
    user.ok(["ticket", "use", &text(&issue(&owner, "user.ticket"))]);
    user.ok(["dataset", "create", "own"]);

    assert!(owner.ok(["key", "rotate", "--keep-before"]).contains("key 2 is in use"));
    user.ok(["dataset", "ls"]);
    let said = owner.fails(5, ["key", "rotate", "--keep-before"]);
    assert!(said.contains("nothing is changed: cluster key 2 is in use"), "{said}");
    assert!(owner.ok(["key", "rotate"]).contains("key 2 is in use, and no other counts"));
    let said = user.fails(3, ["dataset", "ls"]);
    assert!(said.contains("signed by cluster key 1, which does not count here"), "{said}");
    assert_eq!(owner.ok(["kv", "get", "greeting"]), "hello");
    // A node that starts again goes by the new key, and so does a new ticket.
    owner.ok(["fault", "kill", "1"]);
    owner.ok(["node", "restart", "1"]);
    owner.ok(["dataset", "ls"]);
    user.ok(["ticket", "use", &text(&issue(&owner, "again.ticket"))]);
    assert_eq!(owner_of(&user, "own"), u64::from(USER));
    owner.ok(["down"]);
    assert_eq!(owner.processes(), [] as [u32; 0]);
}

#[test]
fn a_change_of_the_key_names_the_node_that_is_missing_and_goes_on_later() {
    let owner = Samite::up(2);
    let before = std::fs::read(owner.runtime().join("default/key")).unwrap();
    owner.ok(["fault", "kill", "1"]);
    let said = owner.fails(3, ["key", "rotate", "--timeout", "5"]);
    assert!(said.contains("n1 did not say which cluster keys it has"), "{said}");
    assert_eq!(std::fs::read(owner.runtime().join("default/key")).unwrap(), before);
    owner.ok(["node", "restart", "1"]);
    assert!(owner.ok(["key", "rotate"]).contains("key 2 is in use, and no other counts"));
    owner.ok(["dataset", "ls"]);
}

#[test]
fn a_durable_store_starts_with_the_key_that_it_had() {
    let owner = Samite::new();
    let durable = text(&owner.scratch().join("durable"));
    let up = ["up", "--local", "1", "--memory", "128M", "--durable", &durable];
    owner.ok(up);
    owner.ok(["kv", "put", "greeting", "hello"]);
    owner.ok(["key", "rotate"]);
    let key = std::fs::read(owner.runtime().join("default/key")).unwrap();
    owner.ok(["down"]);
    owner.ok(up);
    assert_eq!(std::fs::read(owner.runtime().join("default/key")).unwrap(), key);
    assert_eq!(owner.ok(["kv", "get", "greeting"]), "hello");
}
