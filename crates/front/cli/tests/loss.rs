//! Losses by the death of a node without mirrors are told until they are acknowledged.
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

/// The output of `samite ARGS`, which must exit with `code`.
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
    // Known losses outlive the node whose coordinator led.
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

/// Names of files of which nodes have about half each.
fn names() -> Vec<String> {
    (0..64).map(|number| format!("f{number}")).collect()
}

/// A store with files, keys and objects, of which a node has died and come back empty; and the names that are there.
fn with_half() -> (Samite, Vec<String>) {
    let samite = Samite::up(2);
    samite.ok(["mkdir", "/d"]);
    let source = samite.scratch().join("source");
    std::fs::create_dir(&source).unwrap();
    for name in names() {
        std::fs::write(source.join(name), "content").unwrap();
    }
    samite.ok(["stage", "in", source.to_str().unwrap(), "/d"]);
    for name in names() {
        samite.ok(["kv", "put", &name, "value"]);
    }
    samite.ok(["fault", "kill", "1"]);
    samite.ok(["node", "restart", "1"]);
    let output = samite.command(["kv", "list"]).output().unwrap();
    let there = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    (samite, there)
}

#[test]
fn keys_that_may_be_lost_are_not_said_to_be_missing() {
    let (samite, there) = with_half();
    assert!((10..54).contains(&there.len()), "{there:?}");
    for name in names() {
        if there.contains(&name) {
            assert_eq!(samite.ok(["kv", "get", &name]).trim_end(), "value");
            continue;
        }
        for args in [
            &["kv", "get", &name][..],
            &["kv", "put", &name, "x"],
            &["kv", "put", "--if-absent", &name, "x"],
            &["kv", "delete", &name],
        ] {
            let said = samite.fails(6, args);
            assert!(said.contains("samite acknowledge-loss"), "{args:?}: {said}");
        }
    }
    samite.ok(["acknowledge-loss", "kv"]);
    let gone = names().into_iter().find(|name| !there.contains(name)).unwrap();
    samite.fails(4, ["kv", "get", &gone]);
    samite.ok(["kv", "put", &gone, "x"]);
    assert_eq!(samite.ok(["kv", "list"]).lines().count(), there.len() + 1);
    samite.ok(["down"]);
}

/// Runs a shell line over an access path; its output, and whether it succeeded.
fn shell(samite: &Samite, is_interposed: bool, line: &str) -> (String, bool) {
    let mut command = match is_interposed {
        true => samite.interposed("bash"),
        false => std::process::Command::new("bash"),
    };
    let output = command.args(["-c", line]).env("LC_ALL", "C").output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&said).into_owned(), output.status.success())
}

