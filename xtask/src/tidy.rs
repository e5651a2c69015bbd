//! `cargo xtask tidy`: what the compiler and clippy do not see.
//!
//! Every check gives problems as plain lines. What a check would refuse can be allowed in `tidy.toml` with a written
//! reason; an entry that allows nothing any more is a problem too, so that the list never outlives its causes.

mod arrows;
mod config;
mod metadata;
mod names;
mod size;
mod sources;
mod words;

use std::path::Path;

pub use config::TidyConfig;
#[cfg(test)]
pub use config::tests::sample as sample_config;
pub use metadata::{CrateUse, WorkspaceMetadata};
#[cfg(test)]
pub use sources::sample;
pub use sources::{SourceFile, collect as sources};

use crate::{layers, metrics, skips};

/// Runs every check. `Ok` is a summary line, `Err` all problems found.
pub fn run(root: &Path) -> Result<String, Vec<String>> {
    let config = TidyConfig::load(&root.join("tidy.toml")).map_err(|problem| vec![problem])?;
    let metadata = WorkspaceMetadata::load(root).map_err(|problem| vec![problem])?;
    let files = sources::collect(root).map_err(|problem| vec![problem])?;

    let mut problems = arrows::check(&config, &metadata);
    problems.extend(arrows::check_bans(&config, &metadata));
    problems.extend(size::check(&config, &files));
    let hooked = metadata.linked_into(&config.preload.krate);
    if hooked.is_empty() {
        problems.push(format!("tidy.toml: preload crate {} is not here", config.preload.krate));
    }
    problems.extend(words::check(&config, &files, &hooked));
    problems.extend(names::check(&config, &files));
    let page = files.iter().find(|file| file.path == layers::PAGE);
    problems.extend(page.and_then(|page| layers::check(&config, &metadata, &page.text)));
    problems.extend(metrics::check(root));
    match std::fs::read_to_string(root.join(skips::LIST)) {
        Ok(list) => problems.extend(skips::check(&list, &files)),
        Err(error) => problems.push(format!("read {}: {error}", skips::LIST)),
    }
    if problems.is_empty() {
        Ok(format!(
            "tidy: {} crates, {} files, nothing to say",
            metadata.members.len(),
            files.len()
        ))
    } else {
        Err(problems)
    }
}
