//! Datasets are frozen, and thaw by themselves when nobody renews that.
//!
//! Who has frozen a dataset is part of the map. Until when it lasts is known to the leader alone:
//! one that takes over gives each holder a whole term, for the leader before may have just heard
//! of it.

use std::sync::Arc;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::{ClusterMapData, DatasetData};
use samite_wire::freeze::{FREEZE_TERM, FreezeCall, FreezeRequest};

use crate::Coordinator;

impl Coordinator {
    /// Freezes a dataset, renews that, or ends it. Whether the map has changed is told by
    /// [`Self::revision`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: there is no such dataset, or the freeze to be renewed has ended.
    /// [`ErrorKind::InUse`]: another holds the dataset frozen. [`ErrorKind::Invalid`]: the token is
    /// 0, or this is nothing that a leader is asked. [`ErrorKind::Unavailable`]: there is no map
    /// yet.
    pub fn freeze(&mut self, now: Duration, asked: &FreezeRequest) -> Result<Arc<ClusterMap>> {
        let FreezeRequest { dataset: name, token, call } = asked;
        let map = Arc::clone(self.ready_map()?);
        let words = |cause: &str| format!("dataset {name}: {cause}");
        let Some(dataset) = map.dataset(name).cloned() else {
            return Err(Error::new(ErrorKind::NotFound, words("no such dataset")));
        };
        if *token == 0 {
            return Err(Error::new(ErrorKind::Invalid, words("a freeze has a token")));
        }
        let is_held = dataset.frozen_by == *token;
        match call {
            FreezeCall::Begin if !is_held && dataset.frozen_by != 0 => {
                Err(Error::new(ErrorKind::InUse, words("it is frozen by another client")))
            }
            FreezeCall::Begin => {
                let map = if is_held { map } else { self.set_frozen(&map, &dataset, *token)? };
                self.freezes.insert(dataset.id, now + FREEZE_TERM);
                Ok(map)
            }
            FreezeCall::Renew if is_held => {
                self.freezes.insert(dataset.id, now + FREEZE_TERM);
                Ok(map)
            }
            FreezeCall::Renew => {
                Err(Error::new(ErrorKind::NotFound, words("its freeze has ended")))
            }
            FreezeCall::End if is_held => self.set_frozen(&map, &dataset, 0),
            FreezeCall::End => Ok(map),
            FreezeCall::Serves(_) => {
                Err(Error::new(ErrorKind::Invalid, words("each node is asked that by itself")))
            }
        }
    }

    fn set_frozen(
        &mut self,
        map: &ClusterMap,
        dataset: &DatasetData,
        token: u64,
    ) -> Result<Arc<ClusterMap>> {
        let mut data = map.data().clone();
        for known in data.datasets.iter_mut().filter(|known| known.id == dataset.id) {
            known.frozen_by = token;
        }
        let map = self.conclude(data, false)?;
        self.freezes.remove(&dataset.id);
        Ok(map)
    }

    /// Thaws in `data` what nobody has renewed in time; whether there was something.
    pub(crate) fn thaw_overdue(&mut self, data: &mut ClusterMapData, now: Duration) -> bool {
        let mut has_thawed = false;
        for dataset in data.datasets.iter_mut().filter(|dataset| dataset.frozen_by != 0) {
            let until = *self.freezes.entry(dataset.id).or_insert(now + FREEZE_TERM);
            if now >= until {
                dataset.frozen_by = 0;
                self.freezes.remove(&dataset.id);
                has_thawed = true;
            }
        }
        has_thawed
    }

    /// Whether some dataset is frozen.
    pub(crate) fn has_frozen(&self) -> bool {
        self.map.iter().flat_map(|map| map.datasets()).any(|dataset| dataset.frozen_by != 0)
    }
}
