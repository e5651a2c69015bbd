//! `cargo xtask docs`: pages whose links lead somewhere and whose commands work.
//!
//! The `sh test` blocks of a page run in order, in one shell, in a directory and with a runtime directory of their own, with the
//! `samite` of the release build first in the path. The first command that fails ends the page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const FENCE: &str = "```";

/// Checks every page. `Ok` is a summary line, `Err` all problems found.
pub fn run(root: &Path) -> Result<String, Vec<String>> {
    let pages = pages(root).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let mut ran = 0;
    for page in &pages {
        let name = page.strip_prefix(root).unwrap_or(page).display().to_string();
        let text = match std::fs::read_to_string(page) {
            Ok(text) => text,
            Err(error) => {
                problems.push(format!("read {name}: {error}"));
                continue;
            }
        };
        problems.extend(links(root, page, &name, &text));
        let (script, blocks) = script(&name, &text);
        if blocks > 0 {
            ran += blocks;
            problems.extend(execute(root, &name, &script).err());
        }
    }
    if problems.is_empty() {
        Ok(format!("docs: {} pages, {ran} blocks of commands ran", pages.len()))
    } else {
        Err(problems)
    }
}

/// Markdown files at the root and in `docs/`.
fn pages(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut pages = Vec::new();
    for directory in [root.to_path_buf(), root.join("docs")] {
        let failed = |error| format!("read {}: {error}", directory.display());
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// Relative links that lead nowhere.
fn links(root: &Path, page: &Path, name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let beside = page.parent().unwrap_or(root);
    for (number, line) in text.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = target.contains("://") || target.starts_with('#') || file.is_empty();
            if !outside && !beside.join(file).exists() {
                problems.push(format!("{name}:{}: link to {target} leads nowhere", number + 1));
            }
        }
    }
    problems
}

/// The blocks as one script that says which line failed, and how many blocks there are.
fn script(name: &str, text: &str) -> (String, usize) {
    let mut script = String::from("set -euo pipefail\n");
    let mut blocks = 0;
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        if !inside && line.trim_end() == format!("{FENCE}sh test") {
            inside = true;
            blocks += 1;
            let first = number + 2;
            let _ =
                writeln!(script, "trap 'echo \"{name}: block at line {first}: exit $?\" >&2' ERR");
        } else if inside && line.trim_end() == FENCE {
            inside = false;
        } else if inside {
            script.push_str(line);
            script.push('\n');
        }
    }
    (script, blocks)
}

fn execute(root: &Path, name: &str, script: &str) -> Result<(), String> {
    let binaries = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |directory| root.join(directory))
        .join("release");
    if !binaries.join("samite").exists() {
        return Err(format!(
            "{name}: no {}/samite: cargo build --release first",
            binaries.display()
        ));
    }
    let directory = tempfile::tempdir().map_err(|error| format!("{name}: {error}"))?;
    let runtime = tempfile::tempdir().map_err(|error| format!("{name}: {error}"))?;
    let mut path = binaries.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = Command::new("timeout");
    shell.args(["120", "bash", "-c", script]).current_dir(directory.path());
    shell.env("PATH", &path).env("SAMITE_RUNTIME_DIR", runtime.path().join("run"));
    let output = shell.output().map_err(|error| format!("{name}: run bash: {error}"))?;
    // Whatever the page left running must not outlive it; a page that cleans up makes this a no-op.
    let mut down = Command::new("samite");
    let _ = down
        .args(["down", "--force"])
        .env("PATH", &path)
        .env("SAMITE_RUNTIME_DIR", runtime.path().join("run"))
        .output();
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{name}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_blocks_become_the_script() {
        let text =
            "# Page\n```sh\nnever\n```\n```sh test\necho one\n```\n\n```sh test\necho two\n```\n";
        let (script, blocks) = script("a.md", text);
        assert_eq!(blocks, 2);
        assert!(script.contains("echo one\n") && script.contains("echo two\n"));
        assert!(script.contains("block at line 6") && !script.contains("never"));
    }

    #[test]
    fn links_that_lead_nowhere_are_told() {
        let root = root_of_this_workspace();
        let page = root.join("README.md");
        let text = "[a](Cargo.toml) [b](https://example.org/x) [c](#part) [d](nothing.md#x)";
        let problems = links(&root, &page, "README.md", text);
        assert_eq!(problems, ["README.md:1: link to nothing.md#x leads nowhere"]);
    }

    fn root_of_this_workspace() -> PathBuf {
        crate::root()
    }
}
