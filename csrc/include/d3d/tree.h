// Growing, walking and matching draft trees, one request at a time.
//
// Growing. A node's value is the sum of the scores on its path. Scores are sorted along a list of candidates
// and never positive, so no prefix beats its parent or its better sibling. A heap that holds only the next
// entry of each list (best-first enumeration, as in DDTree) therefore pops prefixes in order of value:
// popping entry (parent, rank) as node i opens the list below i and moves to (parent, rank + 1). What is left
// in the heap when the tree is full, popped on without opening lists, are the likeliest outcomes: a prefix
// whose parent is in the tree and which is no node is "last accepted node, bonus token". The heap never holds
// more than one entry a node.
//
// Drafting. Each position of a request is reduced to its candidates by a team of its own; the last to arrive
// grows the tree. So one launch leads from logits to trees, and nobody waits.
//
// Walking. y = y(t) at the current node's row. If a child carries y, go there, else y is the bonus token: the
// path is token for token what sampling without a tree would have given. Only rows on the path are read.
// Every step goes to a larger node, so a walk over any parents ends.
#pragma once

#include <cmath>

#include "d3d.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

// A candidate below a node of the tree.
struct TreeEntry {
  float value;
  int32_t parent;
  int32_t rank;

  D3D_INLINE bool before(const TreeEntry& other) const {
    if (value != other.value) return value > other.value;
    if (parent != other.parent) return parent < other.parent;
    return rank < other.rank;
  }
};

// A binary heap with the entry that comes first at its head, in memory of the caller.
struct TreeHeap {
  TreeEntry* entries;
  int32_t size;

  D3D_INLINE void push(TreeEntry entry) {
    int32_t at = size++;
    for (; at > 0 && entry.before(entries[(at - 1) / 2]); at = (at - 1) / 2)
      entries[at] = entries[(at - 1) / 2];
    entries[at] = entry;
  }

  D3D_INLINE TreeEntry pop() {
    const TreeEntry head = entries[0];
    const TreeEntry last = entries[--size];
    int32_t at = 0;
    for (int32_t child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && entries[child + 1].before(entries[child])) ++child;
      if (!entries[child].before(last)) break;
      entries[at] = entries[child];
      at = child;
    }
    entries[at] = last;
    return head;
  }
};

// One request's slices of the arguments.
struct TreeGrowth {
  const d3d_build_tree_args& args;
  int64_t num_positions;  // 0 on a miss: nothing is known about what follows the root
  const int64_t* candidate_ids;
  const float* candidate_scores;
  const int64_t* stop_ids;
  int64_t* token_ids;
  int32_t* parents;
  int32_t* depths;
  int64_t* outcome_ids;
  int32_t* outcome_parents;
  float* outcome_scores;
  float* values;         // [N] scratch
  TreeHeap open;         // entries that may become nodes
  int32_t closed_begin;  // entries below max_depth, outcomes only, at the end of the heap's memory

  D3D_INLINE TreeGrowth(const d3d_build_tree_args& a, int64_t request, TreeEntry* entries, float* node_values)
      : TreeGrowth(a, request, draft_of(a, request), entries, node_values) {}

  // Which of the drafts [.., L, K] is the request's; -1: none.
  D3D_INLINE static int64_t draft_of(const d3d_build_tree_args& a, int64_t request) {
    if (!a.outcome_index) return request;
    const int64_t branch = a.outcome_index[request];
    return branch >= 0 && branch < a.num_branches ? request * a.num_branches + branch : -1;
  }

