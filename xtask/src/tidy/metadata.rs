//! What `cargo metadata` knows of the workspace and its dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// How a crate uses another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CrateUse {
    /// At run time or in a build script.
    Normal,
    /// In its tests only.
    Dev,
}

/// The workspace as cargo resolves it for the default features.
#[derive(Debug, Default)]
pub struct WorkspaceMetadata {
    /// Crates of the workspace, with the names of all that each depends on directly.
    pub members: BTreeMap<String, BTreeSet<(String, CrateUse)>>,
    /// Its layer: the folder of `crates` that it is in, or its own folder if it is not in `crates`.
    pub folders: BTreeMap<String, String>,
    /// Names of all packages that a default build takes in.
    pub packages: BTreeSet<String>,
}

#[derive(Deserialize)]
struct RawMetadata {
    packages: Vec<RawPackage>,
    workspace_members: Vec<String>,
    resolve: RawResolve,
}

#[derive(Deserialize)]
struct RawPackage {
    id: String,
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<RawDependency>,
}

#[derive(Deserialize)]
struct RawDependency {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct RawResolve {
    nodes: Vec<RawNode>,
}

#[derive(Deserialize)]
struct RawNode {
    id: String,
}

impl WorkspaceMetadata {
    /// Asks cargo.
    pub fn load(root: &Path) -> Result<Self, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--filter-platform"])
            .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
            .current_dir(root)
            .output()
            .map_err(|error| format!("run cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let raw: RawMetadata = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("cargo metadata: {error}"))?;
        Ok(Self::from_raw(&raw))
    }

    fn from_raw(raw: &RawMetadata) -> Self {
        let resolved: BTreeSet<&str> =
            raw.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
        let mut metadata = Self::default();
        for package in &raw.packages {
            if resolved.contains(package.id.as_str()) {
                metadata.packages.insert(package.name.clone());
            }
            if raw.workspace_members.contains(&package.id) {
                let uses = package.dependencies.iter().map(|dependency| {
                    let dev = dependency.kind.as_deref() == Some("dev");
                    (dependency.name.clone(), if dev { CrateUse::Dev } else { CrateUse::Normal })
                });
                metadata.members.insert(package.name.clone(), uses.collect());
                let folder = layer_folder(&package.manifest_path).unwrap_or_default();
                metadata.folders.insert(package.name.clone(), folder.to_owned());
            }
        }
        metadata
    }

    /// `krate` and every crate of the workspace that is linked into it. Empty when there is no such crate.
    pub fn linked_into(&self, krate: &str) -> BTreeSet<String> {
        let mut linked = BTreeSet::new();
        let mut waiting = vec![krate.to_owned()];
        while let Some(name) = waiting.pop() {
            let Some(uses) = self.members.get(&name) else { continue };
            let normal = uses.iter().filter(|(_, how)| *how == CrateUse::Normal);
            waiting.extend(
                normal.map(|(name, _)| name).filter(|name| !linked.contains(*name)).cloned(),
            );
            linked.insert(name);
        }
        linked
    }
}

/// The folder that says a crate's layer, by its `Cargo.toml`.
fn layer_folder(manifest: &Path) -> Option<&str> {
    let own = manifest.parent()?;
    let layer = own.parent()?;
    let is_crate = layer.parent().is_some_and(|at| at.ends_with("crates"));
    (if is_crate { layer } else { own }).file_name()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::{CrateUse, Path, WorkspaceMetadata, layer_folder};

    #[test]
    fn the_folder_of_a_crate_is_its_layer() {
        for (manifest, layer) in
            [("/w/crates/base/wire/Cargo.toml", "base"), ("/w/xtask/Cargo.toml", "xtask")]
        {
            assert_eq!(layer_folder(Path::new(manifest)), Some(layer));
        }
    }

    #[test]
    fn what_is_linked_follows_normal_arrows_only() {
        let mut metadata = WorkspaceMetadata::default();
        let entry = |to: &str, how| (to.to_owned(), how);
        metadata.members.insert(
            "top".into(),
            [entry("mid", CrateUse::Normal), entry("kit", CrateUse::Dev)].into(),
        );
        metadata.members.insert("mid".into(), [entry("low", CrateUse::Normal)].into());
        metadata.members.insert("low".into(), [entry("serde", CrateUse::Normal)].into());
        metadata.members.insert("kit".into(), [].into());
        let linked: Vec<_> = metadata.linked_into("top").into_iter().collect();
        assert_eq!(linked, ["low", "mid", "top"]);
        assert!(metadata.linked_into("nothing").is_empty());
    }
}
