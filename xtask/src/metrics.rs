//! `cargo xtask metrics`: docs/metrics.md, made of the registry of metrics.

use std::path::Path;

/// The page of metrics.
const PAGE: &str = "docs/metrics.md";

/// Writes the page.
pub fn run(root: &Path) -> Result<String, Vec<String>> {
    std::fs::write(root.join(PAGE), samite_metrics::page::page())
        .map(|()| format!("metrics: {PAGE} is written"))
        .map_err(|error| vec![format!("write {PAGE}: {error}")])
}

/// A problem, if the page describes other metrics than there are.
pub fn check(root: &Path) -> Option<String> {
    match std::fs::read_to_string(root.join(PAGE)) {
        Ok(text) if text == samite_metrics::page::page() => None,
        Ok(_) => Some(format!("{PAGE}: is old; cargo xtask metrics writes it")),
        Err(error) => Some(format!("read {PAGE}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_page_is_told() {
        let root = tempfile::tempdir().expect("a directory");
        assert!(check(root.path()).is_some(), "there is none");
        std::fs::create_dir(root.path().join("docs")).expect("a directory");
        assert!(run(root.path()).is_ok());
        assert_eq!(check(root.path()), None);
        std::fs::write(root.path().join(PAGE), "# Metrics\n").expect("it is ours");
        assert!(check(root.path()).is_some());
    }
}