  D3D_INLINE TreeGrowth(const d3d_build_tree_args& a, int64_t request, int64_t draft, TreeEntry* entries,
                        float* node_values)
      : args(a),
        num_positions(draft < 0 ? 0 : a.num_positions),
        candidate_ids(a.candidate_token_ids + larger<int64_t>(draft, 0) * a.num_positions * a.num_candidates),
        candidate_scores(a.candidate_scores + larger<int64_t>(draft, 0) * a.num_positions * a.num_candidates),
        stop_ids(a.stop.ids + request * a.stop.stride),
        token_ids(a.token_ids + request * a.num_nodes),
        parents(a.parents + request * a.num_nodes),
        depths(a.depths + request * a.num_nodes),
        outcome_ids(a.outcome_token_ids + request * a.num_outcomes),
        outcome_parents(a.outcome_parents + request * a.num_outcomes),
        outcome_scores(a.outcome_scores + request * a.num_outcomes),
        values(node_values),
        open{entries, 0},
        closed_begin(a.num_nodes) {}

  D3D_INLINE bool stops(int64_t token) const {
    if (args.stop.ids)
      for (int64_t i = 0; i < args.stop.length; ++i)
        if (stop_ids[i] == token) return true;
    return false;
  }

  D3D_INLINE int64_t candidate(int32_t parent, int32_t rank) const {
    return candidate_ids[static_cast<int64_t>(depths[parent]) * args.num_candidates + rank];
  }

  // The entry (parent, rank), if its list goes that far.
  D3D_INLINE bool find(int32_t parent, int32_t rank, TreeEntry& entry) const {
    if (depths[parent] >= num_positions || rank >= args.num_candidates) return false;
    const float score = candidate_scores[static_cast<int64_t>(depths[parent]) * args.num_candidates + rank];
    const bool finite = score - score == 0;
    if (!finite || candidate(parent, rank) < 0) return false;
    entry = {values[parent] + score, parent, rank};
    return true;
  }

  D3D_INLINE void add_node(int32_t node, int64_t token, int32_t parent, int32_t depth, float value) {
    token_ids[node] = token;
    parents[node] = parent;
    depths[node] = depth;
    values[node] = value;
    TreeEntry first;
    if ((parent >= 0 && stops(token)) || !find(node, 0, first)) return;
    if (depth < args.max_depth)
      open.push(first);
    else
      open.entries[--closed_begin] = first;
  }

  // Returns the number of nodes.
  D3D_INLINE int32_t grow(int64_t root) {
    int32_t count = 0;
    add_node(count++, root, -1, 0, 0.0f);
    while (open.size > 0 && count < args.num_nodes) {
      const TreeEntry best = open.pop();
      TreeEntry sibling;
      if (find(best.parent, best.rank + 1, sibling)) open.push(sibling);
      add_node(count++, candidate(best.parent, best.rank), best.parent, depths[best.parent] + 1, best.value);
    }
    return count;
  }

  // Children in the order of their numbers: going down, a node comes before the siblings met so far.
  D3D_INLINE void link(int32_t nodes, int32_t* first_child, int32_t* next_sibling) const {
    for (int32_t i = 0; i < args.num_nodes; ++i) first_child[i] = next_sibling[i] = -1;
    for (int32_t i = nodes - 1; i > 0; --i) {
      next_sibling[i] = first_child[parents[i]];
      first_child[parents[i]] = i;
    }
  }

  // Returns the number of outcomes. Takes the heap with it.
  D3D_INLINE int32_t collect_outcomes() {
    int32_t count = 0;
    for (int32_t i = closed_begin; i < args.num_nodes; ++i) open.push(open.entries[i]);
    while (open.size > 0 && count < args.num_outcomes) {
      const TreeEntry best = open.pop();
      TreeEntry sibling;
      if (find(best.parent, best.rank + 1, sibling)) open.push(sibling);
      const int64_t token = candidate(best.parent, best.rank);
      if (stops(token)) continue;  // as a bonus token it ends the request: nothing to draft ahead
      outcome_parents[count] = best.parent;
      outcome_ids[count] = token;
      outcome_scores[count] = best.value;
      ++count;
    }
    return count;
  }
};

