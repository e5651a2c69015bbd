//! File locks of one node: byte ranges, whole files, and the requests that wait for them.
//!
//! A range that an owner takes replaces its earlier locks there: ranges split, change their mode
//! and merge as POSIX says. Waits are granted in the order in which they began, as far as no lock
//! is in their way; a new request does not queue behind them.

use std::collections::{HashMap, HashSet, VecDeque};

use samite_types::{ClientId, DatasetId, PartitionId};
use samite_wire::lock::{LockFound, LockHolder, LockMode, LockOwner, LockRange, LockSpace};

use crate::circle::CircleSearch;

/// Most locks and waits on one file.
const PER_FILE_MAX: usize = 1 << 14;
/// Most locks and waits in one table.
const TOTAL_MAX: usize = 1 << 18;
/// Most locks of others that are compared with those that an owner holds already.
const EXCLUDING_MAX: usize = 64;
/// Most owners that a search for a circle of waits looks at.
const SEARCH_MAX: usize = 4096;

/// The object that locks are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockFile {
    /// Dataset.
    pub dataset: DatasetId,
    /// Partition whose primary grants its locks: always the same one for an object.
    pub partition: PartitionId,
    /// Object in it.
    pub object: u64,
    /// Which of its locks.
    pub space: LockSpace,
}

/// A lock that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockClaim {
    /// The owner that asks.
    pub owner: LockOwner,
    /// Bytes.
    pub range: LockRange,
    /// Mode.
    pub mode: LockMode,
    /// Shown to others.
    pub holder: LockHolder,
    /// A wait in a circle is refused.
    pub detects_deadlock: bool,
}

/// Number of a wait, chosen by the caller.
pub type WaitId = u64;

/// The result of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockVerdict {
    /// The owner has it.
    Granted,
    /// This one is in the way.
    Held(LockFound),
    /// It waits.
    Waits,
    /// Waiting would never end.
    Deadlock,
    /// There are as many locks as there may be.
    Full,
}

#[derive(Debug)]
struct WaitingLock {
    id: WaitId,
    claim: LockClaim,
}

#[derive(Debug, Default)]
struct FileLockTable {
    /// Ordered by start.
    held: Vec<LockFound>,
    /// In the order of their beginnings.
    waiting: VecDeque<WaitingLock>,
}

impl FileLockTable {
    fn in_the_way(&self, claim: &LockClaim) -> impl Iterator<Item = &LockFound> {
        self.held.iter().filter(move |held| {
            held.owner != claim.owner
                && held.range.meets(claim.range)
                && (held.mode == LockMode::Exclusive || claim.mode == LockMode::Exclusive)
        })
    }

    fn count(&self) -> usize {
        self.held.len() + self.waiting.len()
    }
}

/// The locks of `held` after `owner` has taken `range` in `mode`, or let go of it (`None`).
fn with_range(
    held: &[LockFound],
    owner: LockOwner,
    range: LockRange,
    taken: Option<(LockMode, LockHolder)>,
) -> Vec<LockFound> {
    let mut after = Vec::with_capacity(held.len() + 2);
    let mut new = range;
    for lock in held {
        let own = lock.owner == owner;
        if let Some((mode, _)) = taken
            && own
            && lock.mode == mode
            && lock.range.start <= range.last.saturating_add(1)
            && range.start <= lock.range.last.saturating_add(1)
        {
            new.start = new.start.min(lock.range.start);
            new.last = new.last.max(lock.range.last);
        } else if own && lock.range.meets(range) {
            if lock.range.start < range.start {
                let range = LockRange { last: range.start - 1, ..lock.range };
                after.push(LockFound { range, ..*lock });
            }
            if lock.range.last > range.last {
                let range = LockRange { start: range.last + 1, ..lock.range };
                after.push(LockFound { range, ..*lock });
            }
        } else {
            after.push(*lock);
        }
    }
    if let Some((mode, holder)) = taken {
        after.push(LockFound { range: new, mode, owner, holder });
    }
    after.sort_by_key(|lock| lock.range.start);
    after
}

/// The locks of one node.
#[derive(Debug, Default)]
pub struct LockTable {
    files: HashMap<LockFile, FileLockTable>,
    waits: HashMap<WaitId, LockFile>,
    /// Files on which a client has locks or waits.
    of_client: HashMap<ClientId, HashSet<LockFile>>,
    total: usize,
}

