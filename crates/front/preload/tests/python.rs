//! Python programs on files of the store.

mod common;

use common::Stage;
use samite_testkit::has;

fn compare(program: &str) {
    if has("python3") {
        let head = "import os,sys,mmap,shutil,subprocess,tempfile,select\nD=sys.argv[1]\np=lambda n: os.path.join(D,n)\n";
        Stage::new(2).compare_python(&format!("{head}{program}"));
    }
}

#[test]
fn files() {
    compare(
        r"
with open(p('f'),'w') as f: f.write('hello\n'*1000)
print(os.path.getsize(p('f')), open(p('f')).read(12))
with open(p('f'),'a') as f: f.write('tail')
with open(p('f'),'rb') as f:
    f.seek(-4,2); print(f.read()); f.seek(0); print(f.readline(), f.tell(), len(f.readlines()))
with open(p('f'),'r+b') as f:
    f.seek(3); f.write(b'XYZ'); f.flush(); f.seek(0); print(f.read(8)); f.truncate(20); print(os.fstat(f.fileno()).st_size)
fd=os.open(p('fd'),os.O_RDWR|os.O_CREAT,0o644); os.write(fd,b'0123456789')
print(os.lseek(fd,2,0),os.read(fd,3),os.pread(fd,2,8),os.pwrite(fd,b'AB',0))
d=os.dup(fd); os.lseek(d,0,0); print(os.read(fd,4)); os.close(d); os.fsync(fd); print(os.isatty(fd))
print(os.writev(fd,[b'aa',b'bbb']), os.preadv(fd,[bytearray(2)],1)); os.ftruncate(fd,4); print(os.fstat(fd).st_size)
os.posix_fallocate(fd,0,100); print(os.fstat(fd).st_size); os.close(fd)
for call in (lambda: os.read(fd,1), lambda: os.open(p('fd'),os.O_CREAT|os.O_EXCL), lambda: open(p('none')), lambda: os.mkdir(p('fd/x')), lambda: os.rmdir(p('fd')), lambda: os.unlink(D), lambda: open(p('fd')).write('x'), lambda: os.listdir(p('fd')), lambda: open(D,'w'), lambda: os.rename(p('none'),p('x')), lambda: os.open(p('f'*256),os.O_CREAT), lambda: os.readlink(p('fd'))):
    try: call(); print('no error')
    except OSError as e: print(type(e).__name__, e.errno)
h=0
with open(p('big'),'wb') as f:
    for i in range(50): f.write(bytes([i])*100003)
with open(p('big'),'rb') as f:
    while b:=f.read(65537): h=(h*31+sum(b[:100])+len(b))%1000003
print(h,os.path.getsize(p('big')))
a=os.open(p('f'),os.O_RDONLY); b=os.open(p('sf'),os.O_CREAT|os.O_WRONLY,0o644); print(os.sendfile(b,a,0,10)); print(os.copy_file_range(a,b,5)); print(open(p('sf'),'rb').read())
with open(p('hole'),'wb') as f: f.seek(1<<30); f.write(b'end')
with open(p('hole'),'rb') as f: print(f.read(10), f.seek(0,2)); f.seek(-5,2); print(f.read())
with open(p('gone'),'w+b') as f: f.write(b'x'*20000); os.unlink(p('gone')); f.seek(0); print(len(f.read()), os.path.exists(p('gone')))
",
    );
}