// entries, values: [N] each, shared by the team. The search itself is serial; the masks are not.
template <class Team>
D3D_INLINE void build_tree_request(Team& team, const d3d_build_tree_args& args, int64_t request,
                                   TreeEntry* entries, float* values) {
  TreeGrowth growth(args, request, entries, values);
  if (team.rank() == 0) {
    const int64_t root = args.root_ids[request];
    const int32_t nodes = root < 0 ? 0 : growth.grow(root);
    const int32_t outcomes = root < 0 ? 0 : growth.collect_outcomes();
    args.node_counts[request] = nodes;
    for (int32_t i = nodes; i < args.num_nodes; ++i) {
      growth.token_ids[i] = growth.parents[i] = -1;
      growth.depths[i] = 0;
    }
    for (int32_t e = outcomes; e < args.num_outcomes; ++e) {
      growth.outcome_parents[e] = -1;
      growth.outcome_ids[e] = -1;
      growth.outcome_scores[e] = -INFINITY;
    }
    const int64_t first = request * args.num_nodes;
    if (args.first_child) growth.link(nodes, args.first_child + first, args.next_sibling + first);
  }
  team.sync();

  // Each rank owns columns of words, so that a parent's word was written by the rank that reads it.
  const int32_t nodes = args.node_counts[request];
  const int32_t words = (args.num_nodes + 31) / 32;
  int32_t* mask = args.mask_bits + request * args.num_nodes * words;
  for (int32_t w = team.rank(); w < words; w += team.size())
    for (int32_t i = 0; i < args.num_nodes; ++i) {
      uint32_t bits = 0;
      if (i < nodes) {
        if (growth.parents[i] >= 0) bits = mask[static_cast<int64_t>(growth.parents[i]) * words + w];
        if (i / 32 == w) bits |= 1u << i % 32;
      }
      mask[static_cast<int64_t>(i) * words + w] = static_cast<int32_t>(bits);
    }

  if (args.positions) {
    const int64_t root = args.root_positions ? args.root_positions[request] : 0;
    int64_t* positions = args.positions + request * args.num_nodes;
    for (int32_t i = team.rank(); i < args.num_nodes; i += team.size())
      positions[i] = i < nodes ? root + growth.depths[i] : -1;
  }
}

// What the team of one drafted position does: its candidates, and the tree if it is the request's last.
// unit: request * L + position, or the request if L = 0. draft(): writes the candidates that args.tree reads.
// arrivals: one counter a request, 0 before and after.
template <class Team, class Draft>
D3D_INLINE void draft_tree_unit(Team& team, const d3d_build_tree_args& tree, int64_t unit, uint32_t* arrivals,
                                TreeEntry* entries, float* values, Draft draft) {
  int64_t request = unit;
  if (tree.num_positions > 0) {
    request = unit / tree.num_positions;
    draft();
    if (!team.arrives_last(arrivals[request], static_cast<uint32_t>(tree.num_positions))) return;
  }
  build_tree_request(team, tree, request, entries, values);
}

// The first of the outcomes that is (last accepted node, bonus token), to every rank; -1: none.
template <class Team>
D3D_INLINE int32_t match_outcome(Team& team, const int32_t* parents, const int64_t* token_ids, int32_t count,
                                 int32_t last, int64_t bonus) {
  int32_t first = INT32_MAX;
  if (bonus >= 0)
    for (int32_t e = team.rank(); e < count && first == INT32_MAX; e += team.size())
      if (parents[e] == last && token_ids[e] == bonus) first = e;
  first = team.reduce(first, [](int32_t a, int32_t b) { return smaller(a, b); });
  return first == INT32_MAX ? -1 : first;
}

