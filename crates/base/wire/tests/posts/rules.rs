//! The rules of the protocol.

/// Rules that are followed, or not.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub reader_looks_at_claim: bool,
    pub client_looks_at_board_after_claim: bool,
    pub client_sets_bit_before_posting: bool,
    pub node_carries_out_first: bool,
    pub node_revokes: bool,
    pub node_bars_until_done: bool,
    pub node_closes_to_seal: bool,
    pub client_looks_for_seal: bool,
    pub client_frees_only_its_own: bool,
    pub node_closes_before_it_revokes: bool,
    pub node_revokes_on_close: bool,
    pub node_closes_to_raise: bool,
    pub node_opens_to_who_has_leases: bool,
    pub client_looks_for_whom: bool,
    pub node_grants_what_was_posted: bool,
    pub node_closes_to_changes_of_others: bool,
    pub node_closes_where_it_cannot_bar: bool,
}

pub const ALL: Rules = Rules {
    reader_looks_at_claim: true,
    client_looks_at_board_after_claim: true,
    client_sets_bit_before_posting: true,
    node_carries_out_first: true,
    node_revokes: true,
    node_bars_until_done: true,
    node_closes_to_seal: true,
    client_looks_for_seal: true,
    client_frees_only_its_own: true,
    node_closes_before_it_revokes: true,
    node_revokes_on_close: true,
    node_closes_to_raise: true,
    node_opens_to_who_has_leases: true,
    client_looks_for_whom: true,
    node_grants_what_was_posted: true,
    node_closes_to_changes_of_others: true,
    node_closes_where_it_cannot_bar: true,
};