#[test]
fn files_that_may_be_lost_are_not_said_to_be_missing() {
    let (samite, _) = with_half();
    let mount = samite.scratch().join("mount");
    let mut accesses = vec![("/samite/d".to_owned(), true)];
    if samite_testkit::is_fuse_there() {
        std::fs::create_dir(&mount).unwrap();
        samite.ok(["mount", mount.to_str().unwrap()]);
        accesses.push((format!("{}/d", mount.display()), false));
    }
    // By the library: the entries that are there, and then the error.
    let output = samite.command(["ls", "/d"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    let there = String::from_utf8(output.stdout).unwrap();
    let there: Vec<&str> = there.lines().collect();
    assert!((10..54).contains(&there.len()), "{there:?}");
    let gone: Vec<String> =
        names().into_iter().filter(|name| !there.contains(&name.as_str())).collect();
    let (one, other) = (&gone[0], &gone[1]);
    for args in [["cat", &format!("/d/{one}")], ["mkdir", &format!("/d/{one}")]] {
        assert!(samite.fails(6, args).contains("samite acknowledge-loss"));
    }
    for (dir, is_interposed) in &accesses {
        let is_eio = |line: String| {
            let (said, is_content) = shell(&samite, *is_interposed, &line);
            assert!(!is_content && said.contains("Input/output error"), "{line}: {said}");
            said
        };
        let said = is_eio(format!("ls {dir}"));
        assert!(there.iter().all(|name| said.lines().any(|line| line == *name)), "{said}");
        is_eio(format!("ls -l {dir}"));
        is_eio(format!("cat {dir}/{one}"));
        is_eio(format!("for i in {{1..9}}; do stat {dir}/{other} && exit 0; done; exit 1"));
        is_eio(format!("echo x > {dir}/{one}"));
        is_eio(format!("set -C; echo x > {dir}/{one}"));
        is_eio(format!("mkdir {dir}/{one}"));
        is_eio(format!("mv {dir}/{} {dir}/{one}", there[0]));
        is_eio(format!("rmdir {dir}"));
        let (said, is_content) = shell(&samite, *is_interposed, &format!("cat {dir}/{}", there[1]));
        assert!(is_content && said == "content", "{said}");
    }
    samite.ok(["acknowledge-loss", "files"]);
    for (dir, is_interposed) in &accesses {
        let line = format!("ls {dir} && ! stat {dir}/{one}");
        let (said, is_content) = shell(&samite, *is_interposed, &line);
        assert!(is_content && said.contains("No such file or directory"), "{line}: {said}");
    }
    // A new file is in no one's way: no inode number comes twice.
    for (number, (dir, is_interposed)) in accesses.iter().enumerate() {
        let line = format!("for i in {{1..20}}; do echo $i > {dir}/new{number}-$i || exit 1; done");
        assert_eq!(shell(&samite, *is_interposed, &line), (String::new(), true));
    }
    for (dir, is_interposed) in &accesses {
        let line = format!("ls -i {dir} | awk '{{ print $1 }}' | sort | uniq -d");
        assert_eq!(shell(&samite, *is_interposed, &line), (String::new(), true));
        let (said, is_content) = shell(&samite, *is_interposed, &format!("cat {dir}/*"));
        assert!(is_content && said.matches("content").count() == there.len(), "{said}");
    }
    let line = format!("echo x > /samite/d/{one} && cat /samite/d/{one}");
    assert_eq!(shell(&samite, true, &line), ("x\n".to_owned(), true));
    samite.ok(["mkdir", &format!("/d/{other}")]);
    samite.fails(4, ["cat", &format!("/d/{}", gone.last().unwrap())]);
    if accesses.len() > 1 {
        samite.ok(["umount", mount.to_str().unwrap()]);
    }
    samite.ok(["down"]);
}

#[test]
fn what_is_left_of_a_directory_is_copied_out_and_the_rest_is_an_error() {
    let (samite, _) = with_half();
    let listed = said(&samite, 6, &["ls", "/d"]);
    let out = samite.scratch().join("out");
    let output = samite.command(["stage", "out", "/d", out.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("list \"/d\"") && told.contains("samite acknowledge-loss"), "{told}");
    assert!(told.contains(" 1 errors"), "{told}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), listed.lines().count());
    samite.ok(["down"]);
}

#[test]
fn objects_that_may_be_lost_are_not_said_to_be_missing() {
    let samite = Samite::up(2);
    let file = samite.scratch().join("file");
    std::fs::write(&file, "content").unwrap();
    for name in names().iter().take(16) {
        samite.ok(["object", "put", name, file.to_str().unwrap()]);
    }
    samite.ok(["fault", "kill", "1"]);
    samite.ok(["node", "restart", "1"]);
    let output = samite.command(["object", "ls"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    let there = String::from_utf8(output.stdout).unwrap();
    let gone = names().into_iter().take(16).find(|name| !there.lines().any(|one| one == name));
    let gone = gone.unwrap();
    assert!(samite.fails(6, ["object", "get", &gone, "-"]).contains("samite acknowledge-loss"));
    samite.fails(6, ["object", "put", &gone, file.to_str().unwrap()]);
    samite.ok(["acknowledge-loss"]);
    samite.fails(4, ["object", "get", &gone, "-"]);
    samite.ok(["object", "put", &gone, file.to_str().unwrap()]);
    samite.ok(["down"]);
}

#[test]
fn who_cannot_reach_a_node_hears_how_it_ended_and_how_it_comes_back() {
    let samite = Samite::up(2);
    let pid = samite.pids("default")[1];
    samite.ok(["fault", "kill", "1"]);
    let said = samite.fails(3, ["ls", "/"]);
    let words = format!(
        "n1 is down: its process (pid {pid}) was killed by signal 9 (SIGKILL); `samite node restart 1` starts it again, empty: what it held is gone"
    );
    assert!(said.ends_with(&format!("{words}\n")), "{said}");
    let said = samite.fails(3, ["status"]);
    assert_eq!(said.matches("cluster default: ").count(), 1, "{said}");
    assert!(said.contains("n1 does not answer: connect "), "{said}");
}
