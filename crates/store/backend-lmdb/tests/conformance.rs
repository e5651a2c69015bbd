//! The backend passes the suite.

use samite_backend::conformance;
use samite_backend_lmdb::open_target;

#[test]
fn lmdb_conforms() {
    let dirs = tempfile::tempdir().expect("a directory");
    let count = std::cell::Cell::new(0);
    conformance::run(&|| {
        count.set(count.get() + 1);
        let dir = dirs.path().join(count.get().to_string());
        Box::new(open_target(&dir, 8 << 20).expect("lmdb target").backend())
    });
}

#[test]
fn lmdb_remembers() {
    let dirs = tempfile::tempdir().expect("a directory");
    let count = std::cell::Cell::new(0);
    conformance::run_remembering(&|| {
        count.set(count.get() + 1);
        let dir = dirs.path().join(count.get().to_string());
        Box::new(move || Box::new(open_target(&dir, 16 << 20).expect("lmdb target").backend()))
    });
}
