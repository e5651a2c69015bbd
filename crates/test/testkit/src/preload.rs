//! The library that `samite run` preloads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names the library to test.
const ENV_LIBRARY: &str = "SAMITE_PRELOAD";

/// Path of the library that is preloaded: named by `SAMITE_PRELOAD`, or built now, in the profile of the test that asks. Cargo builds no `cdylib` for
/// tests, not even for those of its own package.
///
/// # Panics
/// It cannot be built.
#[must_use]
pub fn preload_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(path) = std::env::var_os(ENV_LIBRARY).filter(|path| !path.is_empty()) {
            return path.into();
        }
        // The profile of the tests: what it links is built already.
        let build = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", "test", "--package", "samite-preload"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output();
        let build = build.unwrap_or_else(|error| panic!("run cargo: {error}"));
        assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
        // The test is target/<profile>/deps/<test>.
        let test = std::env::current_exe().unwrap_or_default();
        let profile = test.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        profile.join("libsamite_preload.so")
    })
}
