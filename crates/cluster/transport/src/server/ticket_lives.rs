//! Until when connections count whose tickets were renewed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use samite_wire::ticket::TicketClaims;

/// Most renewed tickets that are remembered.
const RENEWED_MAX: usize = 16 << 10;

/// Ends of renewed tickets. All connections of a ticket's holder to a node count as long as the
/// ticket that he has got there last.
#[derive(Debug, Default)]
pub struct TicketLives(Mutex<HashMap<[u8; 32], u64>>);

impl TicketLives {
    /// A ticket with this public key was renewed: the new one ends at this time, in seconds since
    /// 1970. Those that ended before `now_s` are forgotten when there are many.
    pub fn renewed(&self, claims: &TicketClaims, now_s: u64) {
        let mut lives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lives.len() >= RENEWED_MAX {
            lives.retain(|_, expires_s| *expires_s > now_s);
        }
        if lives.len() < RENEWED_MAX || lives.contains_key(&claims.public_key) {
            let life = lives.entry(claims.public_key).or_default();
            *life = claims.expires_s.max(*life);
        }
    }

    /// When the connections of this ticket's holder end, in seconds since 1970.
    pub(super) fn expires_s(&self, claims: &TicketClaims) -> u64 {
        let lives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lives.get(&claims.public_key).map_or(0, |life| *life).max(claims.expires_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(number: u32, expires_s: u64) -> TicketClaims {
        let mut public_key = [0; 32];
        public_key[..4].copy_from_slice(&number.to_le_bytes());
        TicketClaims {
            version: 1,
            cluster: String::new(),
            key_number: 1,
            uid: 7,
            gids: Vec::new(),
            issued_s: 0,
            expires_s,
            renewable_until_s: expires_s,
            public_key,
        }
    }

    #[test]
    fn the_last_renewal_counts_and_memory_is_bounded() {
        let lives = TicketLives::default();
        assert_eq!(lives.expires_s(&claims(1, 10)), 10);
        lives.renewed(&claims(1, 30), 0);
        lives.renewed(&claims(1, 20), 0);
        assert_eq!((lives.expires_s(&claims(1, 10)), lives.expires_s(&claims(2, 10))), (30, 10));
        for number in 2..RENEWED_MAX as u32 + 10 {
            lives.renewed(&claims(number, 40), 0);
        }
        assert_eq!(lives.0.lock().unwrap().len(), RENEWED_MAX);
        lives.renewed(&claims(1, 50), 0);
        assert_eq!(lives.expires_s(&claims(1, 10)), 50, "one that is known is told");
        lives.renewed(&claims(u32::MAX, 60), 41);
        assert_eq!(lives.expires_s(&claims(u32::MAX, 10)), 60);
        assert_eq!(lives.0.lock().unwrap().len(), 2);
    }
}
