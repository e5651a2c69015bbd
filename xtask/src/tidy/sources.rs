//! The files of the tree that people write.

use std::path::{Path, PathBuf};

/// One source file.
#[derive(Debug)]
pub struct SourceFile {
    /// Path from the root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl SourceFile {
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the file as a whole is a test, by its place in the tree.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }
}

const SUFFIXES: [&str; 7] = [".rs", ".sh", ".md", ".toml", ".py", "Makefile", ".ci/run"];
const SKIPPED: [&str; 5] = ["target", ".git", "corpus", "artifacts", "node_modules"];

/// Reads all of them, ordered by path.
pub fn collect(root: &Path) -> Result<Vec<SourceFile>, String> {
    let mut files = Vec::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        let failed = |error| format!("read {}: {error}", directory.display());
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            let name = entry.file_name();
            if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
                waiting.push(entry.path());
            } else if kind.is_file() {
                files.extend(read(root, entry.path())?);
            }
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn read(root: &Path, path: PathBuf) -> Result<Option<SourceFile>, String> {
    let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
    if !SUFFIXES.iter().any(|suffix| relative.ends_with(suffix)) {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("read {}: {error}", path.display()))?;
    Ok(Some(SourceFile { path: relative, text }))
}

#[cfg(test)]
pub fn sample(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.into(), text: text.into() }
}
