//! Signing, checking and holding tickets ([`samite_wire::ticket`]).

use samite_types::{Error, ErrorKind, Result};
use samite_wire::ticket::{SignedTicket, TicketClaims};

use crate::authorities::TlsAuthorities;
use crate::key::ClusterKey;
use crate::signing::SigningPair;

/// A ticket and what its holder needs to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserTicket {
    bytes: Vec<u8>,
    claims: TicketClaims,
    pair: SigningPair,
    node_key: [u8; 32],
    authorities: Option<TlsAuthorities>,
}

impl UserTicket {
    /// The ticket of these bytes, with its private key, and the public key of the nodes that take
    /// it.
    ///
    /// # Errors
    /// `Corrupt`: no ticket. `Invalid`: the private key is another ticket's.
    pub fn new(bytes: Vec<u8>, pair: SigningPair, node_key: [u8; 32]) -> Result<Self> {
        let (_, claims) = SignedTicket::parse(&bytes)?;
        if pair.public_key() != claims.public_key {
            let words = "the private key is not the one that the ticket was made for";
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        Ok(Self { bytes, claims, pair, node_key, authorities: None })
    }

    /// The same ticket, for a cluster whose nodes show TLS certificates that these authorities
    /// have signed.
    #[must_use]
    pub fn with_authorities(self, authorities: TlsAuthorities) -> Self {
        Self { authorities: Some(authorities), ..self }
    }

    /// The ticket that a node has given out in its place, for the same private key.
    ///
    /// # Errors
    /// As [`UserTicket::new`]; `Invalid`: another user's.
    pub fn renewed(&self, bytes: Vec<u8>, node_key: [u8; 32]) -> Result<Self> {
        let new = Self::new(bytes, self.pair.clone(), node_key)?;
        if new.claims.uid != self.claims.uid {
            return Err(Error::new(ErrorKind::Invalid, "the ticket is of another user"));
        }
        Ok(Self { authorities: self.authorities.clone(), ..new })
    }

    /// The signed ticket, encoded.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it says.
    #[must_use]
    pub const fn claims(&self) -> &TicketClaims {
        &self.claims
    }

    /// Its private key.
    #[must_use]
    pub const fn pair(&self) -> &SigningPair {
        &self.pair
    }

    /// Public key of the nodes.
    #[must_use]
    pub const fn node_key(&self) -> &[u8; 32] {
        &self.node_key
    }

    pub(crate) const fn authorities(&self) -> Option<&TlsAuthorities> {
        self.authorities.as_ref()
    }
}

/// Signs a ticket with the cluster key, whose number it is given.
///
/// # Errors
/// `TooLarge`: more groups or a longer name than a ticket can have.
pub fn issue(key: &ClusterKey, claims: TicketClaims) -> Result<Vec<u8>> {
    let claims = TicketClaims { key_number: key.number(), ..claims };
    let claims = claims.to_bytes();
    let mac = key.sign_ticket(&claims);
    let bytes = SignedTicket { claims, mac }.to_bytes();
    let too_large = |error| Error::new(ErrorKind::TooLarge, format!("ticket: {error}"));
    SignedTicket::parse(&bytes).map_err(too_large)?;
    Ok(bytes)
}

/// Reads the ticket in a hello, and checks it but for its time. `find`: the cluster's key of a
/// number.
///
/// # Errors
/// `Corrupt`: it does not parse. `WrongKey`: none of the cluster's keys that count has signed it.
pub(crate) fn check<'k>(
    bytes: &[u8],
    find: impl FnOnce(u32) -> Option<&'k ClusterKey>,
) -> Result<(TicketClaims, &'k ClusterKey)> {
    let (ticket, claims) = SignedTicket::parse(bytes)?;
    let number = claims.key_number;
    let refused = |words: String| Err(Error::new(ErrorKind::WrongKey, words));
    let Some(key) = find(number) else {
        return refused(format!(
            "the ticket was signed by cluster key {number}, which does not count here (any more)"
        ));
    };
    if !key.has_signed_ticket(&ticket.claims, &ticket.mac) {
        return refused(format!(
            "the ticket was not signed by key {number} of this cluster, or was changed since"
        ));
    }
    Ok((claims, key))
}

/// Whether a ticket counts at `now_s`, in seconds since 1970.
///
/// # Errors
/// `WrongKey`: it has ended.
pub(crate) fn check_time(claims: &TicketClaims, now_s: u64) -> Result<()> {
    if now_s < claims.expires_s {
        return Ok(());
    }
    Err(ended(claims))
}

/// The refusal of a ticket that has ended.
pub(crate) fn ended(claims: &TicketClaims) -> Error {
    let (uid, at) = (claims.uid, claims.expires_s);
    let words = format!("the ticket of uid {uid} has ended (at {at} s since 1970)");
    Error::new(ErrorKind::WrongKey, words)
}
