//! Files without a name, between processes: as on the kernel's own file system.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::Stage;

#[test]
fn open_files_outlive_their_names_for_parents_children_and_successors() {
    let stage = Stage::new(3);
    stage.compare(
        r#"
        echo hi > $D/a; exec 5<>$D/a; bash -c "rm $D/a"; cat <&5; echo more >&5; stat -L -c %h /dev/fd/5; cat /dev/fd/5
        (cat /dev/fd/5); bash -c 'cat /dev/fd/5; echo child >&5'; cat /dev/fd/5; exec 5>&-
        echo old > $D/b; exec 6< $D/b; echo new > $D/b2; mv $D/b2 $D/b; cat <&6; cat $D/b; exec 6<&-
        ln $D/b $D/b3; exec 6< $D/b3; rm $D/b; rm $D/b3; cat <&6; stat -L -c %h /dev/fd/6; exec 6<&-
        TMPDIR=$D bash -c 'cat <<Y
here-document
Y'
        mkfifo $D/p 2> /dev/null
        bash -c "exec 8>> $D/log; (sleep 0.5; echo late; sleep 3; echo later) >&8 2>&1 &"; mv $D/log $D/moved; exec 7< $D/moved; rm $D/moved
        sleep 4; cat <&7; exec 7<&-; ls $D
        "#,
    );
    stage.compare_python(
        r#"
import os, tempfile, sys
d = sys.argv[1]
with tempfile.TemporaryFile(dir=d) as f:
    f.write(b"x" * 100000); f.flush(); f.seek(0)
    print(len(f.read()), os.fstat(f.fileno()).st_nlink)
fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(fd, b"named later")
os.link(f"/proc/self/fd/{fd}", d + "/named", src_dir_fd=None, follow_symlinks=True)
print(open(d + "/named").read(), os.fstat(fd).st_nlink)
os.close(fd)
r = os.open(d + "/named", os.O_RDONLY)
pid = os.fork()
if pid == 0:
    os.unlink(d + "/named")
    print(os.pread(r, 100, 0)); sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
print(os.pread(r, 5, 6), os.fstat(r).st_nlink, os.path.exists(d + "/named"))
"#,
    );
}

/// Nobody touches the file between the end of the process that opened it and the end of a node's
/// patience with clients that are gone.
#[test]
fn files_outlive_who_opened_them_untouched() {
    let stage = Stage::new(3);
    stage.compare_python(
        r#"
import os, sys, time
d = sys.argv[1]
def nameless(name):
    fd = os.open(f"{d}/{name}", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, name.encode())
    os.unlink(f"{d}/{name}")
    return fd
def late(fd):
    time.sleep(5)
    return f"{os.pread(fd, 100, 0)} {os.fstat(fd).st_nlink}\n".encode()
def forked(out):
    fd = nameless("forked")
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(out, late(fd))
def killed(out):
    fd = nameless("killed")
    if os.fork() == 0:
        os.write(out, late(fd))
    else:
        os.kill(os.getpid(), 9)
def executed(out):
    fd = nameless("executed")
    os.set_inheritable(fd, True)
    os.set_inheritable(out, True)
    program = f"import os, time\ntime.sleep(5)\nos.write({out}, os.pread({fd}, 100, 0) + b'\\n')"
    os.execv(sys.executable, [sys.executable, "-c", program])
results = []
for way in (forked, killed, executed):
    into, out = os.pipe()
    if os.fork() == 0:
        way(out)
        os._exit(0)
    os.close(out)
    results.append(into)
for into in results:
    print(open(into).read())
"#,
    );
}
