//! A C program that goes through libc's less common calls.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Stage, has};

/// Builds the program `name` of `tests/c` into `room`.
fn build(name: &str, room: &Path) -> PathBuf {
    let program = room.join(name);
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let built =
        Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source).output();
    let built = built.expect("run cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

#[test]
fn libc_surface() {
    if !has("cc") {
        return;
    }
    let room = tempfile::tempdir().expect("temporary directory");
    let program = build("libc_surface", room.path());
    let stage = Stage::new(2);
    stage.compare(&format!("{} $D; cat $D/at_exit", program.display()));
}

#[test]
fn a_fork_while_threads_touch_the_store_first() {
    if !has("cc") {
        return;
    }
    let room = tempfile::tempdir().expect("temporary directory");
    let program = build("fork_at_first_touch", room.path());
    let stage = Stage::new(2);
    stage.compare(&format!("{} $D", program.display()));
}

#[test]
fn libraries_are_found_beside_the_caller_and_in_the_store() {
    if !has("cc") {
        return;
    }
    let stage = Stage::new(1);
    stage.compare(
        r#"
        mkdir /tmp/samite-dl.$$ && cd /tmp/samite-dl.$$ && mkdir lib && trap 'rm -r /tmp/samite-dl.$$' EXIT
        echo 'int f(void) { return 42; }' > f.c; cc -shared -fPIC -o lib/libf.so f.c
        cat > m.c <<X
#include <dlfcn.h>
#include <stdio.h>
int main(int c, char **v) {
    void *h = dlopen(v[1], RTLD_NOW);
    if (!h) return puts(dlerror()), 1;
    return printf("%d\n", ((int (*)(void))dlsym(h, "f"))()), 0;
}
X
        cc -o m m.c -Wl,-rpath,'$ORIGIN/lib'; ./m libf.so; cp lib/libf.so $D; ./m $D/libf.so; cd $D; /tmp/samite-dl.$$/m ./libf.so
        /tmp/samite-dl.$$/m $D/none.so
        "#,
    );
}
