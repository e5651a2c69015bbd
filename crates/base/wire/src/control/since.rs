//! The versions of the protocol that have a request.

use super::ControlRequest;

impl ControlRequest {
    /// The oldest [version](crate::hello) of the protocol that has this request.
    #[must_use]
    pub const fn since(&self) -> u8 {
        match self {
            Self::Events { .. }
            | Self::ReadLog { .. }
            | Self::SetLogFilter { .. }
            | Self::Setup
            | Self::Clients
            | Self::IssueTicket { .. }
            | Self::RenewTicket
            | Self::ChangeKey(_)
            | Self::Resize { .. }
            | Self::Clock
            | Self::ClockDifference
            | Self::Freeze(_)
            | Self::Worker(..)
            | Self::Workers => 4,
            _ => 3,
        }
    }
}
