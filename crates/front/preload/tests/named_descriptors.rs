//! Files of the store by the names of open descriptors (`/proc/self/fd/3`), and descriptors that only name a file (`O_PATH`): as on
//! the kernel's own file system.

mod common;

use common::Stage;
use samite_testkit::has;

fn compare(program: &str) {
    if has("python3") {
        Stage::new(2).compare_python(program);
    }
}

#[test]
fn calls_on_the_name_of_a_descriptor_are_calls_on_its_file() {
    compare(
        r#"
import os, subprocess, sys
D = sys.argv[1]
p = lambda name: os.path.join(D, name)
def told(what, call):
    try: print(what, call(), flush=True)
    except OSError as error: print(what, type(error).__name__, error.errno, flush=True)
fd = os.open(p('f'), os.O_RDWR | os.O_CREAT, 0o644)
reader = os.open(p('f'), os.O_RDONLY)
pid = os.getpid()
names = ['/proc/self/fd/%d', '/dev/fd/%d', '/proc/thread-self/fd/%d', '/proc/' + str(pid) + '/fd/%d', '/proc/self/task/' + str(pid) + '/fd/%d']
for number, name in enumerate(names):
    name = name % fd
    os.pwrite(fd, b'0123456789', 0)
    told('truncate', lambda: os.truncate(name, 5 - number))
    told('chmod', lambda: os.chmod(name, 0o600 + number))
    told('chown', lambda: os.chown(name, 10 + number, 20 + number) if os.getuid() == 0 else None)
    told('utime', lambda: os.utime(name, (1000 + number, 2000 + number)))
    told('set', lambda: os.setxattr(name, 'user.n%d' % number, b'x' * number))
    told('get', lambda: os.getxattr(name, 'user.n%d' % number))
    told('list', lambda: sorted(os.listxattr(name)))
    told('remove', lambda: os.removexattr(name, 'user.n%d' % number))
    told('none', lambda: os.getxattr(name, 'user.n%d' % number))
    told('access', lambda: (os.access(name, os.R_OK), os.access(name, os.X_OK), os.access(name, 0)))
    told('statvfs', lambda: os.statvfs(name).f_namemax)
    s, t = os.stat(p('f')), os.fstat(fd)
    print(s.st_size, oct(s.st_mode), s.st_uid, s.st_gid, s.st_atime, s.st_mtime, s == t, os.pread(fd, 100, 0))
# The descriptor says nothing of what the caller may do.
told('of a reader', lambda: os.truncate('/proc/self/fd/%d' % reader, 3))
told('beyond', lambda: (os.truncate('/proc/self/fd/%d' % reader, 8192), os.fstat(fd).st_size))
os.write(fd, b'dirty'); told('dirty', lambda: os.truncate('/proc/self/fd/%d' % fd, 2)); os.close(fd); told('size', lambda: os.stat(p('f')).st_size)
told('closed', lambda: os.chmod('/proc/self/fd/%d' % fd, 0o600))
told('other', lambda: os.chmod('/proc/self/fd/999', 0o600))
told('shell', lambda: subprocess.run('exec 7<>%s; echo long text >&7; : > /proc/$$/fd/7; stat -c %%s %s; echo x >&7; chmod 640 /dev/fd/7; stat -c "%%s %%a" %s; touch -d @5 /proc/self/fd/7; stat -c %%Y %s' % ((p('sh'),) * 4), shell=True, executable='/bin/bash').returncode)
os.mkdir(p('d')); open(p('d/in'), 'w').write('text')
d = os.open(p('d'), os.O_RDONLY)
below = '/proc/self/fd/%d/' % d
told('dir', lambda: (os.chmod(below[:-1], 0o711), oct(os.stat(p('d')).st_mode)))
told('below', lambda: (open(below + 'in').read(), os.stat(below + '//in').st_size, os.listdir(below), os.listdir(below[:-1]), os.path.isdir(below)))
told('make', lambda: (open(below + 'new', 'w').close(), os.rename(below + 'new', below + 'newer'), sorted(os.listdir(p('d'))), os.unlink(below + 'newer')))
told('up', lambda: sorted(os.listdir(below + '..')))
told('missing', lambda: os.stat(below + 'missing'))
told('file', lambda: os.stat('/proc/self/fd/%d/x' % reader))
told('cut', lambda: os.truncate(below[:-1], 0))
told('chdir', lambda: (os.chdir(below[:-1]), os.listdir('.'), os.getcwd().replace(D, 'D'), os.chdir('/')))
told('link', lambda: os.path.islink(below[:-1]))
"#,
    );
}