#[test]
fn directories() {
    compare(
        r"
os.makedirs(p('pd/a/b'),exist_ok=True); open(p('pd/a/x'),'w').write('x'); open(p('pd/a/b/y'),'w').write('y')
print(sorted(os.listdir(p('pd/a')))); print(sorted(e.name+str(e.is_dir()) for e in os.scandir(p('pd/a'))))
for r,d,f in os.walk(p('pd')): print(r,sorted(d),sorted(f))
shutil.copytree(p('pd'),p('pd2')); print(sorted(os.listdir(p('pd2/a')))); shutil.copy2(p('pd/a/x'),p('x2')); shutil.move(p('x2'),p('x3'))
shutil.rmtree(p('pd2')); print(os.path.exists(p('pd2')), os.path.exists(p('x3')))
os.rename(p('x3'),p('x4')); os.replace(p('x4'),p('x5')); os.symlink('x5',p('s')); print(os.readlink(p('s')),os.path.islink(p('s')),os.path.realpath(p('s')))
os.link(p('x5'),p('x6')); print(os.stat(p('x6')).st_nlink); os.unlink(p('x6')); os.chmod(p('x5'),0o600); print(oct(os.stat(p('x5')).st_mode)); os.utime(p('x5'),(1,2)); print(os.stat(p('x5')).st_mtime)
os.chdir(p('pd')); print(os.getcwd(),os.listdir('.'),open('a/x').read(),os.path.abspath('q')); os.chdir('..'); print(os.path.exists('pd')); os.chdir('/')
dfd=os.open(p('pd'),os.O_RDONLY|os.O_DIRECTORY); print(os.stat('a',dir_fd=dfd).st_mode, os.listdir(dfd))
f=os.open('new',os.O_CREAT|os.O_WRONLY,dir_fd=dfd); os.close(f); os.unlink('new',dir_fd=dfd); os.mkdir('nd',dir_fd=dfd); os.rmdir('nd',dir_fd=dfd); os.fchdir(dfd); print(os.getcwd()); os.chdir('/'); os.close(dfd)
with tempfile.TemporaryDirectory(dir=D) as t: open(os.path.join(t,'z'),'w').write('z'); print(os.listdir(t))
with tempfile.NamedTemporaryFile(dir=D) as t: t.write(b'q'); t.flush(); print(os.path.getsize(t.name))
with tempfile.TemporaryFile(dir=D) as t: t.write(b'q'); t.seek(0); print(t.read())
for i in range(3000): os.close(os.open(p('pd/%d'%i),os.O_CREAT))
print(len(set(os.listdir(p('pd')))))
print(os.statvfs(D).f_namemax,os.access(p('x5'),os.R_OK),os.access(p('nope'),os.F_OK))
os.setxattr(p('x5'),'user.k',b'v'); print(os.listxattr(p('x5')),os.getxattr(p('x5'),'user.k')); os.removexattr(p('x5'),'user.k'); print(os.listxattr(p('x5')))
",
    );
}

#[test]
fn mappings() {
    compare(
        r"
open(p('f'),'wb').write(bytes(range(256))*100)
with open(p('f'),'rb') as f:
    m=mmap.mmap(f.fileno(),0,access=mmap.ACCESS_READ); print(m[:8],len(m),m.find(b'\xff\x00')); m.close()
    m=mmap.mmap(f.fileno(),100,access=mmap.ACCESS_COPY,offset=8192); m[0:3]=b'zzz'; print(m[:5]); m.close()
print(open(p('f'),'rb').read()[8192:8195])
with open(p('f'),'r+b') as f:
    m=mmap.mmap(f.fileno(),0); m[0:3]=b'ABC'; m[20000:20002]=b'ZZ'; m.flush(); print(open(p('f'),'rb').read()[:5]); m[10]=0; m.close()
print(open(p('f'),'rb').read()[:12], open(p('f'),'rb').read()[20000:20003])
with open(p('f'),'r+b') as f: m=mmap.mmap(f.fileno(),0); m[1]=90
del m
print(open(p('f'),'rb').read()[:3])
",
    );
}

