# The programs of test-programs.sh that are Python. What holds for programs.sh, which has the functions they call, holds here.
# shellcheck shell=bash disable=SC2154

program_python() {
  needs python3
  python - <<'PYTHON'
import fcntl, mmap, multiprocessing, os, shelve, tempfile, threading

def grow(name, me, lines):
    with open(name, "a") as f:
        for i in range(lines):
            f.write(f"{me} {i}\n")
            f.flush()

def add(name, times):
    fd = os.open(name, os.O_RDWR)
    for _ in range(times):
        fcntl.lockf(fd, fcntl.LOCK_EX)
        n = int(os.pread(fd, 20, 0) or b"0")
        os.pwrite(fd, b"%020d" % (n + 1), 0)
        fcntl.lockf(fd, fcntl.LOCK_UN)

if __name__ == "__main__":
    with shelve.open("shelf") as shelf:
        for i in range(200):
            shelf[str(i)] = {"n": i, "text": "x" * i}
    with shelve.open("shelf") as shelf:
        assert sorted(map(int, shelf)) == list(range(200)) and shelf["77"]["text"] == "x" * 77
    with open("mapped", "wb") as f:
        f.truncate(3 << 20)
    with open("mapped", "r+b") as f:
        with mmap.mmap(f.fileno(), 0) as m:
            m[5:10] = b"hello"
            m[2 << 20:(2 << 20) + 4] = b"page"
            m.flush()
            assert os.pread(f.fileno(), 5, 5) == b"hello"
        assert os.pread(f.fileno(), 4, 2 << 20) == b"page"
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
            m[:4] = b"mine"
        assert os.pread(f.fileno(), 4, 0) == bytes(4)
    workers = [multiprocessing.Process(target=grow, args=("log", me, 200)) for me in range(4)]
    [w.start() for w in workers]; [w.join() for w in workers]
    lines = [tuple(map(int, line.split())) for line in open("log")]
    assert len(lines) == 800, len(lines)
    for me in range(4):
        assert [i for who, i in lines if who == me] == list(range(200))
    open("counter", "w").close()
    workers = [multiprocessing.Process(target=add, args=("counter", 100)) for _ in range(4)]
    [w.start() for w in workers]; [w.join() for w in workers]
    assert [w.exitcode for w in workers] == [0] * 4
    assert int(open("counter").read()) == 400, open("counter").read()
    with multiprocessing.Pool(3) as pool:
        assert pool.map(len, ["a" * i for i in range(50)]) == list(range(50))
    open("text", "w").write("one\n")
    open("text", "a").write("two\n")
    assert open("text").read() == "one\ntwo\n"
    pid = os.fork()
    if pid == 0:
        with open("text", "a") as f: f.write("three\n")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0 and open("text").read().endswith("three\n")
    with tempfile.TemporaryDirectory(dir=".") as d, tempfile.TemporaryFile(dir=d) as t:
        t.write(b"abc"); t.seek(0)
        assert t.read() == b"abc" and os.listdir(d) == []
    with open("replace.new", "w") as f: f.write("new")
    old = open("text"); os.replace("replace.new", "text")
    assert old.read().startswith("one") and open("text").read() == "new"
    f = open("gone", "w+"); f.write("still here"); f.flush(); os.unlink("gone"); f.seek(0)
    assert f.read() == "still here" and not os.path.exists("gone")
    os.chmod("text", 0o640); os.utime("text", ns=(1, 1234567890123456789))
    st = os.stat("text")
    assert st.st_mode & 0o7777 == 0o640 and st.st_mtime_ns == 1234567890123456789
    fd = os.open("holes", os.O_CREAT | os.O_RDWR); os.pwrite(fd, b"x", 1 << 20)
    assert os.pread(fd, 1 << 20, 0) == bytes(1 << 20) and os.stat("holes").st_size == (1 << 20) + 1
    names = [f"t{i}" for i in range(8)]
    threads = [threading.Thread(target=lambda n=n: open(n, "w").write(n * 1000)) for n in names]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert all(open(n).read() == n * 1000 for n in names)
PYTHON
}

program_python_venv() {
  needs python3
  python -m venv env 2>/dev/null || { echo 'venv is not in python3'; exit 77; }
  # A package as pip wants it, made by hand: nothing is fetched.
  python - <<'PYTHON'
import zipfile
with zipfile.ZipFile("weave-1.0-py3-none-any.whl", "w") as z:
    z.writestr("weave/__init__.py", "def main():\n    print('woven')\n")
    info = "weave-1.0.dist-info/"
    z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: weave\nVersion: 1.0\n")
    z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr(info + "entry_points.txt", "[console_scripts]\nweave = weave:main\n")
    z.writestr(info + "RECORD", "")
PYTHON
  env/bin/pip install -q --no-index --disable-pip-version-check ./weave-1.0-py3-none-any.whl
  same 'output' woven "$(env/bin/weave)"
  same 'version' 1.0 "$(env/bin/python -c 'import importlib.metadata as m; print(m.version("weave"))')"
  env/bin/pip uninstall -q -y weave && ! env/bin/weave 2>/dev/null || fail 'still there after pip uninstall'
}

program_h5py_numpy() {
  needs python3
  # Outside the store, and once for all runs of the script that share the directory.
  local venv=${SAMITE_TEST_VENV:-$SCRATCH/venv}
  if ! "$venv/bin/python" -c 'import h5py, numpy' 2>/dev/null; then
    if ! { LD_PRELOAD='' python -m venv "$venv" && LD_PRELOAD='' timeout 120 "$venv/bin/pip" install -q numpy h5py; }; then
      echo 'numpy and h5py cannot be installed'
      exit 77
    fi
  fi
  "$venv/bin/python" - <<'PYTHON'
import h5py, numpy as np
with h5py.File("a.h5", "w") as f:
    f["x"] = np.arange(300000.0).reshape(1000, 300)
    g = f.create_group("g")
    d = g.create_dataset("packed", (4096, 64), chunks=(64, 64), compression="gzip", dtype="i4")
    for i in range(0, 4096, 64): d[i:i + 64] = i
    d.attrs["unit"] = "m"
with h5py.File("a.h5", "r+") as f:
    assert f["x"][999, 299] == 299999 and f["g/packed"].attrs["unit"] == "m"
    assert (f["g/packed"][:, 0] == np.repeat(np.arange(0, 4096, 64), 64)).all()
    f["x"][5] = -1
    f.create_dataset("more", data=np.ones(1000), maxshape=(None,)).resize((2000,))
with h5py.File("a.h5", "r") as f:
    assert f["x"][5].sum() == -300 and f["more"].shape == (2000,) and f["more"][1999] == 0
m = np.memmap("m.dat", dtype="f8", mode="w+", shape=(512, 1024))
m[:] = np.arange(512)[:, None]; m.flush(); del m
m = np.memmap("m.dat", dtype="f8", mode="r+", shape=(512, 1024))
assert (m[:, 7] == np.arange(512)).all()
m[3] = 9; del m
assert (np.fromfile("m.dat").reshape(512, 1024)[3] == 9).all()
np.save("s.npy", np.arange(10)); assert np.load("s.npy", mmap_mode="r")[9] == 9
PYTHON
}
