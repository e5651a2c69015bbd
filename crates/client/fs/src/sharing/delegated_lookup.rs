//! Look-ups of names and attributes under delegations, for callers that keep the results: mounts.

use std::time::Duration;

use samite_client::OwnedResult;
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Action, List, Operation};

use crate::names::at::{RelativePath, named};
use crate::names::by_inode::FoundFile;
use crate::names::walk::PathWalk;
use crate::records::change_stamps::ChangeStamps;
use crate::records::inode::{DataLayout, INODE_LEN};
use crate::records::key;
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::store::{ANY_NAME_SPACE, FoundInode, RecordLocation, fail};
use crate::sharing::delegated::{
    DelegatedRecord, DelegationStamp, LONG_TERM, listed_under_delegation, long_delegation, term,
};
use crate::{CallerContext, FileAttributes, FileSystem, OpenFile};

/// Names of a directory that are listed in each partition at least.
const NAMES_MIN: u32 = 8;

/// Names of a directory's entries.
pub type Names = Vec<Box<[u8]>>;

/// The file that a name was found to mean, and for how long.
#[derive(Debug)]
pub struct ResolvedName {
    /// The file; `None`: there is no such name.
    pub found: Option<FoundFile>,
    /// For how long the name means that.
    pub name: Option<DelegationStamp>,
    /// For how long the file has these attributes.
    pub attributes: Option<DelegationStamp>,
}

/// The record of a file system that a recall names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordOf {
    /// A name in a directory, and the inode if it lives there.
    Name {
        /// Inode number of the directory.
        parent: u64,
        /// The name.
        name: Box<[u8]>,
    },
    /// An inode, or what is in a directory.
    Inode(u64),
}

impl DelegationStamp {
    /// How long it will stay so, unless the delegation is recalled; `None`: it may have changed.
    #[must_use]
    pub fn left(&self, fs: &FileSystem) -> Option<Duration> {
        self.left_in(&fs.store().dataset)
    }
}

impl FileSystem {
    /// The file that `at` names, which has one component; a symbolic link is not followed. A file
    /// that is found, or a name that is free, stays so while the delegations last: a caller that
    /// relies on them listens for [`samite_client::RecallListener`].
    ///
    /// # Errors
    /// As of [`FileSystem::stat`], but that a missing name is none.
    pub fn look_up_leased<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<ResolvedName> {
        named("look up", at, |at| {
            self.under_lease(|epoch| {
                let mut walk = PathWalk::start(self, ctx, at, epoch)?;
                if !walk.advance()? {
                    let node = walk.find(false)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
                    let found = Some(self.found(node)?);
                    return Ok(ResolvedName { found, name: None, attributes: None });
                }
                self.named(&walk.entry(), epoch)
            })
        })
    }