#[test]
fn processes_share_offsets_and_inherit_descriptors() {
    compare(
        r#"
pid=os.fork()
if pid==0:
    open(p('child'),'w').write('child'); os._exit(0)
os.waitpid(pid,0); print(open(p('child')).read())
f=open(p('shared'),'wb',buffering=0); f.write(b'parent1\n')
pid=os.fork()
if pid==0:
    f.write(b'child\n'); os._exit(0)
os.waitpid(pid,0); f.write(b'parent2\n'); f.close(); print(open(p('shared')).read())
open(p('j'),'w').write('text\n')
r=subprocess.run(['cat'],stdin=open(p('j')),stdout=open(p('out'),'w')); print(open(p('out')).read())
r=subprocess.run('cat; echo err >&2',shell=True,stdin=open(p('j')),stdout=open(p('out'),'w'),stderr=subprocess.STDOUT); print(open(p('out')).read())
r=subprocess.run(['/bin/cat'],stdin=open(p('j')),stdout=open(p('out'),'w'),close_fds=False); print(open(p('out')).read())
r=os.posix_spawn('/bin/cat',['cat',p('j')],os.environ,file_actions=[(os.POSIX_SPAWN_OPEN,1,p('sp'),os.O_WRONLY|os.O_CREAT,0o644)]); os.waitpid(r,0); print(open(p('sp')).read())
fd=os.open(p('j'),os.O_RDONLY); r=os.posix_spawn('/bin/cat',['cat'],os.environ,file_actions=[(os.POSIX_SPAWN_DUP2,fd,0)]); os.waitpid(r,0)
print(subprocess.run(['ls'],cwd=D,capture_output=True,text=True).stdout)
print(os.popen('cat '+p('j')).read(), flush=True)
r=subprocess.run([sys.executable,'-c','import os; print("a",flush=True); os.system("echo sys"); print("b")'],stdout=open(p('o'),'w')); print(open(p('o')).read())
fd=os.open(p('seq'),os.O_CREAT|os.O_RDWR); os.write(fd,b'line1\nline2\nline3\n'); os.lseek(fd,6,0); os.set_inheritable(fd,True)
subprocess.run('head -c6 <&%d; cat <&%d'%(fd,fd),shell=True,pass_fds=[fd]); print(os.lseek(fd,0,1),flush=True)
os.set_inheritable(fd,False); print(subprocess.run(['ls','/proc/self/fd'],capture_output=True,close_fds=False).returncode)
import multiprocessing as m
def w(i):
    with open(p('mp'),'a') as f: f.write('%d\n'%i)
ps=[m.Process(target=w,args=(i,)) for i in range(8)]; [x.start() for x in ps]; [x.join() for x in ps]; print(sorted(open(p('mp')).read().split()))
f=open(p('j')); print(len(select.select([f],[],[],1)[0])); po=select.poll(); po.register(f,select.POLLIN); print(len(po.poll(100)))
import threading
def t(i):
    for k in range(30):
        with open(p('th'),'a') as f: f.write('%d\n'%k)
ts=[threading.Thread(target=t,args=(i,)) for i in range(4)]; [x.start() for x in ts]; [x.join() for x in ts]; print(len(open(p('th')).readlines()))
"#,
    );
}

/// Processes that map the same pages again and again, each with bytes of its own in every page: a
/// process that finds bytes of its own finds those that it wrote last, and in the end the file has
/// everything.
#[test]
fn mapped_by_several() {
    if !has("python3") {
        return;
    }
    const PROGRAM: &str = r"
import mmap, os, random, sys, multiprocessing as mp
name = sys.argv[1] + '/raced'
PAGES, ROUNDS, WORKERS = 600, 60, 4
def work(me):
    mine = random.Random(me)
    last = {}
    for round in range(ROUNDS):
        fd = os.open(name, os.O_RDWR)
        start = mine.randrange(0, PAGES - 100) * 4096
        with mmap.mmap(fd, 100 * 4096, offset=start) as found:
            os.close(fd)
            for _ in range(30):
                at = mine.randrange(0, 100) * 4096 + me * 1000 + mine.randrange(1000)
                value = mine.randrange(1, 256)
                was = last.get(start + at, 0)
                assert found[at] == was, (me, round, start + at, found[at], was)
                found[at] = value
                last[start + at] = value
            if round % 3 == 0: found.flush()
    return last
if __name__ == '__main__':
    with open(name, 'wb') as made: made.truncate(PAGES * 4096)
    with mp.Pool(WORKERS) as pool: parts = pool.map(work, range(WORKERS))
    whole = open(name, 'rb').read()
    for part in parts:
        for at, value in part.items(): assert whole[at] == value, (at, whole[at], value)
    assert sum(1 for byte in whole if byte) == sum(map(len, parts))
    print('as written')
";
    Stage::new(2).compare_python(PROGRAM);
}

/// Removals complete early; a removal that was reported is done, however the remover ends.
#[test]
fn files_made_by_a_process_that_is_killed() {
    compare(
        r"
import time
for round in range(12):
    d=p('m%d'%round); os.mkdir(d); names=['%s/%04d'%(d,i) for i in range(1500)]
    r,w=os.pipe(); pid=os.fork()
    if pid==0:
        for n in names: os.close(os.open(n,os.O_CREAT|os.O_EXCL|os.O_WRONLY,0o644)); os.write(w,b'.')
        os._exit(0)
    os.close(w); count=len(os.read(r,1)); time.sleep(0.002*round/4)
    os.kill(pid,9); os.waitpid(pid,0)
    while got:=os.read(r,4096): count+=len(got)
    os.close(r); there=set(os.listdir(d))
    if not all(os.path.exists(n) for n in names[:count]): print('gone')
    # The one that was on its way when the process was killed may be there or not.
    if len(there) not in (count, count+1): print(count, len(there))
    if any(os.path.exists(n) for n in names[count+1:]): print('too many')
    for n in there: os.unlink(d+'/'+n)
    os.rmdir(d)
print('done')
",
    );
}

