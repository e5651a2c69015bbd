//! Files of the store by the names of open descriptors (`/proc/self/fd/3`): as on the kernel's own file system.

mod common;

use common::Stage;
use samite_testkit::has;

#[test]
fn calls_on_the_name_of_a_descriptor_are_calls_on_its_file() {
    if !has("python3") {
        return;
    }
    Stage::new(2).compare_python(
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

/// Who does not see the store meets the memory that the descriptors share, and can neither cut it nor end who uses it.
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
