//! Listing a directory.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::PoisonError;

use fuser::{FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use samite_fs::{CallerContext, ResolvedName};

use super::{FuseOperations, failed};
use crate::caching::AnswerBasis;
use crate::handles::{HandleListing, NextEntry, OpenHandle};
use crate::kernel::{self, Answer, KernelName};

/// Entries whose attributes are looked up together: about as many as the kernel has room for.
const TOGETHER: usize = 128;

impl FuseOperations {
    /// Adds entries after `cookie` to a reply until it is full.
    pub fn list(&self, handle: u64, cookie: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        let handle = self.file(handle)?;
        let mut slot = handle.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let listing = listing_at(&handle, &mut slot, cookie)?;
        let mut is_empty = true;
        loop {
            let next = match listing.next() {
                Ok(Some(next)) => next,
                // The entries that were found come first.
                Err(errno) if is_empty => return Err(errno),
                Ok(None) | Err(_) => break,
            };
            is_empty = false;
            let entry = &next.entry;
            let kind = kernel::file_type(entry.kind);
            if reply.add(INodeNo(entry.ino), entry.cookie, kind, OsStr::from_bytes(&entry.name)) {
                listing.ahead.push_front(next);
                break;
            }
        }
        Ok(())
    }

    /// The same with the attributes of each, of which the kernel is told as if it had looked the names up.
    pub fn list_with_attributes(
        &self,
        context: &CallerContext,
        handle: u64,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let handle = match self.file(handle) {
            Ok(handle) => handle,
            Err(errno) => return reply.error(errno),
        };
        let mut slot = handle.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let looked_up = self.run(|ops| {
            let listing = listing_at(&handle, &mut slot, cookie)?;
            ops.look_ahead(context, &handle, listing)?;
            Ok(listing)
        });
        match looked_up {
            Ok(listing) => self.caching.answer_many(|left| {
                while let Some(next) = listing.ahead.pop_front() {
                    if !self.add(handle.file.ino(), &next, left, &mut reply) {
                        listing.ahead.push_front(next);
                        break;
                    }
                }
                reply.ok();
            }),
            Err(errno) => reply.error(errno),
        }
    }

    /// Looks up what comes next. Names that mean nothing any more are left out.
    fn look_ahead(
        &self,
        context: &CallerContext,
        handle: &OpenHandle,
        listing: &mut HandleListing,
    ) -> Answer<()> {
        let mut entries = Vec::with_capacity(TOGETHER);
        while entries.len() < TOGETHER {
            match listing.next() {
                Ok(Some(next)) => entries.push(next),
                Err(errno) if entries.is_empty() => return Err(errno),
                Ok(None) | Err(_) => break,
            }
        }
        let is_asked = |next: &NextEntry| next.named.is_none() && !is_dot(&next.entry.name);
        let asked = entries.iter().filter(|next| is_asked(next));
        let names: Vec<&[u8]> = asked.map(|next| &*next.entry.name).collect();
        let mut found = handle.file.look_up_several(context, &names).map_err(failed)?.into_iter();
        for mut next in entries {
            if is_asked(&next) {
                next.named = found.next().map(|named| self.kept(named));
            }
            if is_dot(&next.entry.name) || next.named.as_ref().is_some_and(|n| n.found.is_some()) {
                listing.ahead.push_back(next);
            }
        }
        Ok(())
    }

    /// Adds an entry and what it means to a reply. False: there is no room.
    fn add(
        &self,
        parent: u64,
        next: &NextEntry,
        left: &dyn Fn(Option<AnswerBasis>) -> std::time::Duration,
        reply: &mut ReplyDirectoryPlus,
    ) -> bool {
        let (entry, name) = (&next.entry, OsStr::from_bytes(&next.entry.name));
        let Some(ResolvedName { found: Some(found), name: of_name, attributes }) = &next.named
        else {
            // `.` and `..`: the kernel takes no more of them than number and kind.
            let attr =
                FileAttr { ino: INodeNo(entry.ino), kind: FileType::Directory, ..kernel::NO_FILE };
            let none = std::time::Duration::ZERO;
            return !reply.add(attr.ino, entry.cookie, name, &none, &attr, Generation(0));
        };
        let [of_name, attributes] =
            [of_name, attributes].map(|delegation| delegation.map(AnswerBasis::Delegation));
        let ttl = left(of_name).min(left(attributes));
        let attr = kernel::file_attr(&found.attr);
        if reply.add(attr.ino, entry.cookie, name, &ttl, &attr, Generation(0)) {
            return false;
        }
        self.introduce(found.file.naming(), KernelName { parent, name });
        true
    }
}

/// The listing of an open directory, standing at `cookie`.
fn listing_at<'l>(
    handle: &OpenHandle,
    slot: &'l mut Option<HandleListing>,
    cookie: u64,
) -> Answer<&'l mut HandleListing> {
    let listing = match slot {
        Some(listing) => listing,
        slot => {
            let entries = handle.file.read_dir().map_err(failed)?;
            slot.insert(HandleListing { entries, ahead: VecDeque::new() })
        }
    };
    let at = listing.ahead.front().map_or(listing.entries.tell(), |next| next.before);
    if at != cookie {
        listing.ahead.clear();
        listing.entries.seek(cookie).map_err(failed)?;
    }
    Ok(listing)
}

impl HandleListing {
    /// The next entry; `None` at the end.
    fn next(&mut self) -> Answer<Option<NextEntry>> {
        if let Some(next) = self.ahead.pop_front() {
            return Ok(Some(next));
        }
        let before = self.entries.tell();
        let entry = self.entries.next_entry().map_err(failed)?;
        Ok(entry.map(|entry| NextEntry { before, entry, named: None }))
    }
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
