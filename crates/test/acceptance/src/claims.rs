//! The claims of `SEMANTICS.md`, each as a test with two processes.

mod data;
mod directories;
mod life;
mod locks;
mod mirrors;
mod names;

use crate::access_path::AccessPath;
use crate::access_path::agent::AgentPath;
use crate::stage::{AcceptanceStage, StagePath};

/// One claim: its id on the page, and the test that shows that it is true.
pub struct SemanticsClaim {
    /// As on the page.
    pub id: &'static str,
    /// Panics when it is not true.
    pub test: fn(&mut ClaimScene<'_>),
}

/// Two processes with the store open, each by some way, and an empty directory.
pub struct ClaimScene<'a> {
    /// One process.
    pub one: &'a mut dyn AccessPath,
    /// Another.
    pub other: &'a mut dyn AccessPath,
    /// The directory, without a slash at the end.
    pub dir: String,
    stage: &'a AcceptanceStage,
    ways: [StagePath; 2],
}

impl<'a> ClaimScene<'a> {
    /// Sets one, with the directory made.
    ///
    /// # Panics
    /// The directory cannot be made.
    pub fn new(
        stage: &'a AcceptanceStage,
        ways: [StagePath; 2],
        (one, other): (&'a mut dyn AccessPath, &'a mut dyn AccessPath),
        dir: &str,
    ) -> Self {
        one.mkdir(dir).expect("make the directory");
        Self::again(stage, ways, (one, other), dir)
    }

    /// The same, with a directory that was made before.
    #[must_use]
    pub fn again(
        stage: &'a AcceptanceStage,
        ways: [StagePath; 2],
        (one, other): (&'a mut dyn AccessPath, &'a mut dyn AccessPath),
        dir: &str,
    ) -> Self {
        Self { one, other, dir: dir.into(), stage, ways }
    }

    /// A path in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// A third process, by the way of the first: to be killed.
    #[must_use]
    pub fn victim(&self) -> AgentPath {
        self.stage.access_path(self.ways[0])
    }
}

/// All claims.
#[must_use]
pub fn all() -> Vec<SemanticsClaim> {
    [data::CLAIMS, names::CLAIMS, directories::CLAIMS, locks::CLAIMS, life::CLAIMS]
        .into_iter()
        .flatten()
        .map(|(id, test)| SemanticsClaim { id, test: *test })
        .collect()
}

/// The state that is to be found after a node's death.
pub type After = Box<dyn FnOnce(&mut ClaimScene<'_>)>;

/// A claim about the death of a node that holds mirrored records.
pub struct MirrorClaim {
    /// As on the page.
    pub id: &'static str,
    /// Prepares, and returns the check for after the death; both panic.
    pub test: fn(&mut ClaimScene<'_>) -> After,
}

/// All of these.
#[must_use]
pub fn mirrored() -> Vec<MirrorClaim> {
    mirrors::CLAIMS.iter().map(|(id, test)| MirrorClaim { id, test: *test }).collect()
}

/// Ids of the claims on a page: list items that begin with one in backquotes and a colon.
#[must_use]
pub fn ids_on_page(page: &str) -> Vec<&str> {
    page.lines()
        .filter_map(|line| line.strip_prefix("- `")?.split_once("`: ").map(|(id, _)| id))
        .collect()
}
