//! A freeze of a dataset, held by this client.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{
    Deadline, Entropy, Epoch, Error, ErrorKind, NodeId, PartitionId, Result, SystemEntropy,
};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::freeze::{FREEZE_TERM, FreezeCall, FreezeRequest};

use crate::client::unexpected;
use crate::{Client, Dataset};

/// Time between two renewals; several fit into a term, as each may take its time.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Pause before a node that does not know of the freeze is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(2);

/// Pause before a freeze is tried again that another one stands in the way of.
const FROZEN_PAUSE: Duration = Duration::from_millis(50);

/// A dataset that this client has frozen: nothing changes its records until this is dropped.
///
/// All nodes that serve the dataset have said that they know. What they had acknowledged before, a
/// read sees; what was not acknowledged is either there or not, and does not change any more. So all
/// records, read while the freeze lasts, are of one moment. A thread renews the freeze. When it
/// cannot, or this process dies, the dataset thaws after [`FREEZE_TERM`]; what was read is of one
/// moment only if [`Self::check`] says after the last read that the freeze has lasted.
///
/// Clients that want to change a record wait, up to the time that they allow their calls.
#[derive(Debug)]
pub struct DatasetFreeze {
    holder: Arc<FreezeHolder>,
    renewer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct FreezeHolder {
    client: Client,
    dataset: String,
    token: u64,
    state: Mutex<FreezeState>,
    /// The renewer is to end.
    changed: Condvar,
}

#[derive(Debug)]
struct FreezeState {
    /// It lasts at least until then.
    lasts: Deadline,
    /// Why it is renewed no more.
    failure: Option<Error>,
    is_over: bool,
}

impl DatasetFreeze {
    pub(crate) fn begin(dataset: &Dataset) -> Result<Self> {
        let client = dataset.client().clone();
        let token = SystemEntropy.next_u64().max(1);
        let lasts = Deadline::after(FREEZE_TERM);
        let state = Mutex::new(FreezeState { lasts, failure: None, is_over: false });
        let name = dataset.spec().name.clone();
        let changed = Condvar::new();
        let holder = Arc::new(FreezeHolder { client, dataset: name, token, state, changed });
        let by = holder.client.deadline();
        holder.check_versions(by)?;
        let begun = holder.begin(by).and_then(|()| {
            // Asking takes its time: the term counts from the first renewal on.
            holder.renew()?;
            let renewing = Arc::clone(&holder);
            let renew = move || renewing.keep();
            std::thread::Builder::new().name("freeze".into()).spawn(renew).map_err(|error| {
                Error::new(ErrorKind::Io, format!("a thread that renews the freeze: {error}"))
            })
        });
        // From here on the dataset thaws, whatever fails.
        let mut freeze = Self { holder, renewer: None };
        freeze.renewer = Some(begun?);
        freeze.await_nodes(dataset, by)?;
        freeze.check()?;
        Ok(freeze)
    }

    /// Whether the freeze has lasted without a gap from its beginning to now. Asks the cluster.
    ///
    /// # Errors
    /// `Unavailable`: it has not, or nobody can say so.
    pub fn check(&self) -> Result<()> {
        self.holder.renew()?;
        self.holder.told()
    }

    /// Whether the freeze has lasted up to now, as far as is known without asking.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn told(&self) -> Result<()> {
        self.holder.told()
    }

    /// Waits until all nodes that serve the dataset know of the freeze.
    fn await_nodes(&self, dataset: &Dataset, by: Deadline) -> Result<()> {
        let client = dataset.client();
        let mut since: Option<Epoch> = None;
        loop {
            let map = client.map()?;
            let data = map.dataset_by_id(dataset.id());
            if data.is_none_or(|data| data.frozen_by != self.holder.token) {
                // The map that says so is on its way, or the freeze is over.
                self.told()?;
                client.refresh_map()?;
                pause(by)?;
                continue;
            }
            let since = *since.get_or_insert(map.epoch());
            let mut is_known = true;
            for node in primaries(&map, dataset) {
                is_known &= self.is_known_at(node, since, by)?;
            }
            // Whoever takes a place later has a newer map.
            if is_known {
                return Ok(());
            }
            pause(by)?;
            client.refresh_map()?;
        }
    }

