//! Changing the cluster key while the store serves.
//!
//! First every node learns the next key, then each goes over to it, and then each drops the one
//! before. In every state two nodes know each other's current keys. What is to be done next follows
//! from the owner's file and from what the nodes say, so a change that was cut off anywhere goes on
//! when it is asked for again.

use std::time::Duration;

use samite_transport::client::NodeLink;
use samite_transport::{Address, ClusterKey, ClusterKeys, Credential};
use samite_types::{ClientId, Deadline, Entropy, Error, ErrorKind, NodeId, Result, SystemEntropy};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::ticket::{KeyNumbers, KeyStep};

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RotationStep {
    /// This node has to learn the next key.
    Prepare(usize),
    /// This node has to go over to it.
    Switch(usize),
    /// The owner's file has to.
    SwitchOwn,
    /// This node has to drop the key before.
    Finish(usize),
    /// The owner's file has to.
    FinishOwn,
    /// Nothing.
    Done,
}

/// What is to be done next, by what the owner's file has and what the nodes have. With
/// `keeps_before`, the key before is not dropped.
fn next_step(own: &ClusterKeys, nodes: &[KeyNumbers], keeps_before: bool) -> RotationStep {
    let newest = own.newest().number();
    let first = |is_behind: &dyn Fn(&KeyNumbers) -> bool| nodes.iter().position(is_behind);
    let knows = |node: &KeyNumbers| node.current == newest || node.other == Some(newest);
    if let Some(node) = first(&|node| !knows(node)) {
        return RotationStep::Prepare(node);
    }
    if let Some(node) = first(&|node| node.current != newest) {
        return RotationStep::Switch(node);
    }
    if own.current().number() != newest {
        return RotationStep::SwitchOwn;
    }
    if keeps_before {
        return RotationStep::Done;
    }
    if let Some(node) = first(&|node| node.other.is_some()) {
        return RotationStep::Finish(node);
    }
    if own.other().is_some() { RotationStep::FinishOwn } else { RotationStep::Done }
}

/// Changes the cluster key at all nodes.
pub struct KeyRotation<'a> {
    /// The keys in the owner's file.
    pub own: ClusterKeys,
    /// Writes the owner's file, safe whenever the machine dies.
    pub keep: &'a mut dyn FnMut(&ClusterKeys) -> Result<()>,
    /// All nodes, and each process with a voter alone: where each is reached.
    pub nodes: Vec<(NodeId, Vec<String>)>,
    /// The key before stays, so that holders of tickets get new ones; the next run drops it.
    pub keeps_before: bool,
    /// Time for each request.
    pub timeout: Duration,
}