/// A process that does not see the store meets the memory that the descriptors share, and can
/// neither cut it nor end its users.
#[test]
fn a_process_outside_cannot_cut_what_descriptors_share() {
    let output = Stage::new(1).run(
        r#"
        exec 7<> $D/log; echo line >&7; unset LD_PRELOAD
        env sh -c ": > /proc/$$/fd/7" 2> /dev/null; echo $?; env truncate -s 0 /proc/$$/fd/7 2> /dev/null; echo $?
        echo more >&7; stat -L -c %s /dev/fd/7
        "#,
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said, "2\n1\n10\n", "{output:?}");
}

const ONLY_NAMES: &str = r#"
import fcntl, mmap, os, shutil, sys
D = sys.argv[1]
p = lambda name: os.path.join(D, name)
def told(what, call):
    try: print(what, call(), flush=True)
    except OSError as error: print(what, type(error).__name__, error.errno, flush=True)
os.mkdir(p('d')); open(p('d/f'), 'w').write('some text'); os.symlink('d/f', p('s')); os.mkfifo(p('pipe'))
O = os.O_PATH
f, d = os.open(p('d/f'), O), os.open(p('d'), O | os.O_DIRECTORY)
s = os.open(p('s'), O | os.O_NOFOLLOW)
through = os.open(p('s'), O)
pipe = os.open(p('pipe'), O)
for name, fd in (('file', f), ('directory', d), ('link', s), ('through', through), ('pipe', pipe)):
    print(name, oct(os.fstat(fd).st_mode), os.fstat(fd).st_nlink, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NOFOLLOW & ~0o100000)
    told('statvfs', lambda: os.fstatvfs(fd).f_namemax)
    told('read', lambda: os.read(fd, 10))
    told('pread', lambda: os.pread(fd, 10, 0))
    told('readv', lambda: os.readv(fd, [bytearray(3)]))
    told('write', lambda: os.write(fd, b'x'))
    told('pwrite', lambda: os.pwrite(fd, b'x', 0))
    told('seek', lambda: os.lseek(fd, 0, os.SEEK_END))
    told('chmod', lambda: os.fchmod(fd, 0o600))
    told('chown', lambda: os.fchown(fd, 1, 1))
    told('cut', lambda: os.ftruncate(fd, 1))
    told('allocate', lambda: os.posix_fallocate(fd, 0, 10))
    told('advise', lambda: os.posix_fadvise(fd, 0, 10, os.POSIX_FADV_DONTNEED))
    told('sync', lambda: os.fsync(fd))
    told('datasync', lambda: os.fdatasync(fd))
    told('lock', lambda: fcntl.flock(fd, fcntl.LOCK_EX))
    told('range', lambda: fcntl.lockf(fd, fcntl.LOCK_SH))
    told('flags', lambda: fcntl.fcntl(fd, fcntl.F_SETFL, 0))
    told('owner', lambda: fcntl.fcntl(fd, fcntl.F_GETOWN))
    told('lease', lambda: fcntl.fcntl(fd, fcntl.F_GETLEASE))
    told('ioctl', lambda: fcntl.ioctl(fd, 0x541B, b'    '))
    told('map', lambda: mmap.mmap(fd, 4, prot=mmap.PROT_READ))
    told('get', lambda: os.getxattr(fd, 'user.x'))
    told('set', lambda: os.setxattr(fd, 'user.x', b'x'))
    told('list', lambda: os.listxattr(fd))
    told('remove', lambda: os.removexattr(fd, 'user.x'))
    told('times', lambda: os.utime(fd, (1, 2)))
    other = os.open(p('d/f'), os.O_RDWR)
    told('send', lambda: os.sendfile(other, fd, 0, 3))
    told('copy', lambda: os.copy_file_range(fd, other, 3))
    told('copy to', lambda: os.copy_file_range(other, fd, 3))
    os.close(other)
    told('dup', lambda: oct(os.fstat(os.dup(fd)).st_mode))
    told('list directory', lambda: os.listdir(fd))
