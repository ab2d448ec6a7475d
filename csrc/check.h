// What every entry point checks before it reads through a pointer.
#pragma once

#include "d3d.h"

namespace d3d {

inline int dtype_bytes(int32_t dtype) {
  switch (dtype) {
    case D3D_F32:
      return 4;
    case D3D_BF16:
      return 2;
    case D3D_F16:
      return 2;
    case D3D_F64:
      return 8;
    default:
      return 0;
  }
}

template <class... Pointers>
bool all_set(const Pointers*... pointers) {
  return ((pointers != nullptr) && ...);
}

inline bool valid(const d3d_sampling& s) {
  return s.num_requests >= 0 &&
         (s.num_requests == 0 || all_set(s.temperature, s.top_k, s.top_p, s.min_p, s.seed));
}

inline bool valid(const d3d_penalties* p) {
  return !p || !p->bias.ids || p->bias_values;
}

inline int check_rows(const void* logits, int32_t dtype, int32_t vocab, int64_t rows,
                      const d3d_sampling& sampling, const d3d_penalties* penalties) {
  if (dtype_bytes(dtype) == 0) return D3D_ERROR_DTYPE;
  if (vocab < 1 || vocab >= D3D_MAX_VOCAB || rows < 0 || !valid(sampling) || !valid(penalties))
    return D3D_ERROR_ARGUMENT;
  return rows == 0 || logits ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_sample(const d3d_sample_args& a) {
  if (const int error = check_rows(a.logits, a.dtype, a.vocab, a.num_rows, a.sampling, a.penalties))
    return error;
  return a.num_rows == 0 || all_set(a.positions, a.token_ids, a.status) ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_draft_candidates(const d3d_draft_args& a) {
  if (const int error = check_rows(a.logits, a.dtype, a.vocab, a.num_rows, a.sampling, a.penalties))
    return error;
  if (a.num_positions < 0 || a.num_candidates < 0 || !(a.beta > 0)) return D3D_ERROR_ARGUMENT;
  if (a.num_rows > 0 && !a.positions) return D3D_ERROR_ARGUMENT;
  const bool empty = a.num_rows == 0 || a.num_positions == 0 || a.num_candidates == 0;
  return empty || all_set(a.token_ids, a.log_probs, a.scores) ? D3D_OK : D3D_ERROR_ARGUMENT;
}

// A tree whose candidates are somebody else's business.
inline bool valid_tree(const d3d_build_tree_args& a) {
  if (a.num_positions < 0 || a.num_candidates < 0 || a.num_nodes < 1 || a.num_outcomes < 0) return false;
  if (a.num_requests == 0) return true;
  return all_set(a.root_ids, a.token_ids, a.parents, a.depths, a.node_counts, a.mask_bits) &&
         (a.num_outcomes == 0 || all_set(a.outcome_parents, a.outcome_token_ids, a.outcome_scores)) &&
         !a.first_child == !a.next_sibling;
}

inline int check_build_tree(const d3d_build_tree_args& a) {
  if (a.num_requests < 0 || !valid_tree(a) || (a.outcome_index && a.num_branches < 0))
    return D3D_ERROR_ARGUMENT;
  const bool drafted = a.num_requests > 0 && (!a.outcome_index || a.num_branches > 0) && a.num_positions > 0 &&
                       a.num_candidates > 0;
  return !drafted || all_set(a.candidate_token_ids, a.candidate_scores) ? D3D_OK : D3D_ERROR_ARGUMENT;
}

// What the tree takes from its draft; the candidates, once they have a place, are the caller's to fill in.
inline void join_draft_and_tree(d3d_draft_tree_args& a) {
  a.draft.request_ids = nullptr;
  a.tree.num_requests = a.draft.num_rows;
  a.tree.num_positions = a.draft.num_positions;
  a.tree.num_candidates = a.draft.num_candidates;
  a.tree.outcome_index = nullptr;
}

inline int check_draft_tree(const d3d_draft_tree_args& joined) {
  const d3d_draft_args& draft = joined.draft;
  const int64_t rows = draft.num_positions > 0 ? draft.num_rows : 0;
  if (const int error =
          check_rows(draft.logits, draft.dtype, draft.vocab, rows, draft.sampling, draft.penalties))
    return error;
  if (draft.num_rows < 0 || draft.num_candidates < 1 || !(draft.beta > 0) ||
      draft.sampling.num_requests < draft.num_rows || !valid_tree(joined.tree))
    return D3D_ERROR_ARGUMENT;
  return draft.num_rows == 0 || draft.positions ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_verify_tree(const d3d_verify_tree_args& a) {
  if (const int error = check_rows(a.logits, a.dtype, a.vocab, a.row_starts ? a.num_rows : a.num_requests,
                                   a.sampling, a.penalties))
    return error;
  if (a.num_requests < 0 || a.num_nodes < 1 || a.sampling.num_requests < a.num_requests || a.num_outcomes < 0)
    return D3D_ERROR_ARGUMENT;
  const bool complete =
      all_set(a.token_ids, a.parents, a.node_counts, a.root_positions, a.accepted_nodes, a.num_accepted,
              a.bonus_ids, a.status) &&
      (!a.outcome_index || a.num_outcomes == 0 || all_set(a.outcome_parents, a.outcome_token_ids));
  return a.num_requests == 0 || complete ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_verify_chain(const d3d_verify_chain_args& a) {
  if (const int error =
          check_rows(a.target_logits, a.dtype, a.vocab, a.num_requests, a.sampling, a.penalties))
    return error;
  if (a.num_drafts < 0 || a.sampling.num_requests < a.num_requests || a.rule < D3D_RULE_COUPLED ||
      a.rule > D3D_RULE_BLOCK || a.draft_kind < D3D_DRAFT_CERTAIN || a.draft_kind > D3D_DRAFT_PROBABILITIES)
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests == 0) return D3D_OK;
  if (!all_set(a.positions, a.accepted_nodes, a.num_accepted, a.bonus_ids, a.status))
    return D3D_ERROR_ARGUMENT;
  if (a.num_drafts == 0) return D3D_OK;
  if (!a.draft_ids) return D3D_ERROR_ARGUMENT;
  if (a.rule == D3D_RULE_COUPLED || a.draft_kind == D3D_DRAFT_CERTAIN) return D3D_OK;
  if (dtype_bytes(a.draft_dtype) == 0) return D3D_ERROR_DTYPE;
  return a.draft_rows ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_select_outcome(const d3d_select_outcome_args& a) {
  if (a.num_requests < 0 || a.num_nodes < 1 || a.num_outcomes < 0) return D3D_ERROR_ARGUMENT;
  if (a.candidate_ids &&
      (a.num_positions < 0 || a.num_candidates < 0 ||
       !all_set(a.candidate_log_probs, a.candidate_scores, a.draft_ids, a.draft_log_probs, a.draft_scores)))
    return D3D_ERROR_ARGUMENT;
  const bool complete = all_set(a.accepted_nodes, a.num_accepted, a.bonus_ids, a.index) &&
                        (a.num_outcomes == 0 || all_set(a.outcome_parents, a.outcome_token_ids));
  return a.num_requests == 0 || complete ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_frontier(const d3d_frontier_args& a) {
  if (a.num_requests < 0 || a.num_nodes < 1 || a.num_outcomes < 0 || a.block_size < 1 || a.num_pages < 0 ||
      a.page_size < 1 || (a.page_id_bytes != 4 && a.page_id_bytes != 8))
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests == 0 || (a.num_nodes == 1 && a.num_outcomes == 0)) return D3D_OK;
  const bool complete =
      all_set(a.token_ids, a.depths, a.node_counts, a.mask_bits, a.root_positions, a.row_token_ids,
              a.row_positions, a.row_slots, a.row_mask_bits) &&
      (a.num_pages == 0 || a.page_table) &&
      (a.num_outcomes == 0 ||
       all_set(a.outcome_parents, a.outcome_token_ids, a.draft_positions, a.request_ids));
  return complete ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_dense_mask(const d3d_dense_mask_args& a) {
  if (a.num_requests < 0 || a.num_rows < 0 || a.num_words < 0 || a.num_columns < 0) return D3D_ERROR_ARGUMENT;
  const int64_t rows = a.num_requests * a.num_rows;
  if (rows * a.num_columns == 0) return D3D_OK;
  if (a.element_bytes != 1 && a.element_bytes != 2 && a.element_bytes != 4 && a.element_bytes != 8)
    return D3D_ERROR_DTYPE;
  return all_set(a.context_lengths, a.mask) && (a.num_words == 0 || a.mask_bits) ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_packed_mask(const d3d_packed_mask_args& a) {
  if (a.num_requests < 0 || a.num_rows < 0 || a.num_words < 0 || a.max_context < 0 || !a.byte_starts)
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests > 0 && !a.context_lengths) return D3D_ERROR_ARGUMENT;
  const bool complete = a.bits && 32 * a.num_words >= a.num_rows && a.mask_bits;
  return a.num_requests * a.num_rows == 0 || complete ? D3D_OK : D3D_ERROR_ARGUMENT;
}

inline int check_move_kv(const d3d_move_kv_args& a) {
  if (a.num_buffers < 0 || a.num_pages < 0 || a.page_size < 1 || a.num_requests < 0 || a.num_moves < 0)
    return D3D_ERROR_ARGUMENT;
  const bool complete = all_set(a.buffers, a.sources, a.targets, a.counts);
  return a.num_buffers * a.num_requests * a.num_moves == 0 || complete ? D3D_OK : D3D_ERROR_ARGUMENT;
}

}  // namespace d3d