#[test]
fn removals_by_a_process_that_is_killed() {
    compare(
        r"
import time
for round in range(12):
    d=p('r%d'%round); os.mkdir(d); names=['%s/%04d'%(d,i) for i in range(1500)]
    for n in names: os.close(os.open(n,os.O_CREAT|os.O_WRONLY,0o644))
    r,w=os.pipe(); pid=os.fork()
    if pid==0:
        for n in names: os.stat(n); os.unlink(n); os.write(w,b'.')
        os._exit(0)
    os.close(w); count=len(os.read(r,1)); time.sleep(0.002*round/4)
    os.kill(pid,9); os.waitpid(pid,0)
    while got:=os.read(r,4096): count+=len(got)
    os.close(r); left=set(os.listdir(d))
    if any(os.path.exists(n) for n in names[:count]): print('there again')
    # The one that was on its way when the process was killed may be done or not.
    if len(left) not in (len(names)-count, len(names)-count-1): print(count, len(left))
    if not all(os.path.exists(n) for n in names[count+1:]): print('gone')
    for n in left: os.unlink(d+'/'+n)
    os.rmdir(d)
print('done')
",
    );
}

#[test]
fn owners_and_leases() {
    compare(
        r"
import fcntl, struct
def told(what, call):
    try: print(what, call(), flush=True)
    except OSError as error: print(what, type(error).__name__, error.errno, flush=True)
fd = os.open(p('f'), os.O_RDWR | os.O_CREAT, 0o644)
same, other = os.dup(fd), os.open(p('f'), os.O_RDWR)
control = fcntl.fcntl
told('lease', lambda: control(fd, fcntl.F_GETLEASE) == fcntl.F_UNLCK)
told('of nobody', lambda: control(fd, fcntl.F_GETOWN))
told('mine', lambda: (control(fd, fcntl.F_SETOWN, os.getpid()), control(same, fcntl.F_GETOWN) == os.getpid(), control(other, fcntl.F_GETOWN)))
told('group', lambda: (control(fd, fcntl.F_SETOWN, -os.getpgrp()), struct.unpack('ii', control(fd, 16, bytes(8))) == (2, os.getpgrp())))
told('none', lambda: (control(fd, fcntl.F_SETOWN, 0), control(fd, fcntl.F_GETOWN)))
told('nobody', lambda: control(fd, fcntl.F_SETOWN, 2**22 + 5))
told('least', lambda: control(fd, fcntl.F_SETOWN, -2**31))
EX = 'ii'
F_SETOWN_EX, F_GETOWN_EX = 15, 16
for kind, number in ((0, os.getpid()), (1, os.getpid()), (2, os.getpgrp())):
    told('extended', lambda: (control(fd, F_SETOWN_EX, struct.pack(EX, kind, number)) == struct.pack(EX, kind, number), struct.unpack(EX, control(fd, F_GETOWN_EX, bytes(8))) == (kind, number)))
told('no such kind', lambda: control(fd, F_SETOWN_EX, struct.pack(EX, 3, 1)))
told('no such process', lambda: control(fd, F_SETOWN_EX, struct.pack(EX, 1, 2**22 + 5)))
told('less than none', lambda: control(fd, F_SETOWN_EX, struct.pack(EX, 1, -5)))
F_SETSIG, F_GETSIG = 10, 11
told('signal', lambda: (control(fd, F_GETSIG), control(fd, F_SETSIG, 12), control(same, F_GETSIG), control(other, F_GETSIG)))
told('no signal', lambda: control(fd, F_SETSIG, 65))
told('no pipe', lambda: control(fd, 1032))
told('unknown', lambda: control(fd, 999))
pid = os.fork()
if pid == 0:
    told('child', lambda: (control(fd, F_GETSIG), control(fd, fcntl.F_SETOWN, 0)))
    os._exit(0)
os.waitpid(pid, 0)
told('shared', lambda: control(fd, fcntl.F_GETOWN))
told('new', lambda: (os.close(fd), os.close(same), control(os.open(p('f'), os.O_RDONLY), F_GETSIG)))
",
    );
}

#[test]
fn leases_are_refused() {
    if !has("python3") {
        return;
    }
    let output =
        Stage::new(1).command("python3").args(["-c", LEASES]).output().expect("run python3");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "22 22 22 2\n", "{output:?}");
}

const LEASES: &str = r"
import fcntl, os
fd = os.open('/samite/f', os.O_RDONLY | os.O_CREAT, 0o644)
def told(kind):
    try: return fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
    except OSError as error: return error.errno
print(*map(told, (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK)), fcntl.fcntl(fd, fcntl.F_GETLEASE))
";
