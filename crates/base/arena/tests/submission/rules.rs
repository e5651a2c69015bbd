//! The rules of the protocol.

/// Rules that are followed, or not.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub reader_looks_at_lock_word: bool,
    pub client_looks_at_table_after_claim: bool,
    pub client_sets_bit_before_submitting: bool,
    pub node_carries_out_first: bool,
    pub node_revokes: bool,
    pub node_locks_until_done: bool,
    pub node_closes_to_tombstone: bool,
    pub client_looks_for_tombstone: bool,
    pub client_frees_only_its_own: bool,
    pub node_closes_before_it_revokes: bool,
    pub node_revokes_on_close: bool,
    pub node_closes_to_raise: bool,
    pub node_opens_to_sole_holder: bool,
    pub client_looks_for_sole_client: bool,
    pub node_grants_what_was_submitted: bool,
    pub node_closes_to_changes_of_others: bool,
    pub node_closes_where_it_cannot_lock: bool,
}

pub const ALL: Rules = Rules {
    reader_looks_at_lock_word: true,
    client_looks_at_table_after_claim: true,
    client_sets_bit_before_submitting: true,
    node_carries_out_first: true,
    node_revokes: true,
    node_locks_until_done: true,
    node_closes_to_tombstone: true,
    client_looks_for_tombstone: true,
    client_frees_only_its_own: true,
    node_closes_before_it_revokes: true,
    node_revokes_on_close: true,
    node_closes_to_raise: true,
    node_opens_to_sole_holder: true,
    client_looks_for_sole_client: true,
    node_grants_what_was_submitted: true,
    node_closes_to_changes_of_others: true,
    node_closes_where_it_cannot_lock: true,
};
