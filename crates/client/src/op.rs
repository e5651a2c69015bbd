//! One operation as a caller gives it.

use samite_types::Epoch;
use samite_wire::op::Operation;

/// An [`Operation`] with what the client needs besides: where the bytes it reads shall land, and what it relies on.
///
/// The sequence number inside is filled in by the client. Data is given inline whatever its length (up to
/// [`samite_wire::limits::RECORD_LEN_MAX`]): the client moves it through shared memory where it can.
#[derive(Debug)]
pub struct Op<'a> {
    /// What to do.
    pub operation: Operation<'a>,
    /// Where the bytes of the first `Get` land; the result then says how many came and holds no bytes itself.
    /// The `Get` never asks for more than fits here.
    pub dest: Option<&'a mut [u8]>,
    /// Epoch of the leases on which the cached directories behind this operation stand; [`Epoch`]`(u64::MAX)` when there are none.
    pub lease_epoch: Epoch,
}

impl<'a> Op<'a> {
    /// An operation that relies on nothing cached and returns what it reads.
    #[must_use]
    pub const fn new(operation: Operation<'a>) -> Self {
        Self { operation, dest: None, lease_epoch: Epoch(u64::MAX) }
    }

    /// The same, with the bytes of the first `Get` landing in `dest`.
    #[must_use]
    pub fn into_dest(mut self, dest: &'a mut [u8]) -> Self {
        self.dest = Some(dest);
        self
    }

    /// The same, standing on leases of `epoch`: fails with [`samite_types::ErrorKind::StaleLease`] at a partition that knows a newer one.
    #[must_use]
    pub const fn under_lease(mut self, epoch: Epoch) -> Self {
        self.lease_epoch = epoch;
        self
    }
}

impl<'a> From<Operation<'a>> for Op<'a> {
    fn from(operation: Operation<'a>) -> Self {
        Self::new(operation)
    }
}
