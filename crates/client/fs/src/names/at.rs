//! Where a path starts, and how an error names it.

use samite_types::Result;

use crate::OpenFile;

/// A path, and the open directory that it is relative to.
///
/// A path that starts with `/`, or one without a directory, starts at the root of the store.
/// Paths are bytes; any byte but `/` and NUL may be in a name.
#[derive(Clone, Copy)]
pub struct RelativePath<'a> {
    pub(crate) dir: Option<&'a OpenFile>,
    pub(crate) path: &'a [u8],
}

impl<'a> RelativePath<'a> {
    /// `path` relative to the open directory `dir`.
    #[must_use]
    pub const fn dir(dir: &'a OpenFile, path: &'a [u8]) -> Self {
        Self { dir: Some(dir), path }
    }
}

impl<'a> From<&'a [u8]> for RelativePath<'a> {
    fn from(path: &'a [u8]) -> Self {
        Self { dir: None, path }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for RelativePath<'a> {
    fn from(path: &'a [u8; N]) -> Self {
        Self { dir: None, path }
    }
}

impl<'a> From<&'a Vec<u8>> for RelativePath<'a> {
    fn from(path: &'a Vec<u8>) -> Self {
        Self { dir: None, path }
    }
}

impl<'a> From<&'a str> for RelativePath<'a> {
    fn from(path: &'a str) -> Self {
        Self { dir: None, path: path.as_bytes() }
    }
}

/// Names the call and its path in an error.
pub(crate) fn named<'a, T>(
    call: &'static str,
    at: impl Into<RelativePath<'a>>,
    run: impl FnOnce(RelativePath<'a>) -> Result<T>,
) -> Result<T> {
    let at = at.into();
    run(at).map_err(|error| {
        error.context(format_args!("{call} {:?}", String::from_utf8_lossy(at.path)))
    })
}

#[cfg(test)]
mod tests {
    use samite_types::ErrorKind;

    use super::*;
    use crate::records::store::fail;

    #[test]
    fn an_error_names_the_call_and_the_path() {
        let error = named("unlink", b"/a/b", |_| Err::<(), _>(fail(ErrorKind::NotFound)));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().starts_with("unlink \"/a/b\""), "{}", error.message());
    }
}
