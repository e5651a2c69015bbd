//! A change of this mount's own, from its begin to its end.

use super::{ChangeEffect, DirectoryCache, NameChange};

/// An own change under way. A change that ends by a panic leaves nothing cached.
pub(super) struct OwnChange<'d> {
    directories: &'d DirectoryCache,
    ino: Option<u64>,
    of_names: (u64, NameChange<'d>),
    pub(super) effect: ChangeEffect,
    pub(super) gone: Option<u64>,
    pub(super) is_done: bool,
}

impl<'d> OwnChange<'d> {
    pub(super) fn begin(
        directories: &'d DirectoryCache,
        ino: Option<u64>,
        of_names: (u64, NameChange<'d>),
    ) -> Self {
        let mut table = directories.lock();
        match ino {
            Some(ino) => table.begin(ino),
            None => table.begin_any(of_names.0),
        }
        table.begin_names(of_names.0, of_names.1);
        Self {
            directories,
            ino,
            of_names,
            effect: ChangeEffect::Unknown,
            gone: None,
            is_done: false,
        }
    }
}

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        let mut table = self.directories.lock();
        table.end_names(self.of_names.0, self.of_names.1, self.is_done);
        match (self.ino, self.gone) {
            (Some(ino), _) => table.end(ino, self.effect),
            (None, gone) => {
                table.changing -= 1;
                match gone {
                    Some(ino) => table.drop_kept(ino),
                    None => table.drop_all(),
                }
            }
        }
    }
}