impl LockTable {
    /// Takes a lock. When others are in the way: waits under the number `wait`, if there is one.
    /// `granted` gets the waits that ended because of it.
    pub fn take(
        &mut self,
        file: LockFile,
        claim: &LockClaim,
        wait: Option<WaitId>,
        granted: &mut Vec<WaitId>,
    ) -> LockVerdict {
        let known = self.files.get(&file).map_or(0, FileLockTable::count);
        if known + 2 > PER_FILE_MAX || self.total + 2 > TOTAL_MAX {
            return LockVerdict::Full;
        }
        if file.space == LockSpace::Whole && !self.holds_in_mode(&file, claim) {
            self.release(file, claim.owner, LockRange::WHOLE, granted);
        }
        self.let_go_of_untrue(file, claim, granted);
        let locks = self.files.entry(file).or_default();
        let Some(in_the_way) = locks.in_the_way(claim).next().copied() else {
            self.grant(file, claim);
            self.wake(file, granted);
            return LockVerdict::Granted;
        };
        let Some(id) = wait else {
            self.forget_if_empty(file);
            return LockVerdict::Held(in_the_way);
        };
        if claim.detects_deadlock && self.would_circle(file, claim) {
            return LockVerdict::Deadlock;
        }
        if self.waits.contains_key(&id) {
            return LockVerdict::Full;
        }
        self.waits.insert(id, file);
        let locks = self.files.entry(file).or_default();
        locks.waiting.push_back(WaitingLock { id, claim: *claim });
        self.total += 1;
        self.of_client.entry(claim.owner.client).or_default().insert(file);
        LockVerdict::Waits
    }

    /// Notes a lock that another node has granted: an owner that is in the way holds none any more.
    /// `granted` gets the waits that ended because of it. Whether there was room.
    pub fn note(&mut self, file: LockFile, claim: &LockClaim, granted: &mut Vec<WaitId>) -> bool {
        let known = self.files.get(&file).map_or(0, FileLockTable::count);
        if known + 2 > PER_FILE_MAX || self.total + 2 > TOTAL_MAX {
            return false;
        }
        let locks = self.files.entry(file).or_default();
        let others: Vec<LockOwner> = locks.in_the_way(claim).map(|held| held.owner).collect();
        let mut after = std::mem::take(&mut locks.held);
        self.total -= after.len();
        for other in &others {
            after = with_range(&after, *other, claim.range, None);
        }
        if file.space == LockSpace::Whole {
            after = with_range(&after, claim.owner, LockRange::WHOLE, None);
        }
        self.total += after.len();
        locks.held = after;
        self.grant(file, claim);
        others.into_iter().for_each(|other| self.settle(other.client, file));
        self.wake(file, granted);
        true
    }

    /// Takes over a lock that another node knows, beside whatever is here. Whether there was room.
    pub fn adopt(&mut self, file: LockFile, lock: &LockFound) -> bool {
        let known = self.files.get(&file).map_or(0, FileLockTable::count);
        if known + 2 > PER_FILE_MAX || self.total + 2 > TOTAL_MAX {
            return false;
        }
        let LockFound { range, mode, owner, holder } = *lock;
        self.grant(file, &LockClaim { owner, range, mode, holder, detects_deadlock: false });
        true
    }

    /// All locks that are held, in no order.
    pub fn held(&self) -> impl Iterator<Item = (LockFile, &LockFound)> {
        self.files.iter().flat_map(|(file, locks)| locks.held.iter().map(|held| (*file, held)))
    }

    /// Forgets locks. `granted` gets the waits that ended because of it.
    pub fn retain_held(
        &mut self,
        stays: impl Fn(LockFile, &LockFound) -> bool,
        granted: &mut Vec<WaitId>,
    ) {
        let gone = self.held().filter(|(file, held)| !stays(*file, held));
        let gone: Vec<(LockFile, LockOwner, LockRange)> =
            gone.map(|(file, held)| (file, held.owner, held.range)).collect();
        for (file, owner, range) in gone {
            // It is a whole lock: nothing is split.
            self.release(file, owner, range, granted);
        }
    }

    /// Locks that exclude each other were told of by nodes that have not heard of the end of one.
    /// An owner that asks for a lock that it is said to hold beside another does not know that it
    /// does: else each might wait for the other.
    fn let_go_of_untrue(&mut self, file: LockFile, claim: &LockClaim, granted: &mut Vec<WaitId>) {
        let Some(locks) = self.files.get(&file) else { return };
        let mut untrue: Vec<LockRange> = Vec::new();
        for other in locks.in_the_way(claim).take(EXCLUDING_MAX) {
            let start = other.range.start.max(claim.range.start);
            let range = LockRange { start, last: other.range.last.min(claim.range.last) };
            let excludes = |held: &LockFound| {
                held.owner == claim.owner
                    && held.range.meets(range)
                    && (held.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive)
            };
            if locks.held.iter().any(excludes) {
                untrue.push(range);
            }
        }
        for range in untrue {
            self.release(file, claim.owner, range, granted);
        }
    }

    fn holds_in_mode(&self, file: &LockFile, claim: &LockClaim) -> bool {
        self.files.get(file).is_some_and(|locks| {
            locks.held.iter().any(|held| held.owner == claim.owner && held.mode == claim.mode)
        })
    }