told('relative', lambda: (os.stat('f', dir_fd=d).st_size, os.read(os.open('f', os.O_RDONLY, dir_fd=d), 20)))
told('make', lambda: (os.mkdir('sub', dir_fd=d), os.rename('sub', 'sub2', src_dir_fd=d, dst_dir_fd=d), os.listdir(p('d/sub2')), os.rmdir('sub2', dir_fd=d)))
told('path', lambda: os.open('f', O, dir_fd=d) > 2)
told('chdir', lambda: (os.fchdir(d), os.listdir('.'), os.chdir('/')))
told('target', lambda: os.readlink('', dir_fd=s))
told('no target', lambda: os.readlink('', dir_fd=f))
told('itself', lambda: oct(os.stat('', dir_fd=f).st_mode))
names = {name: '/proc/self/fd/%d' % fd for name, fd in (('file', f), ('directory', d), ('link', s))}
told('mode', lambda: (os.chmod(names['file'], 0o640), oct(os.fstat(f).st_mode), os.chmod(names['directory'], 0o750), oct(os.fstat(d).st_mode)))
told('mode of link', lambda: os.chmod(names['link'], 0o640))
told('owner', lambda: (os.chown(names['file'], 5, 6), os.chown(names['link'], 7, 8), os.fstat(f).st_uid, os.fstat(s).st_uid, os.fstat(f).st_gid) if os.getuid() == 0 else None)
told('times', lambda: (os.utime(names['file'], (3, 4)), os.fstat(f).st_mtime))
told('attribute', lambda: (os.setxattr(names['file'], 'user.a', b'v'), os.getxattr(names['file'], 'user.a'), os.getxattr(p('d/f'), 'user.a')))
told('length', lambda: (os.truncate(names['file'], 4), os.fstat(f).st_size))
told('again', lambda: os.read(os.open(names['file'], os.O_RDONLY), 20))
again = os.open(names['file'], os.O_RDWR | os.O_APPEND)
told('written', lambda: (os.write(again, b'-more'), os.pread(again, 20, 0), fcntl.fcntl(again, fcntl.F_GETFL) & os.O_APPEND))
told('emptied', lambda: (os.close(os.open(names['file'], os.O_WRONLY | os.O_TRUNC)), os.fstat(f).st_size))
told('once more', lambda: oct(os.fstat(os.open(names['file'], O)).st_mode))
told('directory again', lambda: (os.listdir(os.open(names['directory'], os.O_RDONLY)), os.listdir(names['directory'])))
told('directory written', lambda: os.open(names['directory'], os.O_RDWR))
told('no directory', lambda: os.open(names['file'], os.O_RDONLY | os.O_DIRECTORY))
told('a link', lambda: os.open(names['link'], os.O_RDONLY))
told('not followed', lambda: os.open(names['file'], os.O_RDONLY | os.O_NOFOLLOW))
reader = os.open(p('d/f'), os.O_RDONLY)
told('more than before', lambda: os.write(os.open('/proc/self/fd/%d' % reader, os.O_RDWR), b'rw'))
told('access', lambda: os.access(names['file'], os.R_OK))
told('flags', lambda: fcntl.fcntl(os.open(p('d/f'), O | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC), fcntl.F_GETFL) & ~0o100000)
told('kept', lambda: os.fstat(f).st_size)
told('new', lambda: os.open(p('new'), O | os.O_CREAT, 0o644))
os.unlink(p('d/f')); told('unlinked', lambda: (os.fstat(f).st_nlink, os.read(os.open(names['file'], os.O_RDONLY), 20)))
pid = os.fork()
if pid == 0:
    told('child', lambda: (oct(os.fstat(d).st_mode), os.listdir(names['directory'])))
    os._exit(0)
os.waitpid(pid, 0)
shutil.copy('/bin/echo', p('program'))
for mode in (0o755, 0o644):
    os.chmod(p('program'), mode)
    pid = os.fork()
    if pid == 0:
        told('run', lambda: os.execve(os.open(p('program'), O), ['echo', 'runs'], os.environ))
        os._exit(0)
    os.waitpid(pid, 0)
os.set_inheritable(d, True)
os.execv(sys.executable, [sys.executable, '-c', 'import os; print(oct(os.fstat(%d).st_mode), os.open("x", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=%d) > 2, os.listdir("/proc/self/fd/%d"))\ntry: os.fchmod(%d, 0)\nexcept OSError as e: print(e.errno)' % ((d,) * 4)])
"#;

#[test]
fn a_descriptor_that_only_names_a_file() {
    compare(ONLY_NAMES);
}
