//! Control requests by a link, as far as the peer's version has them.

use samite_types::{Deadline, Error, ErrorKind, Result};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::frame::FrameKind;

use super::link::{NodeLink, RequestTicket};
use super::request::OutgoingRequest;

impl NodeLink {
    /// The version of the protocol that both ends speak.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.shared.version
    }

    /// Asks the node, and waits for its answer, which may be [`ControlReply::Failed`].
    ///
    /// # Errors
    /// `Unsupported`: its version has no such request; else as [`Self::call`].
    pub fn control(&self, request: &ControlRequest, deadline: Deadline) -> Result<ControlReply> {
        self.check_known(request)?;
        let body = control::encode(request);
        let request = OutgoingRequest { kind: FrameKind::Control, body: &body, payload: &[] };
        self.call(request, deadline, |reply| match reply.kind() {
            FrameKind::ControlReply => control::decode(reply.body()).map_err(Error::from),
            kind => Err(Error::new(
                ErrorKind::Corrupt,
                format!("{} answered a control request with {kind:?}", self.node()),
            )),
        })?
    }

    /// Asks, and does not wait.
    ///
    /// # Errors
    /// `Unsupported`: its version has no such request; else as [`Self::submit`].
    pub fn submit_control(
        &self,
        request: &ControlRequest,
        deadline: Deadline,
    ) -> Result<RequestTicket> {
        self.check_known(request)?;
        self.submit(FrameKind::Control, &control::encode(request), &[], deadline)
    }

    /// A node would end the connection over a request that it cannot read.
    fn check_known(&self, request: &ControlRequest) -> Result<()> {
        let (version, since) = (self.version(), request.since());
        if version >= since {
            return Ok(());
        }
        let node = self.node();
        let words = format!(
            "{node} speaks version {version} of the protocol, and this needs {since}: upgrade it first"
        );
        Err(Error::new(ErrorKind::Unsupported, words))
    }
}
