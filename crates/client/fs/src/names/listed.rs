//! Attributes that a listing shows beside the names, looked up together.

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult, ReadStamp};
use samite_types::{ErrorKind, Result};
use samite_wire::op::{Action, Operation};

use crate::OpenFile;
use crate::names::at::RelativePath;
use crate::names::by_inode::FoundFile;
use crate::records::inode::DataLayout;
use crate::records::store::{LOOKUP_LEN, RecordLocation, malformed};
use crate::sharing::delegated::{DelegationStamp, long_delegation, term};
use crate::sharing::delegated_lookup::ResolvedName;
use crate::{CallerContext, FileSystem};

impl OpenFile {
    /// Looks up some names of this directory, in one request to each node and one more for each
    /// that takes more than its entry (a directory, a file of several names, one that a handle
    /// writes to). The results are those that [`FileSystem::look_up_leased`] finds.
    ///
    /// # Errors
    /// As of [`FileSystem::look_up_leased`].
    pub fn look_up_several(
        &self,
        ctx: &CallerContext,
        names: &[&[u8]],
    ) -> Result<Vec<ResolvedName>> {
        let locations: Vec<RecordLocation> =
            names.iter().map(|name| self.fs.store().entry(self.ino(), name)).collect();
        let read_stamps: Vec<Option<ReadStamp>> = locations
            .iter()
            .map(|location| self.fs.store().dataset.read_stamp(location.partition))
            .collect();
        let mut ops: Vec<ClientOperation<'_>> = locations
            .iter()
            .map(|location| {
                let get = Action::Get { key: &location.key, offset: 0, len: LOOKUP_LEN as u32 };
                Operation::new(location.partition, [get, long_delegation(&location.key)]).into()
            })
            .collect();
        let outcomes = self.fs.store().run_each(&mut ops)?;
        drop(ops);
        let asked = locations.into_iter().zip(read_stamps);
        let mut several = Vec::with_capacity(names.len());
        for ((name, (location, read_stamp)), outcome) in names.iter().zip(asked).zip(outcomes) {
            several.push(match self.fs.in_entry(location, read_stamp, outcome)? {
                Some(named) => named,
                None => self.fs.look_up_leased(ctx, RelativePath::dir(self, name))?,
            });
        }
        Ok(several)
    }
}

impl FileSystem {
    /// The file by an entry that was read, and then delegated, alone; `None`: it takes more
    /// requests.
    fn in_entry(
        &self,
        location: RecordLocation,
        read_stamp: Option<ReadStamp>,
        outcome: OwnedOutcome,
    ) -> Result<Option<ResolvedName>> {
        let results = match outcome {
            OwnedOutcome::Done(results) => results,
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                return Ok(Some(ResolvedName { found: None, name: None, attributes: None }));
            }
            OwnedOutcome::Failed(failure) => return Err(failure.into_error("list")),
        };
        let delegation = match read_stamp {
            Some(read_stamp) => DelegationStamp::given(read_stamp, term(results.get(1))?),
            None => None,
        };
        let Some(OwnedResult::Value { version, total_len, data, .. }) = results.into_iter().next()
        else {
            return Err(malformed());
        };
        let node = self.store().node(location, version, total_len, &data)?;
        let is_here = !matches!(node.inode.layout, DataLayout::Moving | DataLayout::Elsewhere);
        let is_settled = !node.is_chunked() || (node.inode.mark == 0 && !node.inode.sparse);
        if node.inode.is_directory() || !is_here || !is_settled {
            return Ok(None);
        }
        let attr = self.attr_of(&node, None)?;
        let found = Some(FoundFile { file: OpenFile::of_node(self, node), attr });
        Ok(Some(ResolvedName { found, name: delegation, attributes: delegation }))
    }
}
