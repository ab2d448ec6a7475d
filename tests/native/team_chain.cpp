// verify_chain under each of its rules by teams of threads.
#include "d3d/chain.h"
#include "team_rows.h"

namespace {

using namespace d3d;
using namespace proof;

void verify_chain(int size, const d3d_verify_chain_args& a) {
  TeamScratch rows(a.vocab, 0);
  std::vector<ChainLink> links(static_cast<size_t>(a.num_drafts));
  std::vector<double> reach(static_cast<size_t>(a.num_drafts) + 1);
  const ChainScratch scratch{links.data(),       reach.data(),          rows.histogram.data(),
                             rows.tokens.data(), rows.penalised.data(), rows.marks.data()};
  by_team(size, a.num_requests, [&](ThreadTeam& team, int64_t request) {
    Chain<ThreadTeam>(team, a, request, scratch).verify(false);
  });
}

}  // namespace

int main(int count, char** words) {
  compare(Plan(count, words), verify_chain_problems, d3d_verify_chain_cpu, verify_chain);
}
