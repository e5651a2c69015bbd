//! Which core each side of a pair of rings polls on.
//!
//! Two threads that share a core get nothing from polling for each other: the one that waits has to
//! let the other run, at once. Each side says in a word of the control page where it was when it
//! last looked at its ring. That is a hint: the scheduler moves threads.

use std::sync::atomic::Ordering;

use super::ring::{ControlWord, RingMemory};

/// One side's knowledge of the two.
#[derive(Debug)]
pub(crate) struct CoreKnowledge {
    own: ControlWord,
    other: ControlWord,
    /// Value of the own word; 0: no core.
    told: u32,
}

impl CoreKnowledge {
    pub(crate) const fn of_client() -> Self {
        Self { own: ControlWord::ClientCore, other: ControlWord::NodeCore, told: 0 }
    }

    pub(crate) const fn of_node() -> Self {
        Self { own: ControlWord::NodeCore, other: ControlWord::ClientCore, told: 0 }
    }

    /// Says that this side polls on `core`; returns whether the other one does, too.
    pub(crate) fn meet(&mut self, memory: &RingMemory, core: u32) -> bool {
        if self.told != core {
            self.told = core;
            memory.word(self.own).store(core, Ordering::Relaxed);
        }
        memory.word(self.other).load(Ordering::Relaxed) == core
    }

    /// Says that this side polls no more: nobody knows where it will be woken.
    pub(crate) fn leave_core(&mut self, memory: &RingMemory) {
        self.told = 0;
        memory.word(self.own).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use samite_cpu::this_core;
    use samite_wire::hello::RingLayout;

    use super::*;
    use crate::shm::ring::memory_len;
    use samite_arena::memory_file;

    #[test]
    fn each_side_knows_where_the_other_polls() {
        let layout = RingLayout { request_len: 4096, reply_len: 4096, arena_len: 0, queue: None };
        let file = memory_file("test-cores", memory_len(&layout).unwrap()).unwrap();
        let memory = RingMemory::map(&file, &layout).unwrap();
        let (mut client, mut node) = (CoreKnowledge::of_client(), CoreKnowledge::of_node());
        assert!(!client.meet(&memory, 1), "the node has said nothing");
        assert!(node.meet(&memory, 1));
        assert!(client.meet(&memory, 1));
        assert!(!node.meet(&memory, 2), "it was moved");
        assert!(!client.meet(&memory, 1));
        assert!(client.meet(&memory, 2));
        node.leave_core(&memory);
        assert!(!client.meet(&memory, 2));
        assert!(node.meet(&memory, 2));
        assert!(this_core() > 0);
    }
}