impl std::fmt::Debug for KeyRotation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyRotation").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl KeyRotation<'_> {
    /// Changes the key, or ends a change that was cut off. Returns the number of the key that
    /// counts from now on.
    ///
    /// # Errors
    /// Those of the first node that cannot be reached or refuses, which the error names; nothing is
    /// undone, and the next run goes on. `Conflict`: there is nothing to do but to drop the key
    /// before, which is to stay; a node does not do what it answers that it has done.
    pub fn run(mut self) -> Result<u32> {
        let nodes = self.ask_all()?;
        // Nothing is under way: a change begins, with a key that nobody else knows yet.
        if next_step(&self.own, &nodes, false) == RotationStep::Done {
            let number = self.own.current().number();
            let number = number.checked_add(1).ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
            let mut bytes = [0; ClusterKey::LEN];
            SystemEntropy.fill(&mut bytes);
            self.write_own(self.own.with_next(&ClusterKey::numbered(bytes, number))?)?;
        } else if next_step(&self.own, &nodes, self.keeps_before) == RotationStep::Done {
            let number = self.own.current().number();
            let words = format!(
                "nothing is changed: cluster key {number} is in use, and the one before it counts \
                 still; drop that before the next change (`samite key rotate`)"
            );
            return Err(Error::new(ErrorKind::Conflict, words));
        }
        self.go_on(nodes, Self::ask)
    }

    /// Makes all steps that are left, the ones at nodes by `ask`.
    fn go_on(
        &mut self,
        mut nodes: Vec<KeyNumbers>,
        ask: impl Fn(&Self, usize, &KeyStep) -> Result<KeyNumbers>,
    ) -> Result<u32> {
        let number = self.own.newest().number();
        let mut made = Vec::new();
        loop {
            let step = next_step(&self.own, &nodes, self.keeps_before);
            let (node, at_node) = match step {
                RotationStep::Prepare(node) => {
                    let sealed = self.sealed(node, nodes[node].current)?;
                    (node, KeyStep::Prepare { number, sealed })
                }
                RotationStep::Switch(node) => (node, KeyStep::Switch { number }),
                RotationStep::Finish(node) => (node, KeyStep::Finish { number }),
                RotationStep::SwitchOwn => {
                    self.write_own(self.own.switched(number)?)?;
                    continue;
                }
                RotationStep::FinishOwn => {
                    self.write_own(self.own.finished(number)?)?;
                    continue;
                }
                RotationStep::Done => return Ok(number),
            };
            if made.contains(&step) {
                return Err(self.stands_still(node, nodes[node], &at_node));
            }
            nodes[node] = ask(self, node, &at_node)?;
            made.push(step);
        }
    }

    /// A node answers that it has made a step, and it is due again.
    fn stands_still(&self, node: usize, numbers: KeyNumbers, step: &KeyStep) -> Error {
        let (id, KeyNumbers { current, other }) = (self.nodes[node].0, numbers);
        let other = other.map_or("none".to_owned(), |other| other.to_string());
        let (what, number) = (name_of(step), self.own.newest().number());
        let words = format!(
            "{id} was asked to {what} {number}, and goes by key {current} after that (other key: \
             {other})"
        );
        Error::new(ErrorKind::Conflict, words)
    }

    fn write_own(&mut self, keys: ClusterKeys) -> Result<()> {
        (self.keep)(&keys)?;
        self.own = keys;
        Ok(())
    }

    /// The newest key, sealed by the one that this node has.
    fn sealed(&self, node: usize, current: u32) -> Result<Vec<u8>> {
        let known = self.own.find(current).ok_or_else(|| {
            let id = self.nodes[node].0;
            let words = format!("{id} goes by cluster key {current}, which is not here");
            Error::new(ErrorKind::Conflict, words)
        })?;
        Ok(known.seal_next(self.own.newest(), &SystemEntropy))
    }

    fn ask_all(&self) -> Result<Vec<KeyNumbers>> {
        (0..self.nodes.len()).map(|node| self.ask(node, &KeyStep::Tell)).collect()
    }

    /// A step at one node.
    fn ask(&self, node: usize, step: &KeyStep) -> Result<KeyNumbers> {
        let (id, addresses) = &self.nodes[node];
        let what = match step {
            KeyStep::Tell => "say which cluster keys it has".to_owned(),
            step => format!("{} {}", name_of(step), self.own.newest().number()),
        };
        self.try_ask(addresses, step).map_err(|error| {
            error.context(format_args!("{id} did not {what} (run it again when it can)"))
        })
    }

    fn try_ask(&self, addresses: &[String], step: &KeyStep) -> Result<KeyNumbers> {
        let deadline = Deadline::after(self.timeout);
        let link = self.connect(addresses, deadline)?;
        match link.control(&ControlRequest::ChangeKey(step.clone()), deadline)?.checked()? {
            ControlReply::Keys(numbers) => Ok(numbers),
            _ => Err(Error::new(ErrorKind::Corrupt, "the node answers another question")),
        }
    }

    /// Connects by whichever of the two keys the node takes.
    fn connect(&self, addresses: &[String], deadline: Deadline) -> Result<NodeLink> {
        let client = ClientId(SystemEntropy.next_u64());
        let mut failed = Error::new(ErrorKind::Unavailable, "it has no address");
        for address in addresses {
            let address: Address = address.parse()?;
            for key in [Some(self.own.current()), self.own.other()].into_iter().flatten() {
                let credential = Credential::from(key);
                match NodeLink::connect(&address, &credential, client, deadline) {
                    Ok(link) => return Ok(link),
                    Err(error) => {
                        let is_refused = error.kind() == ErrorKind::WrongKey;
                        failed = error;
                        if !is_refused {
                            break;
                        }
                    }
                }
            }
        }
        Err(failed)
    }
}