    fn named(&self, location: &RecordLocation, epoch: Epoch) -> Result<ResolvedName> {
        for _ in 0..LOOKUPS_MAX {
            let (node, name) = self.store().look_under(location, epoch)?;
            let Some(node) = node else {
                return Ok(ResolvedName { found: None, name, attributes: None });
            };
            let is_here = !matches!(node.inode.layout, DataLayout::Moving | DataLayout::Elsewhere);
            if let Some(node) = self.store().settled(node)? {
                let (attr, attributes) = self.attr_under(&node, name.filter(|_| is_here))?;
                let found = Some(FoundFile { file: OpenFile::of_node(self, node), attr });
                return Ok(ResolvedName { found, name, attributes });
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// Attributes of an inode that was read under a delegation.
    fn attr_under(
        &self,
        node: &FoundInode,
        delegation: Option<DelegationStamp>,
    ) -> Result<(FileAttributes, Option<DelegationStamp>)> {
        if node.inode.is_directory() {
            let (stamps, of_stamps) = self.stamps_under(node.inode.ino, delegation.is_some())?;
            let both =
                delegation.zip(of_stamps).map(|(inode, stamps)| inode.with_change_stamps(stamps));
            return Ok((Self::attr_of_directory(node, &stamps), both));
        }
        // While a handle writes to it, its size is in chunks that no delegation covers.
        let is_settled = !node.is_chunked() || (node.inode.mark == 0 && !node.inode.sparse);
        Ok((self.attr_of(node, None)?, delegation.filter(|_| is_settled)))
    }

    /// A directory's change stamps, under long delegations on all of them if `wanted` and granted.
    fn stamps_under(
        &self,
        directory: u64,
        wanted: bool,
    ) -> Result<(ChangeStamps, Option<DelegationStamp>)> {
        let key = key::change_stamp(directory);
        let read_stamp = if wanted { self.store().dataset.read_stamp_of_key(&key) } else { None };
        let Some(read_stamp) = read_stamp else {
            return Ok((self.store().change_stamps(directory)?, None));
        };
        let outcomes = self.store().run_everywhere(|partition| {
            Operation::new(partition, listed_under_delegation(&key, ChangeStamps::RECORD_LEN))
        });
        let outcomes = match outcomes {
            // A node that cannot be reached grants no delegation, nor does one that has lost its
            // memory.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost) => {
                return Ok((self.store().change_stamps(directory)?, None));
            }
            outcomes => outcomes?,
        };
        let (mut stamps, mut least) = (ChangeStamps::NONE, LONG_TERM);
        for outcome in outcomes {
            let results: List<OwnedResult, 2> = outcome.into_results("read marks")?;
            least = least.min(term(results.get(1))?);
            if let Some(OwnedResult::Listing { entries, .. }) = results.first()
                && let Some(entry) = entries.first()
            {
                stamps.add(entry.bytes());
            }
        }
        Ok((stamps, DelegationStamp::given(read_stamp, least)))
    }

    /// Names in a directory, under long delegations on all of its change stamps: nobody else makes
    /// one that is not among them while the delegations last. `None`: no delegation was granted, or
    /// there are more than about `most`.
    fn names_under(&self, directory: u64, most: u32) -> Result<Option<(Names, DelegationStamp)>> {
        let (stamp, entries) = (key::change_stamp(directory), key::entries(directory));
        let Some(read_stamp) = self.store().dataset.read_stamp_of_key(&stamp) else {
            return Ok(None);
        };
        let limit = most.div_ceil(self.store().dataset.partitions()).max(NAMES_MIN);
        let names =
            Action::List { prefix: &entries, after: b"", limit, reverse: false, value_len_max: 0 };
        let outcomes = self.store().run_everywhere(|partition| {
            Operation::new(partition, [names.clone(), long_delegation(&stamp)])
        });
        let outcomes = match outcomes {
            Err(error) if error.kind() == ErrorKind::Lost => return Ok(None),
            outcomes => outcomes?,
        };
        let (mut names, mut least) = (Vec::new(), LONG_TERM);
        for outcome in outcomes {
            let results: List<OwnedResult, 2> = outcome.into_results("list")?;
            least = least.min(term(results.get(1))?);
            let Some(OwnedResult::Listing { entries, complete: true }) = results.first() else {
                return Ok(None);
            };
            names.extend(
                entries.iter().filter_map(|entry| Some(key::parse_entry(entry.key)?.1.into())),
            );
        }
        Ok(DelegationStamp::given(read_stamp, least).map(|delegation| (names, delegation)))
    }

    /// The name or inode that the record with this key is about.
    #[must_use]
    pub fn record_of(&self, key: &[u8]) -> Option<RecordOf> {
        if let Some((parent, name)) = key::parse_entry(key) {
            return Some(RecordOf::Name { parent, name: name.into() });
        }
        key::parse_inode(key).map(RecordOf::Inode)
    }
}

impl OpenFile {
    /// The record that it lives in.
    #[must_use]
    pub fn record(&self) -> Option<RecordOf> {
        self.fs.record_of(&self.location().key)
    }

    /// Attributes, and for how long the file has them.
    ///
    /// # Errors
    /// As of [`OpenFile::attr`].
    pub fn attr_leased(&self) -> Result<(FileAttributes, Option<DelegationStamp>)> {
        let location = self.location();
        let under =
            self.fs.store().read_under(&location, ANY_NAME_SPACE, (INODE_LEN, LONG_TERM, 0))?;
        match under {
            Some(DelegatedRecord { node, delegation, .. })
                if node.inode.ino == self.ino()
                    && !matches!(node.inode.layout, DataLayout::Moving | DataLayout::Elsewhere) =>
            {
                self.context("stat", || {
                    if node.is_chunked() && node.inode.mark != 0 {
                        return Ok((self.attr()?, None));
                    }
                    self.fs.attr_under(&node, delegation)
                })
            }
            _ => Ok((self.attr()?, None)),
        }
    }

    /// All names in this directory, and for how long nobody else makes another one. `None`: no
    /// delegation was granted, or there are more than about `most`.
    ///
    /// # Errors
    /// As of the nodes with partitions of the directory.
    pub fn names_leased(&self, most: u32) -> Result<Option<(Names, DelegationStamp)>> {
        self.context("list", || self.fs.names_under(self.ino(), most))
    }
}
