//! Listing a directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::PoisonError;

use fuser::{INodeNo, ReplyDirectory};

use super::{Answer, Ops, failed};
use crate::handles::Listing;
use crate::kernel;

impl Ops {
    /// Adds entries after `cookie` to a reply until it is full.
    pub fn list(&self, handle: u64, cookie: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        let handle = self.file(handle)?;
        let mut slot = handle.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let listing = match &mut *slot {
            Some(listing) => listing,
            slot => slot.insert(Listing {
                entries: handle.file.read_dir().map_err(failed)?,
                held_back: None,
            }),
        };
        let mut next = listing.held_back.take();
        if next.as_ref().map_or(listing.entries.tell(), |(before, _)| *before) != cookie {
            next = None;
            listing.entries.seek(cookie).map_err(failed)?;
        }
        loop {
            let (before, entry) = match next.take() {
                Some(held_back) => held_back,
                None => {
                    let before = listing.entries.tell();
                    match listing.entries.next_entry().map_err(failed)? {
                        Some(entry) => (before, entry),
                        None => return Ok(()),
                    }
                }
            };
            let name = OsStr::from_bytes(&entry.name);
            let kind = kernel::file_type(entry.kind);
            if reply.add(INodeNo(entry.ino), entry.cookie, kind, name) {
                listing.held_back = Some((before, entry));
                return Ok(());
            }
        }
    }
}
