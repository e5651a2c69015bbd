//! `splice` between files of the store and pipes: as on the kernel's own file system.

mod common;

use common::Stage;
use samite_testkit::has;

fn compare(program: &str) {
    if has("python3") {
        Stage::new(2).compare_python(program);
    }
}

const PIPES: &str = r#"
import ctypes, errno, os, sys, threading
D = sys.argv[1]
p = lambda name: os.path.join(D, name)
def told(what, call):
    try: print(what, call(), flush=True)
    except OSError as error: print(what, type(error).__name__, error.errno, flush=True)
libc = ctypes.CDLL(None, use_errno=True)
def splice(source, target, length, source_at=None, target_at=None, flags=0):
    places = [None if at is None else ctypes.byref(at) for at in (source_at, target_at)]
    done = libc.splice(source, places[0], target, places[1], ctypes.c_size_t(length), flags)
    if done < 0: raise OSError(ctypes.get_errno(), 'splice')
    return done
at = ctypes.c_longlong
def pipe(room=None):
    read, write = os.pipe()
    for end in (read, write): os.set_blocking(end, True)
    return read, write
NONBLOCK = 2
data = bytes(range(256)) * 1024
open(p('f'), 'wb').write(data)
f = os.open(p('f'), os.O_RDWR)
r, w = pipe()
# Out of the file.
told('first', lambda: (splice(f, w, 100), os.read(r, 1000) == data[:100], os.lseek(f, 0, 1)))
told('next', lambda: (splice(f, w, 50), os.read(r, 1000) == data[100:150], os.lseek(f, 0, 1)))
where = at(1000)
told('from', lambda: (splice(f, w, 10, where), where.value, os.read(r, 100) == data[1000:1010], os.lseek(f, 0, 1)))
where = at(len(data) - 5)
told('end', lambda: (splice(f, w, 100, where), where.value, splice(f, w, 100, where), os.read(r, 100) == data[-5:]))
told('nothing', lambda: splice(f, w, 0))
told('negative', lambda: splice(f, w, 10, at(-1)))
# As much as the pipe has room for.
where = at(0)
told('full', lambda: (splice(f, w, 65536, where, None, NONBLOCK), where.value))
told('no room', lambda: splice(f, w, 10, at(0), None, NONBLOCK))
told('after', lambda: os.read(r, 65536) == data[:65536])
# Into the file.
g = os.open(p('g'), os.O_RDWR | os.O_CREAT, 0o644)
os.write(w, b'hello world')
told('in', lambda: (splice(r, g, 5), os.lseek(g, 0, 1), os.pread(g, 20, 0)))
where = at(100)
told('at', lambda: (splice(r, g, 100, None, where), where.value, os.fstat(g).st_size, os.pread(g, 20, 100), os.lseek(g, 0, 1)))
told('empty', lambda: splice(r, g, 100, None, None, NONBLOCK))
a = os.open(p('g'), os.O_WRONLY | os.O_APPEND)
os.write(w, b'x')
told('append', lambda: splice(r, a, 1))
told('still', lambda: os.read(r, 10))
# Misuse.
os.write(w, b'stays')
told('no pipe', lambda: splice(f, g, 10))
told('place of the pipe', lambda: splice(f, w, 10, None, at(0)))
told('place of the pipe', lambda: splice(r, g, 5, at(0), None))
told('wrong end', lambda: splice(f, r, 10))
told('wrong end', lambda: splice(w, g, 10))
reader, writer = os.open(p('f'), os.O_RDONLY), os.open(p('f'), os.O_WRONLY)
told('reader', lambda: splice(r, reader, 5))
told('writer', lambda: splice(writer, w, 5))
told('named', lambda: splice(os.open(p('f'), os.O_PATH), w, 5))
told('directory', lambda: splice(os.open(D, os.O_RDONLY), w, 5))
told('flags', lambda: splice(f, w, 5, at(0), None, 1 << 10))
told('left', lambda: os.read(r, 100))
# Waits for what comes.
threading.Timer(0.2, lambda: os.write(w, b'late')).start()
told('waits', lambda: (splice(r, g, 100), os.pread(g, 4, os.lseek(g, 0, 1) - 4)))
# A whole copy, through a pipe.
def pump():
    while splice(f, w, 1 << 20): pass
    os.close(w)
os.lseek(f, 0, 0)
thread = threading.Thread(target=pump); thread.start()
os.ftruncate(g, 0); os.lseek(g, 0, 0)
while splice(r, g, 1 << 20): pass
thread.join()
told('copied', lambda: os.pread(g, 1 << 20, 0) == data)
told('closed', lambda: splice(r, g, 10))
r, w = pipe(); os.close(r)
import signal; signal.signal(signal.SIGPIPE, signal.SIG_IGN)
told('broken', lambda: splice(f, w, 10, at(0)))
# Others that copy.
r, w = pipe()
told('tee', lambda: libc.tee(f, w, 10, 0))
told('sendfile', lambda: (os.sendfile(w, f, 5, 10), os.read(r, 20) == data[5:15], os.sendfile(g, f, 0, 7), os.fstat(g).st_size))
told('ranges', lambda: (os.copy_file_range(f, g, 9, 1, 3), os.pread(g, 9, 3) == data[1:10]))
"#;

#[test]
fn pipes_and_files() {
    compare(PIPES);
}