    fn is_known_at(&self, node: NodeId, since: Epoch, by: Deadline) -> Result<bool> {
        let request = self.holder.request(FreezeCall::Serves(since));
        let by = by.min(Deadline::after(RENEW_EVERY));
        match self.holder.client.ask_node(node, &request, by) {
            Ok((_, ControlReply::Ok)) => Ok(true),
            Ok((link, _)) => Err(unexpected(&link, "whether it knows of a freeze")),
            // A dead node is replaced by the next map, or it cannot be read from either.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Busy
                        | ErrorKind::Unavailable
                        | ErrorKind::Timeout
                        | ErrorKind::NotFound
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for DatasetFreeze {
    fn drop(&mut self) {
        self.holder.state().is_over = true;
        self.holder.changed.notify_all();
        if let Some(renewer) = self.renewer.take() {
            // It never panics.
            let _ = renewer.join();
        }
        // It ends by itself when nobody hears this.
        let _ = self.holder.ask(FreezeCall::End, Deadline::after(FREEZE_TERM));
    }
}

impl FreezeHolder {
    fn state(&self) -> MutexGuard<'_, FreezeState> {
        // Nothing inside panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins it. A freeze whose holder was killed stands for the rest of its term, and is waited
    /// for.
    fn begin(&self, by: Deadline) -> Result<()> {
        let until = by.min(Deadline::after(FREEZE_TERM + RENEW_EVERY));
        loop {
            self.state().lasts = Deadline::after(FREEZE_TERM);
            match self.ask(FreezeCall::Begin, by) {
                Err(error) if error.kind() == ErrorKind::InUse && until.remaining().is_some() => {
                    std::thread::sleep(FROZEN_PAUSE);
                }
                begun => return begun,
            }
        }
    }

    /// Refuses while a node that answers is of a version whose maps tell of no freezes.
    fn check_versions(&self, by: Deadline) -> Result<()> {
        let map = self.client.map()?;
        for info in map.nodes() {
            let by = by.min(Deadline::after(RENEW_EVERY));
            match self.client.ask_node(info.node, &self.request(FreezeCall::Serves(Epoch(0))), by) {
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                // Whether it takes part is found out later.
                _ => {}
            }
        }
        Ok(())
    }

    fn request(&self, call: FreezeCall) -> ControlRequest {
        let (dataset, token) = (self.dataset.clone(), self.token);
        ControlRequest::Freeze(FreezeRequest { dataset, token, call })
    }

    fn ask(&self, call: FreezeCall, by: Deadline) -> Result<()> {
        self.client.change_map(&self.request(call), None, by)
    }

    /// Has the freeze last for another term from now.
    fn renew(&self) -> Result<()> {
        // Counted from before the leader can hear of it. A term that had ended already cannot be
        // made whole: in between, others may have changed something.
        let next = Deadline::after(FREEZE_TERM);
        let renewed = self.ask(FreezeCall::Renew, self.state().lasts);
        let mut state = self.state();
        match renewed {
            Ok(()) if state.lasts.remaining().is_some() => {
                state.lasts = next;
                Ok(())
            }
            Ok(()) => Err(self.ended()),
            Err(error) => {
                state.failure.get_or_insert_with(|| error.clone());
                Err(error.context(format_args!("freeze of dataset {}", self.dataset)))
            }
        }
    }

    fn told(&self) -> Result<()> {
        let state = self.state();
        match &state.failure {
            Some(error) => {
                Err(error.clone().context(format_args!("freeze of dataset {}", self.dataset)))
            }
            None if state.lasts.remaining().is_none() => Err(self.ended()),
            None => Ok(()),
        }
    }

    fn ended(&self) -> Error {
        let words = format!("the freeze of dataset {} has ended too early", self.dataset);
        Error::new(ErrorKind::Unavailable, words)
    }

    /// Renews the freeze until it is over.
    fn keep(&self) {
        loop {
            let state = self.state();
            let (state, _) = self
                .changed
                .wait_timeout_while(state, RENEW_EVERY, |state| !state.is_over)
                .unwrap_or_else(PoisonError::into_inner);
            if state.is_over || state.failure.is_some() {
                return;
            }
            drop(state);
            // What fails is told to those who ask.
            let _ = self.renew();
        }
    }
}

/// The nodes that serve a dataset.
fn primaries(map: &ClusterMap, dataset: &Dataset) -> BTreeSet<NodeId> {
    let partitions = (0..map.partitions()).map(PartitionId);
    partitions.filter_map(|partition| map.node_of(dataset.redundancy(), partition)).collect()
}

fn pause(by: Deadline) -> Result<()> {
    if by.remaining().is_none() {
        let words = "freeze: some nodes do not say that they know of it";
        return Err(Error::new(ErrorKind::Timeout, words));
    }
    std::thread::sleep(ASK_PAUSE);
    Ok(())
}
