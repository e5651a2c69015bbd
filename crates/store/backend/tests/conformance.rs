//! Each backend passes the suite.

use samite_backend::conformance;
use samite_backend::memory::MemoryBackend;
use samite_backend::null::NullBackend;

#[test]
fn memory_conforms() {
    conformance::run(&|| Box::new(MemoryBackend::new(8 << 20, 1).expect("memory target")));
}

#[test]
fn null_conforms() {
    conformance::run(&|| Box::new(NullBackend::new(4 << 20)));
}