    /// Lets go of the locks of `owner` on `range`. `granted` gets the waits that ended because of
    /// it. Whether it was done: in a full table a lock cannot be split in two.
    pub fn release(
        &mut self,
        file: LockFile,
        owner: LockOwner,
        range: LockRange,
        granted: &mut Vec<WaitId>,
    ) -> bool {
        let Some(locks) = self.files.get_mut(&file) else { return true };
        let after = with_range(&locks.held, owner, range, None);
        let splits = after.len() > locks.held.len();
        if splits && (after.len() > PER_FILE_MAX || self.total >= TOTAL_MAX) {
            return false;
        }
        self.total = self.total - locks.held.len() + after.len();
        locks.held = after;
        self.wake(file, granted);
        self.settle(owner.client, file);
        true
    }

    /// A lock in the way of such a request.
    #[must_use]
    pub fn test(&self, file: LockFile, claim: &LockClaim) -> Option<LockFound> {
        self.files.get(&file)?.in_the_way(claim).next().copied()
    }

    /// Ends a wait. Whether there was one.
    pub fn cancel(&mut self, id: WaitId) -> bool {
        let Some(file) = self.waits.remove(&id) else { return false };
        let Some(locks) = self.files.get_mut(&file) else { return false };
        let place = locks.waiting.iter().position(|waiting| waiting.id == id);
        if let Some(waiting) = place.and_then(|index| locks.waiting.remove(index)) {
            self.total -= 1;
            self.forget_if_empty(file);
            self.settle(waiting.claim.owner.client, file);
        }
        true
    }

    /// A client is gone, with its locks and waits. `granted` gets the waits of others that ended
    /// because of it.
    pub fn client_gone(&mut self, client: ClientId, granted: &mut Vec<WaitId>) {
        for file in self.of_client.remove(&client).unwrap_or_default() {
            let Some(locks) = self.files.get_mut(&file) else { continue };
            let before = locks.count();
            locks.held.retain(|held| held.owner.client != client);
            let waits = &mut self.waits;
            locks.waiting.retain(|waiting| {
                let stays = waiting.claim.owner.client != client;
                if !stays {
                    waits.remove(&waiting.id);
                }
                stays
            });
            self.total -= before - locks.count();
            self.wake(file, granted);
        }
    }

    /// The owners that `owner` waits for.
    #[must_use]
    pub fn waits_for(&self, owner: LockOwner) -> Vec<LockOwner> {
        let mut found = Vec::new();
        for file in self.of_client.get(&owner.client).into_iter().flatten() {
            let Some(locks) = self.files.get(file) else { continue };
            for waiting in locks.waiting.iter().filter(|waiting| waiting.claim.owner == owner) {
                found.extend(locks.in_the_way(&waiting.claim).map(|held| held.owner));
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Locks and waits, of all files.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.total
    }

    /// Whether there is neither a lock nor a wait.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The locks of one file, by start.
    #[must_use]
    pub fn of_file(&self, file: LockFile) -> &[LockFound] {
        self.files.get(&file).map_or(&[], |locks| &locks.held)
    }

    fn grant(&mut self, file: LockFile, claim: &LockClaim) {
        let locks = self.files.entry(file).or_default();
        let after =
            with_range(&locks.held, claim.owner, claim.range, Some((claim.mode, claim.holder)));
        self.total = self.total - locks.held.len() + after.len();
        locks.held = after;
        self.of_client.entry(claim.owner.client).or_default().insert(file);
    }

    /// Grants the waits that nobody is in the way of any more.
    fn wake(&mut self, file: LockFile, granted: &mut Vec<WaitId>) {
        loop {
            let Some(locks) = self.files.get_mut(&file) else { return };
            let free =
                locks.waiting.iter().position(|w| locks.in_the_way(&w.claim).next().is_none());
            let Some(waiting) = free.and_then(|index| locks.waiting.remove(index)) else { break };
            self.total -= 1;
            self.waits.remove(&waiting.id);
            self.grant(file, &waiting.claim);
            granted.push(waiting.id);
        }
        self.forget_if_empty(file);
    }

    fn forget_if_empty(&mut self, file: LockFile) {
        if self.files.get(&file).is_some_and(|locks| locks.count() == 0) {
            self.files.remove(&file);
        }
    }

    /// Forgets that `client` has to do with `file` when it has not any more.
    fn settle(&mut self, client: ClientId, file: LockFile) {
        let concerns = self.files.get(&file).is_some_and(|locks| {
            locks.held.iter().any(|held| held.owner.client == client)
                || locks.waiting.iter().any(|waiting| waiting.claim.owner.client == client)
        });
        if !concerns && let Some(files) = self.of_client.get_mut(&client) {
            files.remove(&file);
            if files.is_empty() {
                self.of_client.remove(&client);
            }
        }
    }

    /// Whether one of the owners in the way waits, through others perhaps, for the one that asks.
    fn would_circle(&self, file: LockFile, claim: &LockClaim) -> bool {
        let Some(locks) = self.files.get(&file) else { return false };
        let first = locks.in_the_way(claim).map(|held| held.owner).collect();
        let mut search = CircleSearch::new(claim.owner, SEARCH_MAX, first);
        while let Some(owner) = search.next_owner() {
            if search.waits_for(self.waits_for(owner)) {
                return true;
            }
        }
        false
    }
}