/// What a node is asked to do, before the number of the newest key.
const fn name_of(step: &KeyStep) -> &'static str {
    match step {
        KeyStep::Tell => "say whether it has cluster key",
        KeyStep::Prepare { .. } => "learn cluster key",
        KeyStep::Switch { .. } => "go over to cluster key",
        KeyStep::Finish { .. } => "drop the cluster key before",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u32) -> ClusterKey {
        ClusterKey::numbered([number as u8; 32], number)
    }

    /// Nodes, the owner's file, and clients that read it again when they are refused.
    struct World {
        own: ClusterKeys,
        nodes: Vec<ClusterKeys>,
    }

    impl World {
        fn numbers(&self) -> Vec<KeyNumbers> {
            self.nodes.iter().map(ClusterKeys::numbers).collect()
        }

        /// One step of a run. `false`: there was nothing to do.
        fn step(&mut self, keeps_before: bool) -> bool {
            let number = self.own.newest().number();
            match next_step(&self.own, &self.numbers(), keeps_before) {
                RotationStep::Prepare(node) => {
                    let known = self.own.find(self.nodes[node].current().number()).unwrap();
                    let sealed = known.seal_next(self.own.newest(), &SystemEntropy);
                    let opened = self.nodes[node].current().open_next(number, &sealed).unwrap();
                    self.nodes[node] = self.nodes[node].with_next(&opened).unwrap();
                }
                RotationStep::Switch(node) => {
                    self.nodes[node] = self.nodes[node].switched(number).unwrap();
                }
                RotationStep::Finish(node) => {
                    self.nodes[node] = self.nodes[node].finished(number).unwrap();
                }
                RotationStep::SwitchOwn => self.own = self.own.switched(number).unwrap(),
                RotationStep::FinishOwn => self.own = self.own.finished(number).unwrap(),
                RotationStep::Done => return false,
            }
            true
        }

        fn begin(&mut self) {
            if next_step(&self.own, &self.numbers(), false) == RotationStep::Done {
                let next = self.own.current().number() + 1;
                self.own = self.own.with_next(&key(next)).unwrap();
            }
        }

        /// All nodes can speak to each other, and a client that reads the owner's file can speak
        /// to all of them.
        fn check(&self) {
            for keys in self.nodes.iter().chain([&self.own]) {
                for node in &self.nodes {
                    let current = keys.current();
                    let known = node.find(current.number()).expect("it is known");
                    assert_eq!(known.as_bytes(), current.as_bytes());
                }
            }
        }

        /// A node or the owner dies and comes again, with what its file says.
        fn restart(&mut self) {
            for keys in self.nodes.iter_mut().chain([&mut self.own]) {
                *keys = ClusterKeys::parse(&keys.to_bytes()).unwrap();
            }
        }
    }

    proptest! {
        #[test]
        fn a_change_that_is_cut_off_anywhere_goes_on_and_all_can_speak_at_every_moment(
            count in 1_usize..6,
            runs in proptest::collection::vec((0_usize..25, any::<bool>(), 0_u8..4), 1..8),
        ) {
            let mut world = World {
                own: ClusterKeys::new(key(1)),
                nodes: vec![ClusterKeys::new(key(1)); count],
            };
            for (steps, keeps_before, change) in runs {
                world.begin();
                world.check();
                for _ in 0..steps {
                    let goes_on = world.step(keeps_before);
                    world.check();
                    if !goes_on {
                        break;
                    }
                }
                world.restart();
                match change {
                    // A node that is added begins with the owner's file.
                    0 => world.nodes.push(world.own.clone()),
                    1 if world.nodes.len() > 1 => drop(world.nodes.remove(0)),
                    _ => {}
                }
                world.check();
            }
            while world.step(false) {
                world.check();
            }
            let (number, first) = (world.own.current().number(), ClusterKeys::new(key(1)));
            prop_assert!(number > 1);
            for keys in world.nodes.iter().chain([&world.own]) {
                prop_assert_eq!(keys.numbers(), KeyNumbers { current: number, other: None });
                prop_assert_eq!(keys.current(), &key(number));
                prop_assert_eq!(*keys.id(), *first.id());
            }
        }
    }

    /// A run over nodes 3 and 4 that have these numbers, and answer with what `answer` says.
    fn go_on(
        own: &ClusterKeys,
        nodes: Vec<KeyNumbers>,
        answer: impl Fn(usize, &KeyStep) -> KeyNumbers,
    ) -> Result<u32> {
        let mut run = KeyRotation {
            own: own.clone(),
            keep: &mut |_| Ok(()),
            nodes: vec![(NodeId(3), Vec::new()), (NodeId(4), Vec::new())],
            keeps_before: false,
            timeout: Duration::ZERO,
        };
        run.go_on(nodes, |_, node, step| Ok(answer(node, step)))
    }

    #[test]
    fn a_node_that_does_not_move_on_ends_the_run() {
        let own = ClusterKeys::new(key(1)).with_next(&key(2)).unwrap();
        let first = KeyNumbers { current: 1, other: None };
        let error = go_on(&own, vec![first; 2], |node, step| match (node, step) {
            (0, KeyStep::Prepare { .. }) => KeyNumbers { current: 1, other: Some(2) },
            _ => first,
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        for part in ["n4 ", "learn cluster key 2", "key 1 ", "none"] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
        // It goes back and forth.
        let error = go_on(&own, vec![first; 2], |_, step| match step {
            KeyStep::Prepare { .. } => KeyNumbers { current: 1, other: Some(2) },
            _ => first,
        })
        .unwrap_err();
        assert!(error.message().contains("n3 was asked to learn"), "{error}");
        let strange = KeyNumbers { current: 7, other: None };
        let error = go_on(&own, vec![first, strange], |_, _| first).unwrap_err();
        assert!(error.message().contains("n3 was asked"), "{error}");
        let error = go_on(&own, vec![strange; 2], |_, _| first).unwrap_err();
        assert!(error.message().contains("n3 goes by cluster key 7"), "{error}");
    }

    #[test]
    fn a_sealed_key_is_opened_by_its_key_and_number_alone() {
        let sealed = key(1).seal_next(&key(2), &SystemEntropy);
        assert_eq!(key(1).open_next(2, &sealed).unwrap(), key(2));
        assert!(key(3).open_next(2, &sealed).is_err());
        assert!(key(1).open_next(3, &sealed).is_err());
        assert!(key(1).open_next(2, &[]).is_err());
        for at in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[at] ^= 1;
            assert!(key(1).open_next(2, &bent).is_err());
        }
        assert!(!sealed.windows(4).any(|part| part == [2; 4]), "it is not in clear");
    }
}
