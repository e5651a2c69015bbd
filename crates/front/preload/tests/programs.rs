//! Starting, ending and failing programs.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{MOUNT, Stage, library};
use samite_testkit::{has, skip, skip_part};
use samite_types::NodeId;

#[test]
fn programs_that_lie_in_the_store() {
    let stage = Stage::new(1);
    stage.compare(
        r#"
        cp /bin/echo $D/echo; $D/echo run; cd $D; ./echo relative; PATH=$D:$PATH; hash -r; echo by path | cat; cd /
        printf '#!/bin/sh\necho script "$@"\n' > $D/s; chmod +x $D/s; $D/s a b; cd $D; ./s c; cd /; env $D/s d
        printf '#!/usr/bin/env -S bash -e\necho env "$@"\n' > $D/e; chmod +x $D/e; $D/e x
        printf 'echo no line "$1"\n' > $D/n; chmod +x $D/n; $D/n y; echo text > $D/t; $D/t; echo $?
        chmod -x $D/s; sh -c "$D/s" 2>/dev/null; echo $?; find $D -name t -exec cat {} \;; nice $D/echo nice
        "#,
    );
}

#[test]
fn a_program_that_touches_no_path_of_the_store_needs_none() {
    for script in ["echo x", "ls /etc > /dev/null; cat /etc/passwd | wc -l > /dev/null"] {
        let output = Command::new("bash")
            .args(["-c", script])
            .env("LD_PRELOAD", library())
            .env("SAMITE_CLUSTER", "nowhere")
            .env("SAMITE_RUNTIME_DIR", "/nonexistent")
            .output()
            .expect("run bash");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn without_a_store_calls_fail_and_nothing_is_printed() {
    let output = Command::new("cat")
        .arg("/samite/x")
        .env("LD_PRELOAD", library())
        .env("SAMITE_RUNTIME_DIR", "/nonexistent")
        .env("LC_ALL", "C")
        .output()
        .expect("run cat");
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_dead_node_is_an_error_within_the_deadline() {
    let mut stage = Stage::new(1);
    assert!(stage.run("echo x > $D/f").status.success());
    stage.cluster().stop_node(NodeId(0)).expect("stop the node");
    let start = Instant::now();
    let output = stage.run("cat $D/f; echo y > $D/g");
    assert!(!output.status.success(), "{output:?}");
    assert!(start.elapsed() < Duration::from_secs(90), "took {:?}", start.elapsed());
}

#[test]
fn each_name_is_won_once_by_24_processes() {
    if !has("python3") {
        return;
    }
    const PROGRAM: &str = r"
import os,sys
won=0
for i in range(1000):
    try: os.close(os.open('%s/%d'%(sys.argv[1],i),os.O_CREAT|os.O_EXCL|os.O_WRONLY)); won+=1
    except FileExistsError: pass
print(won)
";
    let stage = Stage::new(2);
    let racers: Vec<_> = (0..24)
        .map(|_| {
            let mut command = stage.command("python3");
            command.args(["-c", PROGRAM, MOUNT]).stdout(std::process::Stdio::piped());
            command.spawn().expect("run python3")
        })
        .collect();
    let won: usize = racers
        .into_iter()
        .map(|racer| {
            let output = racer.wait_with_output().expect("wait");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).trim().parse::<usize>().expect("a count")
        })
        .sum();
    assert_eq!(won, 1000);
    let listed = stage.run("ls $D | wc -l");
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "1000");
}

#[test]
fn appenders_lose_nothing() {
    let stage = Stage::new(2);
    let output = stage.run(
        r"for p in 1 2 3 4 5 6; do (for i in $(seq 100); do echo $p.$i >> $D/log; done) & done; wait; sort -u $D/log | wc -l",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "600", "{output:?}");
}

#[test]
fn programs_that_do_not_see_the_store_are_named_once() {
    if !has("cc") {
        return;
    }
    let stage = Stage::new(1);
    let room = tempfile::tempdir().expect("temporary directory");
    let program = room.path().join("static");
    let script = format!(
        "echo 'int main(void) {{ return 0; }}' | cc -static -x c -o {} -",
        program.display()
    );
    if !stage.run(&script).status.success() {
        return skip("static-libc");
    }
    let run = |script: &str| {
        let output = stage.run(&format!("P={}; {script}", program.display()));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(run("$P /etc/passwd; cat $D/none 2> /dev/null; true"), "");
    assert_eq!(run("SAMITE_QUIET=1 $P $D/f; true"), "");
    let said = run("for i in 1 2 3; do $P --in=$D/f; done; cd $D; $P; true");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("is statically linked") && said.contains("samite mount"), "{said}");
    if !stage.run("unshare --pid --fork true").status.success() {
        // Only root makes a process namespace.
        return skip_part("namespaces");
    }
    // As in a container: the terminal session has no number there.
    let other = room.path().join("other");
    std::fs::copy(&program, &other).expect("copy of the program");
    let inside = run(&format!("unshare --pid --fork bash -c '{} $D/f; true'", other.display()));
    assert_eq!(inside.lines().count(), 1, "{inside}");
    assert!(inside.contains("is statically linked"), "{inside}");
}
