// Penalised logits of one row, written out in the compute type.
//
// Penalties touch few tokens, so the row is copied once, as comparable values, and the touched tokens are
// changed in place; what reads it afterwards is the code that reads plain logits. Rank r owns the tokens v
// with v % size == r: every rank scans the whole lists and acts on its own tokens only. Nothing is atomic,
// repeated bias ids add up in list order, and the result is the same for any team.
//
// `marks` is one word a token, zero on entry and on return: bit 0, the token was seen at all; from bit 1, how
// often in the output. The second scan of the lists applies a mark and clears it, so each token is changed
// once and no pass over the vocabulary is needed.
#pragma once

#include "d3d.h"
#include "row.h"

D3D_NAMESPACE_BEGIN

// Token ids of one request; `path` are the accepted tokens of a draft tree, part of the output so far.
struct TokenList {
  const int64_t* ids;
  int64_t length;
};

D3D_INLINE TokenList request_list(const d3d_id_lists& lists, int64_t request) {
  return {lists.ids + request * lists.stride, lists.ids ? lists.length : 0};
}

template <class Real>
struct History {
  Real repetition, frequency, presence;

  D3D_INLINE bool neutral() const { return repetition == 1 && frequency == 0 && presence == 0; }

  D3D_INLINE Real apply(Real logit, uint32_t mark) const {
    if (repetition != 1) logit = logit > 0 ? logit / repetition : logit * repetition;
    const uint32_t count = mark >> 1;
    if (count > 0) {
      logit -= frequency * static_cast<Real>(count);
      logit -= presence;
    }
    return logit;
  }
};

template <class Real>
D3D_INLINE History<Real> history_of(const d3d_penalties& p, int64_t request) {
  return {p.repetition ? static_cast<Real>(p.repetition[request]) : Real(1),
          p.frequency ? static_cast<Real>(p.frequency[request]) : Real(0),
          p.presence ? static_cast<Real>(p.presence[request]) : Real(0)};
}

// Whether this request's rows differ from plain logits.
D3D_INLINE bool has_penalties(const d3d_penalties* p, int64_t request) {
  return p && (p->allowed_bits || (p->bias.ids && p->bias.length > 0) ||
               !history_of<float>(*p, request).neutral());
}

template <class Team, class Act>
D3D_INLINE void for_owned(Team& team, TokenList list, int32_t vocab, Act act) {
  for (int64_t i = 0; i < list.length; ++i) {
    const int64_t id = list.ids[i];
    if (id >= 0 && id < vocab && id % team.size() == team.rank()) act(static_cast<int32_t>(id), i);
  }
}

// row: `vocab` values, rounded up to a tile.
template <class Team, class Row, class Real>
D3D_PASS void penalise(Team& team, const Row& plain, const d3d_penalties& penalties, int64_t request,
                       TokenList path, Real* row, uint32_t* marks) {
  const int32_t vocab = plain.vocab;
  for (int32_t first = Team::kTile * team.rank(); first < vocab; first += Team::kTile * team.size()) {
    Tile<Real, Team> tile;
    plain.read(team, first, tile);
    for (int i = 0; i < tile.kPacks; ++i) store(row + first + i * Team::kLanes, tile.pack[i]);
  }
  team.sync();

  const History<Real> history = history_of<Real>(penalties, request);
  if (!history.neutral()) {
    const TokenList prompt = request_list(penalties.prompt, request);
    const TokenList output = request_list(penalties.output, request);
    for_owned(team, prompt, vocab, [&](int32_t v, int64_t) { marks[v] |= 1; });
    for_owned(team, output, vocab, [&](int32_t v, int64_t) { marks[v] = (marks[v] | 1) + 2; });
    for_owned(team, path, vocab, [&](int32_t v, int64_t) { marks[v] = (marks[v] | 1) + 2; });
    const auto apply = [&](int32_t v, int64_t) {
      if (marks[v]) row[v] = history.apply(row[v], marks[v]);
      marks[v] = 0;
    };
    for_owned(team, prompt, vocab, apply);
    for_owned(team, output, vocab, apply);
    for_owned(team, path, vocab, apply);
  }

  if (penalties.bias.ids) {
    const float* values = penalties.bias_values + request * penalties.bias_values_stride;
    for_owned(team, request_list(penalties.bias, request), vocab,
              [&](int32_t v, int64_t i) { row[v] += static_cast<Real>(values[i]); });
  }
  team.sync();

  if (penalties.allowed_bits) {
    const int32_t* words = penalties.allowed_bits + request * penalties.allowed_stride;
    for (int32_t v = team.rank(); v < vocab; v += team.size())
      if (!(static_cast<uint32_t>(words[v / 32]) >> v % 32 & 1)) row[v] = Limits<Real>::kNone;
    team.sync();
  }
}

D3D_NAMESPACE_END
