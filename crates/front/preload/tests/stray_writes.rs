//! Programs whose pointers go astray.

mod common;

use std::path::PathBuf;
use std::process::Stdio;

use common::{MOUNT, Stage, build};
use samite_testkit::has;

/// Files of each program that keeps what it was told.
const FILES: &str = "600";
/// How often the other one overwrites all that it can, before it begins anew.
const ROUNDS: &str = "30";

fn program(room: &tempfile::TempDir) -> Option<PathBuf> {
    has("cc").then(|| build("stray_writes", room.path()))
}

#[test]
fn stored_records_are_read_only_to_programs() {
    let room = tempfile::tempdir().expect("temporary directory");
    let Some(program) = program(&room) else { return };
    let stage = Stage::new(1);
    let output = stage.run(&format!("{} locked $D; cmp -s $D/5 $D/6; echo $?", program.display()));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "looked yes, written 0\n1\n", "{output:?}");
}

#[test]
fn a_program_that_overwrites_all_it_can_changes_nothing_of_others() {
    let room = tempfile::tempdir().expect("temporary directory");
    let Some(program) = program(&room) else { return };
    let program = program.to_str().expect("path");
    let stage = Stage::new(1);
    let at = |name: &str| format!("{MOUNT}/{name}");
    let mut keepers = ["a", "b"].map(|name| {
        let mut command = stage.command(program);
        let command = command.args(["keep", &at(name), FILES]).stdout(Stdio::null());
        command.spawn().expect("start a keeper")
    });
    // At least once, and until both are through.
    loop {
        // What it is told, and whether it survives, is its own affair.
        let wild = stage.command(program).args(["wild", MOUNT, ROUNDS]).output().expect("run");
        assert_ne!(wild.status.code(), Some(3), "nothing was writable: {wild:?}");
        if keepers.iter_mut().all(|keeper| keeper.try_wait().expect("wait").is_some()) {
            break;
        }
    }
    for keeper in &mut keepers {
        let status = keeper.wait().expect("wait");
        assert!(status.success(), "{status}");
    }
    for name in ["a", "b"] {
        let output = stage.command(program).args(["check", &at(name), FILES]).output();
        let output = output.expect("run");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0 wrong\n", "{output:?}");
    }
}
