//! The link to one node: made when it is first needed, replaced when it has died.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use samite_transport::client::NodeLink;
use samite_transport::host::is_same_host;
use samite_transport::{Address, TransportKind};
use samite_types::{ClientId, Clock, Deadline, Error, ErrorKind, NodeId, Result, SystemClock};
use samite_wire::control::NodeInfo;

use crate::credential_slot::CredentialSlot;
use crate::stats::{Counters, count};

/// How long a thread that finds another one at work sleeps before it looks again.
const LOCKED_PAUSE: Duration = Duration::from_micros(200);

/// Writes that go inline after a node has granted too few blocks, before it is asked again.
const GRANTS_PAUSE_WRITES: u32 = 256;

/// The identity that a client proves to a node.
pub(crate) struct ClientCredentials<'c> {
    pub(crate) credential: &'c CredentialSlot,
    pub(crate) client: ClientId,
    pub(crate) counters: &'c Counters,
}

/// One node as this client reaches it.
#[derive(Debug)]
pub(crate) struct NodePeer {
    pub(crate) node: NodeId,
    addresses: Vec<Address>,
    link: RwLock<Option<Arc<NodeLink>>>,
    connecting: Mutex<()>,
    grants_pause: AtomicU32,
    /// It did not answer, and is not asked until then for operations that others can answer; in
    /// nanoseconds.
    doubted_until_ns: AtomicU64,
    /// When the ticket by which the link was made is to be renewed; in nanoseconds.
    renew_at_ns: AtomicU64,
}

impl NodePeer {
    /// The node behind `info`, seen from `host`; `only` restricts it to one transport.
    pub(crate) fn new(
        info: &NodeInfo,
        host: &str,
        only: Option<TransportKind>,
        credential: &CredentialSlot,
    ) -> Self {
        let mut addresses: Vec<Address> =
            info.addresses.iter().filter_map(|url| url.parse().ok()).collect();
        // A node without tcp is reached from its host alone, by whichever name.
        let has_tcp = addresses.iter().any(|address| address.transport().is_tcp());
        if !is_same_host(&info.host, host) && has_tcp {
            addresses.retain(|address| address.transport().is_tcp());
        }
        prefer(&mut addresses, only);
        if credential.load().ticket().is_some() {
            addresses.retain(|address| address.transport() != TransportKind::Shm);
        }
        Self {
            node: info.node,
            addresses,
            link: RwLock::new(None),
            connecting: Mutex::new(()),
            grants_pause: AtomicU32::new(0),
            doubted_until_ns: AtomicU64::new(0),
            renew_at_ns: AtomicU64::new(credential.renewal_due_ns()),
        }
    }

    /// Whether it shares memory with this host.
    pub(crate) fn is_on_host(&self) -> bool {
        self.addresses.first().is_some_and(|address| address.transport() == TransportKind::Shm)
    }

    /// It is not asked until then for operations that others can answer.
    pub(crate) fn doubt(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.doubted_until_ns.store(until, Ordering::Relaxed);
    }

    pub(crate) fn is_doubted(&self) -> bool {
        let until = self.doubted_until_ns.load(Ordering::Relaxed);
        until > 0 && SystemClock.monotonic() < Duration::from_nanos(until)
    }

