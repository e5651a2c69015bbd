//! The rings that a loop polls, and the others, which ring a doorbell.

use smallvec::SmallVec;

use super::{
    ConnectionPhase, EventLoop, LoopContext, NodeService, RingInput, ServerConnection, this_core,
};

impl EventLoop {
    /// Serves the rings that are polled, once around. Returns whether there was anything.
    ///
    /// Clients on this thread's core come last: until they can go on, others go on with their
    /// replies, and ask for more.
    pub(super) fn serve_rings(&mut self, service: &mut dyn NodeService) -> bool {
        let core = this_core();
        let mut near: SmallVec<[usize; 4]> = SmallVec::new();
        let mut served = false;
        let mut at = 0;
        while at < self.awake.len() {
            let index = self.awake[at];
            at += 1;
            if rings(&mut self.connections, index).is_some_and(|rings| rings.meet(core)) {
                near.push(index);
            } else {
                served |= self.serve_ring(index, service);
            }
        }
        self.is_near = !near.is_empty();
        for index in near {
            served |= self.serve_ring(index, service);
        }
        served
    }

    fn serve_ring(&mut self, index: usize, service: &mut dyn NodeService) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        let (Some(rings), ConnectionPhase::Open(peer)) = (&mut connection.rings, &connection.phase)
        else {
            return false;
        };
        let mut place = LoopContext {
            node: self.node,
            keys: &self.keys,
            service: &mut *service,
            replies: &mut self.replies,
        };
        match rings.serve(connection.id, peer, &mut place) {
            Ok(any) => any,
            Err(error) => {
                self.end(index, &error, service);
                false
            }
        }
    }

    /// Polls no more the rings that were quiet since the last time.
    pub(super) fn sort_rings(&mut self) {
        if std::mem::take(&mut self.polled) {
            return;
        }
        let connections = &mut self.connections;
        self.awake.retain(|index| {
            let Some(rings) = rings(connections, *index) else { return false };
            std::mem::take(&mut rings.used) || !rings.sleep()
        });
        // The next socket that has something wakes them again.
        self.sockets_awake = false;
    }

    /// Polling has paid no more: stop it, but for rings in which something has just come.
    pub(super) fn sleep(&mut self) {
        self.sockets_awake = false;
        let connections = &mut self.connections;
        self.awake.retain(|index| rings(connections, *index).is_some_and(|rings| !rings.sleep()));
        if self.awake.is_empty() {
            self.spin.sleeps();
        } else {
            self.spin.found();
        }
    }

    /// Tries again to move replies that wait for full rings.
    pub(super) fn retry_rings(&mut self) {
        let mut waiting = false;
        for index in 0..self.connections.len() {
            let Some(id) = self.id(index) else { continue };
            let before = self.replies.stalled(id);
            if before.is_none() || !self.replies.shares_arena(id) {
                continue;
            }
            let drained = self.replies.flush_ring(id);
            waiting |= !drained;
            if self.replies.stalled(id) != before {
                self.wake_rings(index);
            }
        }
        if waiting {
            self.watch.retry_later();
        }
    }

    /// Polls the rings of a connection from now on.
    pub(super) fn wake_rings(&mut self, index: usize) {
        if let Some(rings) = rings(&mut self.connections, index)
            && !rings.awake
        {
            rings.wake();
            self.awake.push(index);
        }
    }
}

fn rings(connections: &mut [Option<ServerConnection>], index: usize) -> Option<&mut RingInput> {
    connections.get_mut(index)?.as_mut()?.rings.as_mut()
}
