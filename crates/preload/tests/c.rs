//! A C program that goes through libc's less common calls.

mod common;

use std::process::Command;

use common::{Stage, has};

#[test]
fn libc_surface() {
    if !has("cc") {
        return;
    }
    let room = tempfile::tempdir().expect("temporary directory");
    let program = room.path().join("libc_surface");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/libc_surface.c");
    let built =
        Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source).output();
    let built = built.expect("run cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let stage = Stage::new(2);
    stage.compare(&format!("{} $D; cat $D/at_exit", program.display()));
}
