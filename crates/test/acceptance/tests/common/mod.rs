//! Helpers of all tests here.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The program `samite-acceptance`, with `samite` and its preloaded library built in the profile of the tests: cargo builds
/// neither for the tests of this package.
pub fn helper() -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        if std::env::var_os(samite_testkit::ENV_BINARY).is_some() {
            return;
        }
        let build = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", "test"])
            .args(["--package", "samite-cli", "--package", "samite-preload"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("run cargo");
        assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    });
    env!("CARGO_BIN_EXE_samite-acceptance").into()
}
