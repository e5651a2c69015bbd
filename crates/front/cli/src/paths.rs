//! Paths on the command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// A path in the store: absolute from the store's root, any bytes but NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePath(pub Vec<u8>);

impl StorePath {
    /// The path's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// For messages.
    pub fn show(&self) -> String {
        crate::output::escaped(&self.0)
    }

    /// Its last component; empty for the root.
    pub fn base(&self) -> &[u8] {
        let path = trim_slashes(&self.0);
        path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }

    /// The directories above it and itself, outermost first, without the root.
    pub fn prefixes(&self) -> Vec<&[u8]> {
        let path = trim_slashes(&self.0);
        let mut prefixes: Vec<&[u8]> = (1..path.len())
            .filter(|&at| path[at] == b'/' && path[at - 1] != b'/')
            .map(|at| &path[..at])
            .collect();
        if path.iter().any(|&byte| byte != b'/') {
            prefixes.push(path);
        }
        prefixes
    }
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    &path[..end]
}

/// Parses a [`StorePath`].
pub fn store_path() -> impl TypedValueParser<Value = StorePath> {
    OsStringValueParser::new().try_map(|raw: OsString| {
        let path = raw.into_vec();
        if path.first() != Some(&b'/') {
            return Err(format!(
                "{}: a path in the store starts at its root: /{}",
                crate::output::escaped(&path),
                crate::output::escaped(&path)
            ));
        }
        if path.len() > samite_fs::PATH_LEN_MAX {
            return Err(format!("over {} bytes", samite_fs::PATH_LEN_MAX));
        }
        Ok(StorePath(path))
    })
}

#[cfg(test)]
mod tests {
    use super::StorePath;

    #[test]
    fn components_are_found_whatever_the_slashes() {
        let path = StorePath(b"//a/b//c/".to_vec());
        assert_eq!(path.base(), b"c");
        assert_eq!(path.prefixes(), [&b"//a"[..], b"//a/b", b"//a/b//c"]);
        let root = StorePath(b"/".to_vec());
        assert_eq!(root.base(), b"");
        assert!(root.prefixes().is_empty());
    }
}