// sample(row, position, path, path_length): y of that row of logits, or -1 if it has no finite logit; path
// are the accepted tokens so far. path: [N] scratch of the team.
template <class Team, class Sample>
D3D_INLINE void verify_tree_request(Team& team, const d3d_verify_tree_args& args, int64_t request,
                                    int64_t* path, Sample sample) {
  const int32_t count = smaller(args.node_counts[request], args.num_nodes);
  const int64_t* tokens = args.token_ids + request * args.num_nodes;
  const int32_t* parents = args.parents + request * args.num_nodes;
  int32_t* accepted = args.accepted_nodes + request * args.num_nodes;
  const auto either = [](int32_t a, int32_t b) { return a | b; };

  int32_t flags = 0;
  for (int32_t i = 1 + team.rank(); i < count; i += team.size()) {
    if (parents[i] < 0 || parents[i] >= i) flags |= D3D_STATUS_BAD_TREE;
    if (tokens[i] < 0 || tokens[i] >= args.vocab) flags |= D3D_STATUS_BAD_TOKEN;
  }
  flags = team.reduce(flags, either);

  const auto row_of = [&](int32_t node) -> int64_t {  // -1: outside the logits
    const int64_t row = args.row_starts ? static_cast<int64_t>(args.row_starts[request]) + node : node;
    return row >= 0 && (!args.row_starts || row < args.num_rows) ? row : -1;
  };

  int32_t length = 0, last = 0;
  int64_t bonus = count > 0 ? 0 : -1;
  for (int32_t node = count > 0 ? 0 : -1; node >= 0;) {
    const int64_t row = row_of(node);
    if (row < 0) {  // nothing is known about what follows this node, so it is the bonus, not accepted
      flags |= D3D_STATUS_BAD_TREE;
      break;
    }
    if (node > 0 && team.rank() == 0) {
      accepted[length] = node;
      path[length] = tokens[node];
    }
    length += node > 0;
    last = node;
    team.sync();
    bonus = sample(row, args.root_positions[request] + length + 1, path, length);
    if (bonus < 0) {
      flags |= D3D_STATUS_NO_FINITE_LOGIT;
      bonus = 0;
    }
    // The lowest child that carries it. The token is in [0, V), so a bad one never matches.
    int32_t next = INT32_MAX;
    for (int32_t i = node + 1 + team.rank(); i < count && next == INT32_MAX; i += team.size())
      if (parents[i] == node && tokens[i] == bonus) next = i;
    next = team.reduce(next, [](int32_t a, int32_t b) { return smaller(a, b); });
    node = next == INT32_MAX ? -1 : next;
  }

  for (int32_t i = length + team.rank(); i < args.num_nodes; i += team.size()) accepted[i] = -1;
  if (team.rank() == 0) {
    args.num_accepted[request] = length;
    args.bonus_ids[request] = bonus;
    args.status[request] = count > 0 ? flags : 0;
  }

  if (args.outcome_index) {
    const int64_t first = request * args.num_outcomes;
    const int32_t index = match_outcome(team, args.outcome_parents + first, args.outcome_token_ids + first,
                                        args.num_outcomes, last, bonus);
    if (team.rank() == 0) args.outcome_index[request] = index;
  }
}

template <class Team>
D3D_INLINE void select_outcome_request(Team& team, const d3d_select_outcome_args& args, int64_t request) {
  const int32_t length = smaller(args.num_accepted[request], args.num_nodes);
  const int32_t last = length > 0 ? args.accepted_nodes[request * args.num_nodes + length - 1] : 0;
  const int64_t first = request * args.num_outcomes;
  const int32_t index = match_outcome(team, args.outcome_parents + first, args.outcome_token_ids + first,
                                      args.num_outcomes, last, args.bonus_ids[request]);
  if (team.rank() == 0) args.index[request] = index;
  if (!args.candidate_ids) return;

  const int64_t size = args.num_positions * args.num_candidates;
  const int64_t from = (first + index) * size, to = request * size;
  for (int64_t i = team.rank(); i < size; i += team.size()) {
    args.draft_ids[to + i] = index < 0 ? -1 : args.candidate_ids[from + i];
    args.draft_log_probs[to + i] = index < 0 ? -INFINITY : args.candidate_log_probs[from + i];
    args.draft_scores[to + i] = index < 0 ? -INFINITY : args.candidate_scores[from + i];
  }
}

D3D_NAMESPACE_END
