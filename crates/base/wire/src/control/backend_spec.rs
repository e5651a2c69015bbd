//! The backend of a dataset, by its name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Name of the backend that keeps records in the memory of the nodes.
pub const MEMORY_BACKEND: &str = "memory";
/// Name of the backend that keeps keys and lengths, and no values: it isolates the framework's own
/// cost.
pub const NULL_BACKEND: &str = "null";

/// The backend of a dataset. Which ones there are, the nodes know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BackendSpec {
    /// Name: 1 to 32 bytes of letters, digits, `-`, `_` and `.`, not starting with a dot.
    pub name: String,
    /// Directory on the nodes' hosts in which it keeps what it has, if it is not to be where the
    /// nodes keep theirs: absolute, without `..`, at most 1024 bytes.
    pub path: Option<String>,
}

impl BackendSpec {
    /// The backend of this name, at the place that is its own.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), path: None }
    }
}

impl Default for BackendSpec {
    /// [`MEMORY_BACKEND`].
    fn default() -> Self {
        Self::named(MEMORY_BACKEND)
    }
}

impl fmt::Display for BackendSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{} in {path}", self.name),
            None => f.write_str(&self.name),
        }
    }
}
