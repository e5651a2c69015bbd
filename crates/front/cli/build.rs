//! The version that `samite --version` prints: that of the package, and the commit if it is known.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SAMITE_COMMIT");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = std::env::var("SAMITE_COMMIT").ok().or_else(commit);
    let words = commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    println!("cargo::rustc-env=SAMITE_VERSION={version}{words}");
}

/// The commit that is checked out, as git names it; `None` outside of a repository.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let dir = git(&["rev-parse", "--absolute-git-dir"])?;
    // It changes when another branch is checked out, or with the branch.
    for name in ["HEAD", "logs/HEAD"] {
        let path = Path::new(&dir).join(name);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}
