//! File locks, between processes on one node and on three.

mod common;

use common::{Stage, build};
use samite_testkit::has;

#[test]
fn every_kind_of_lock() {
    if !has("cc") {
        return;
    }
    let room = tempfile::tempdir().expect("temporary directory");
    let program = build("locks", room.path());
    for nodes in [1, 3] {
        Stage::new(nodes).compare(&format!("{} $D", program.display()));
    }
}

/// `SAMITE_STRESS_ROUNDS` makes it longer.
#[test]
fn counters_under_locks() {
    if !has("cc") {
        return;
    }
    let rounds = std::env::var("SAMITE_STRESS_ROUNDS").unwrap_or_else(|_| "100".into());
    let room = tempfile::tempdir().expect("temporary directory");
    let program = build("lock_stress", room.path());
    Stage::new(2).compare(&format!("{} $D 8 {rounds}", program.display()));
}

#[test]
fn the_flock_command_in_scripts() {
    if !has("flock") {
        return;
    }
    Stage::new(2).compare(
        r#"
        exec 9>$D/l; flock 9; flock -n $D/l true || echo held by the shell
        (flock -n 9 && echo the same description)
        exec 8>&9 9>&-; flock -n $D/l true || echo held by the copy
        exec 8>&-; flock -n $D/l echo free
        (flock 9; flock -n $D/l true || echo held by the block) 9>$D/l; flock -n $D/l echo free
        flock $D/l sh -c "flock -n $D/l true || echo held by its parent"
        flock -s $D/l sh -c "flock -s -n $D/l echo beside"
        flock $D/l sleep 1 & sleep 0.3; flock -w 0.2 $D/l true; echo waited $?; flock $D/l echo got it; wait
        flock -o $D/l sh -c "sleep 5 > /dev/null &"; flock -w 2 $D/l echo not inherited
        for i in 1 2 3 4; do (for j in $(seq 8); do flock $D/l sh -c "n=\$(cat $D/n 2>/dev/null || echo 0); echo \$((n + 1)) > $D/n"; done) & done; wait; cat $D/n
        "#,
    );
}

#[test]
fn python_locks() {
    if !has("python3") {
        return;
    }
    Stage::new(2).compare_python(
        r#"
import fcntl, multiprocessing, os, signal, sys
path = sys.argv[1] + "/count"
def work(how):
    for _ in range(25):
        with open(path, "r+") as f:
            how(f, fcntl.LOCK_EX)
            n = int(f.read())
            f.seek(0)
            f.write(str(n + 1))
            f.flush()
for how in fcntl.flock, fcntl.lockf:
    with open(path, "w") as f:
        f.write("0")
    all = [multiprocessing.Process(target=work, args=(how,)) for _ in range(4)]
    for one in all: one.start()
    for one in all: one.join()
    print(open(path).read())
f = open(path, "r+")
fcntl.lockf(f, fcntl.LOCK_EX)
child = os.fork()
if child == 0:
    g = open(path, "r+")
    class Rang(Exception): pass
    def ring(*_): raise Rang
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        fcntl.lockf(g, fcntl.LOCK_EX)
        print("got it")
    except Rang:
        print("rang")
    try:
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("held")
    sys.stdout.flush()
    os._exit(0)
os.wait()
"#,
    );
}

/// Four processes insert; every row arrives, and the database is whole.
fn sqlite(nodes: usize, journal: &str) {
    if !has("sqlite3") {
        return;
    }
    let script = r#"
        db=$D/JOURNAL.db
        sqlite3 $db "pragma journal_mode=JOURNAL; create table t(p, n);" > $D/mode
        insert() { for n in $(seq 10); do echo "insert into t values($1, $n);"; done | sqlite3 -cmd ".timeout 60000" $db; }
        for p in 1 2 3 4; do insert $p & done; wait
        cat $D/mode; sqlite3 $db "pragma integrity_check; select count(*), count(distinct p * 100 + n) from t"
    "#;
    Stage::new(nodes).compare(&script.replace("JOURNAL", journal));
}

#[test]
fn sqlite_with_a_rollback_journal() {
    sqlite(1, "delete");
    sqlite(3, "truncate");
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    sqlite(1, "wal");
    sqlite(3, "wal");
}

#[test]
fn processes_killed_with_locks() {
    if !has("cc") {
        return;
    }
    let lives = std::env::var("SAMITE_STRESS_ROUNDS").unwrap_or_else(|_| "60".into());
    let room = tempfile::tempdir().expect("temporary directory");
    let program = build("lock_kill", room.path());
    Stage::new(2).compare(&format!("{} $D {lives}", program.display()));
}

#[test]
fn a_lock_stays_with_a_descriptor_that_was_sent() {
    if !has("python3") {
        return;
    }
    Stage::new(1).compare_python(
        r#"
import fcntl, os, socket, subprocess, sys
path = sys.argv[1] + "/sent"
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
    theirs.send(b"x")
    theirs.recv(1)
    os._exit(0)
fd = os.open(path, os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
socket.send_fds(ours, [b"f"], [fd])
ours.recv(1)
os.close(fd)
other = os.open(path, os.O_RDWR)
try:
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except BlockingIOError:
    print("the receiver has it")
ours.send(b"x")
os.wait()
fcntl.flock(other, fcntl.LOCK_EX)
print("free with its end")
"#,
    );
}
