//! The claims of `SEMANTICS.md`, each as a test with two processes.

mod data;
mod directories;
mod life;
mod locks;
mod mirrors;
mod names;

use crate::door::Door;
use crate::door::agent::Agent;
use crate::stage::{Stage, Way};

/// One claim: its id on the page, and what shows that it holds.
pub struct Claim {
    /// As on the page.
    pub id: &'static str,
    /// Panics when it does not hold.
    pub test: fn(&mut Scene<'_>),
}

/// Two processes with the store open, each by some way, and an empty directory.
pub struct Scene<'a> {
    /// One process.
    pub one: &'a mut dyn Door,
    /// Another.
    pub other: &'a mut dyn Door,
    /// The directory, without a slash at the end.
    pub dir: String,
    stage: &'a Stage,
    ways: [Way; 2],
}

impl<'a> Scene<'a> {
    /// Sets one, with the directory made.
    ///
    /// # Panics
    /// The directory cannot be made.
    pub fn new(
        stage: &'a Stage,
        ways: [Way; 2],
        (one, other): (&'a mut dyn Door, &'a mut dyn Door),
        dir: &str,
    ) -> Self {
        one.mkdir(dir).expect("make the directory");
        Self::again(stage, ways, (one, other), dir)
    }

    /// The same, with a directory that was made before.
    #[must_use]
    pub fn again(
        stage: &'a Stage,
        ways: [Way; 2],
        (one, other): (&'a mut dyn Door, &'a mut dyn Door),
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
    pub fn victim(&self) -> Agent {
        self.stage.door(self.ways[0])
    }
}

/// All claims.
#[must_use]
pub fn all() -> Vec<Claim> {
    [data::CLAIMS, names::CLAIMS, directories::CLAIMS, locks::CLAIMS, life::CLAIMS]
        .into_iter()
        .flatten()
        .map(|(id, test)| Claim { id, test: *test })
        .collect()
}

/// What is to be found after a node's death.
pub type After = Box<dyn FnOnce(&mut Scene<'_>)>;

/// A claim about the death of a node that holds mirrored records.
pub struct MirrorClaim {
    /// As on the page.
    pub id: &'static str,
    /// Prepares, and tells what has to hold after the death; both panic.
    pub test: fn(&mut Scene<'_>) -> After,
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
