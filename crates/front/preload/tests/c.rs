//! A C program that goes through libc's less common calls.

mod common;

use common::{Stage, build};
use samite_testkit::has;

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

/// Runs the program `name` of `tests/c` both ways.
fn compare(name: &str) {
    if !has("cc") {
        return;
    }
    let room = tempfile::tempdir().expect("temporary directory");
    let program = build(name, room.path());
    Stage::new(2).compare(&format!("{} $D", program.display()));
}

#[test]
fn sent_and_asynchronous() {
    compare("sent_and_asynchronous");
}

#[test]
fn named_sockets() {
    compare("named_sockets");
}

#[test]
fn mappings() {
    compare("mappings");
}

#[test]
fn a_fork_while_threads_touch_the_store_first() {
    compare("fork_at_first_touch");
}

#[test]
fn a_fork_with_an_allocator_that_locks_itself_meanwhile() {
    compare("fork_with_allocator");
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

#[test]
fn a_signal_handler_that_forks_within_calls() {
    compare("fork_in_handler");
}