    /// Whether both reach the same node in the same ways, so that the links of one serve the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.node == other.node && self.addresses == other.addresses
    }

    /// Takes over a link that was made before the cluster map was known, if it is as good as any this peer would make.
    pub(crate) fn adopt(&self, link: &Arc<NodeLink>) {
        if link.node() == self.node && self.addresses.first() == Some(link.address()) {
            self.replace(link);
        }
    }

    /// Takes `link` in the place of the one before.
    fn replace(&self, link: &Arc<NodeLink>) {
        let current = self.link.write().unwrap_or_else(PoisonError::into_inner);
        put(current, Some(Arc::clone(link)));
    }

    /// The link, if there is one that lives.
    pub(crate) fn live_link(&self) -> Option<Arc<NodeLink>> {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner);
        link.as_ref().filter(|link| !link.is_dead()).cloned()
    }

    /// A link that lives, made now if there is none.
    pub(crate) fn link(
        &self,
        who: &ClientCredentials<'_>,
        deadline: Deadline,
    ) -> Result<Arc<NodeLink>> {
        if let Some(link) = self.live_link() {
            self.renew_ticket(&link, || who.credential, deadline);
            return Ok(link);
        }
        // One thread connects; the others wait for it.
        let _one = lock_by(&self.connecting, deadline)
            .map_err(|error| error.context(format_args!("connect to {}", self.node)))?;
        if let Some(link) = self.live_link() {
            return Ok(link);
        }
        let link = Arc::new(
            connect_any(&self.addresses, who, deadline)
                .map_err(|error| error.context(format_args!("connect to {}", self.node)))?,
        );
        if link.node() != self.node {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("connect to {}: {} is {} now", self.node, link.address(), link.node()),
            ));
        }
        self.replace(&link);
        self.grants_pause.store(0, Ordering::Relaxed);
        self.renew_at_ns.store(who.credential.renewal_due_ns(), Ordering::Relaxed);
        Ok(link)
    }

    /// If it is time for that, one thread renews the ticket by which `link` was made, by its
    /// `deadline`; if it cannot be renewed, it counts until it ends.
    pub(crate) fn renew_ticket<'c>(
        &self,
        link: &NodeLink,
        credential: impl FnOnce() -> &'c CredentialSlot,
        deadline: Deadline,
    ) {
        let due = self.renew_at_ns.load(Ordering::Relaxed);
        if due == u64::MAX || SystemClock.monotonic() < Duration::from_nanos(due) {
            return;
        }
        let claimed =
            self.renew_at_ns.compare_exchange(due, u64::MAX, Ordering::Relaxed, Ordering::Relaxed);
        if claimed.is_ok() {
            let credential = credential();
            credential.renew(link, deadline);
            self.renew_at_ns.store(credential.renewal_due_ns(), Ordering::Relaxed);
        }
    }

    /// Another connection, over a socket, which nobody else uses.
    pub(crate) fn connect_apart(
        &self,
        who: &ClientCredentials<'_>,
        deadline: Deadline,
    ) -> Result<NodeLink> {
        let mut sockets: Vec<Address> = Vec::new();
        for address in &self.addresses {
            let socket = match address {
                Address::Shm(path) => Address::Unix(path.clone()),
                other => other.clone(),
            };
            if !sockets.contains(&socket) {
                sockets.push(socket);
            }
        }
        connect_any(&sockets, who, deadline)
            .map_err(|error| error.context(format_args!("connect to {}", self.node)))
    }

    /// Whether it is worth asking the node for blocks.
    pub(crate) fn may_ask_for_grants(&self) -> bool {
        let pause = &self.grants_pause;
        pause
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_err()
    }

    /// The node gave too few blocks.
    pub(crate) fn pause_grants(&self) {
        self.grants_pause.store(GRANTS_PAUSE_WRITES, Ordering::Relaxed);
    }

    /// Descriptors that the link holds open.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        self.live_link().map(|link| link.descriptors().to_vec()).unwrap_or_default()
    }

    /// In a forked child: closes the inherited descriptors. Takes no lock that another thread may
    /// have held at the fork.
    pub(crate) fn abandon(&self) {
        if let Ok(link) = self.link.try_read()
            && let Some(link) = link.as_ref()
        {
            link.abandon();
        }
    }
}

/// Locks a mutex whose holder may keep it for as long as its own deadline allows; waits no longer
/// than this one's.
pub(crate) fn lock_by(mutex: &Mutex<()>, deadline: Deadline) -> Result<MutexGuard<'_, ()>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if deadline.remaining().is_none() => {
                return Err(Error::new(ErrorKind::Timeout, "no answer by the deadline"));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCKED_PAUSE),
        }
    }
}

/// Puts `new` behind the lock, and drops the old value after the lock is free. For values with
/// links: a link that ends closes its descriptors, and under a preloaded library a close asks for
/// those of all links ([`NodePeer::descriptors`]).
pub(crate) fn put<T>(mut locked: RwLockWriteGuard<'_, T>, new: T) {
    let before = std::mem::replace(&mut *locked, new);
    drop(locked);
    drop(before);
}

/// Orders addresses by speed (shm, unix, tcp), and drops those of other transports than `only`.
pub(crate) fn prefer(addresses: &mut Vec<Address>, only: Option<TransportKind>) {
    addresses.retain(|address| only.is_none_or(|only| address.transport() == only));
    addresses.sort_by_key(|address| match address.transport() {
        TransportKind::Shm => 0,
        TransportKind::Unix => 1,
        TransportKind::Tcp | TransportKind::Tls => 2,
    });
}

/// Connects to the first address that answers.
pub(crate) fn connect_any(
    addresses: &[Address],
    who: &ClientCredentials<'_>,
    deadline: Deadline,
) -> Result<NodeLink> {
    let mut failed = None;
    for address in addresses {
        match who.credential.connect(address, who.client, deadline) {
            Ok(link) => {
                count(&who.counters.connects, 1);
                return Ok(link);
            }
            Err(error) => failed = Some(error),
        }
    }
    Err(match failed {
        // No node there, or the socket's path is gone: for a caller the node cannot be reached.
        Some(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Io) => {
            Error::new(ErrorKind::Unavailable, error.message().to_owned())
        }
        Some(error) => error,
        None => Error::new(ErrorKind::Unavailable, "no address that this client may use"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_behind_a_lock_is_dropped_when_that_is_free() {
        /// As a close does under a preloaded library, its end looks at the value behind the lock.
        struct Looks(Arc<RwLock<Option<Self>>>, Arc<AtomicU32>);
        impl Drop for Looks {
            fn drop(&mut self) {
                self.1.fetch_add(u32::from(self.0.try_read().is_ok()), Ordering::Relaxed);
            }
        }
        let (lock, seen) = (Arc::new(RwLock::new(None)), Arc::new(AtomicU32::new(0)));
        for ended in [0, 1, 2] {
            let new = Looks(Arc::clone(&lock), Arc::clone(&seen));
            put(lock.write().unwrap_or_else(PoisonError::into_inner), Some(new));
            assert_eq!(seen.load(Ordering::Relaxed), ended);
        }
        put(lock.write().unwrap_or_else(PoisonError::into_inner), None);
    }
}
