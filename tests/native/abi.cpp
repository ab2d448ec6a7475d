// Every op of the CPU library through its C interface. Sanitizers see reads past an input and undefined
// behaviour; the memory of the arguments notices writes outside an output and changed inputs. Helpers of the
// library's thread pool must not change a bit.
#include "problems.h"

namespace {

using namespace proof;

template <class Args, class Library>
void check(int rounds, Problems<Args> make(uint64_t seed), Library library) {
  size_t count = 0;
  for (int round = 0; round < rounds; ++round)
    for (auto& problem : make(static_cast<uint64_t>(100 + round))) {
      const auto with = [&](int threads) {
        return [&problem, library, threads](Args& args) {
          expect(library(&args, threads) == D3D_OK, problem.name + ": refused");
        };
      };
      const Bytes alone = problem.run(with(1), 0x5A);
      expect(problem.run(with(3), 0xC3) == alone, problem.name + ": three threads differ from one");
      ++count;
    }
  std::printf("%zu problems\n", count);
}

// Work enough for the pool to be woken.
Problems<d3d_sample_args> large_rows(uint64_t seed) {
  Problems<d3d_sample_args> problems;
  Random random(seed);
  auto& [name, memory, args] = add(problems, "sample, many rows");
  const int64_t rows = 40;
  const int32_t vocab = 5000;
  args = {logits(memory, random, D3D_BF16, rows, vocab, vocab),
          D3D_BF16,
          vocab,
          rows,
          vocab,
          sampling(memory, random, rows),
          positions(memory, random, rows),
          nullptr,
          nullptr,
          memory.output<int64_t>(rows),
          memory.output<int32_t>(rows),
          nullptr};
  return problems;
}

// Nothing to do is no error, and needs no pointer.
void empty_calls() {
  d3d_sample_args sample{};
  sample.vocab = 5;
  expect(d3d_sample_cpu(&sample, 2) == D3D_OK, "no rows");
  d3d_draft_args draft{};
  draft.vocab = 5;
  draft.beta = 1;
  expect(d3d_draft_candidates_cpu(&draft, 2) == D3D_OK, "no rows to draft");
  d3d_build_tree_args build{};
  build.num_nodes = 1;
  expect(d3d_build_tree_cpu(&build, 2) == D3D_OK, "no trees to build");
  d3d_verify_tree_args verify{};
  verify.vocab = 5;
  verify.num_nodes = 1;
  expect(d3d_verify_tree_cpu(&verify, 2) == D3D_OK, "no trees to verify");
  d3d_verify_chain_args chain{};
  chain.vocab = 5;
  expect(d3d_verify_chain_cpu(&chain, 2) == D3D_OK, "no chains to verify");
  d3d_select_outcome_args select{};
  select.num_nodes = 1;
  expect(d3d_select_outcome_cpu(&select, 2) == D3D_OK, "no outcomes");
  d3d_move_kv_args move{};
  move.page_size = 1;
  expect(d3d_move_kv_cpu(&move, 2) == D3D_OK, "nothing to move");
}

// change() spoils a good call, which must then be refused without a write.
template <class Args, class Library, class Change>
void refuses(Problems<Args> problems, Library library, int error, Change change) {
  auto& problem = problems.front();
  Args good = problem.args;
  change(problem.args);
  const Bytes untouched = problem.run([](Args&) {}, 0x5A);
  const Bytes after = problem.run(
      [&](Args& args) { expect(library(&args, 2) == error, problem.name + ": a bad argument was taken"); },
      0x5A);
  expect(after == untouched, problem.name + ": wrote although it refused");
  problem.args = good;
}

void bad_arguments() {
  const auto sample = [] { return sample_problems(7); };
  refuses(sample(), d3d_sample_cpu, D3D_ERROR_DTYPE, [](auto& a) { a.dtype = 17; });
  refuses(sample(), d3d_sample_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.vocab = 0; });
  refuses(sample(), d3d_sample_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.vocab = D3D_MAX_VOCAB; });
  refuses(sample(), d3d_sample_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.num_rows = -1; });
  refuses(sample(), d3d_sample_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.logits = nullptr; });
  refuses(sample(), d3d_sample_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.sampling.seed = nullptr; });
  refuses(draft_problems(7), d3d_draft_candidates_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.beta = 0; });
  refuses(draft_problems(7), d3d_draft_candidates_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.beta = kNaN; });
  refuses(draft_problems(7), d3d_draft_candidates_cpu, D3D_ERROR_ARGUMENT,
          [](auto& a) { a.num_candidates = -1; });
  refuses(build_tree_problems(7), d3d_build_tree_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.num_nodes = 0; });
  refuses(build_tree_problems(7), d3d_build_tree_cpu, D3D_ERROR_ARGUMENT,
          [](auto& a) { a.root_ids = nullptr; });
  const auto verify = [] { return verify_tree_problems<D3D_F32>(7); };
  refuses(verify(), d3d_verify_tree_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.num_nodes = 0; });
  refuses(verify(), d3d_verify_tree_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.sampling.num_requests -= 1; });
  refuses(verify(), d3d_verify_tree_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.bonus_ids = nullptr; });
  const auto chain = [] { return verify_chain_problems(7); };
  refuses(chain(), d3d_verify_chain_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.rule = 3; });
  refuses(chain(), d3d_verify_chain_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.draft_kind = -1; });
  refuses(chain(), d3d_verify_chain_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.num_drafts = -1; });
  refuses(draft_tree_problems(7), d3d_draft_tree_cpu, D3D_ERROR_ARGUMENT,
          [](auto& a) { a.tree.num_nodes = 0; });
  refuses(frontier_problems(7), d3d_frontier_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.page_id_bytes = 3; });
  refuses(packed_mask_problems(7), d3d_packed_mask_cpu, D3D_ERROR_ARGUMENT,
          [](auto& a) { a.max_context = -1; });
  refuses(select_outcome_problems(7), d3d_select_outcome_cpu, D3D_ERROR_ARGUMENT,
          [](auto& a) { a.index = nullptr; });
  refuses(move_kv_problems(7), d3d_move_kv_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.page_size = 0; });
  refuses(move_kv_problems(7), d3d_move_kv_cpu, D3D_ERROR_ARGUMENT, [](auto& a) { a.sources = nullptr; });
}

}  // namespace

// abi [rounds]
int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 1;
  check(rounds, sample_problems, d3d_sample_cpu);
  check(rounds, large_rows, d3d_sample_cpu);
  check(rounds, draft_problems, d3d_draft_candidates_cpu);
  check(rounds, build_tree_problems, d3d_build_tree_cpu);
  check(rounds, verify_tree_problems<D3D_F32, D3D_BF16, D3D_F16, D3D_F64>, d3d_verify_tree_cpu);
  check(rounds, verify_chain_problems, d3d_verify_chain_cpu);
  check(rounds, draft_tree_problems, d3d_draft_tree_cpu);
  check(rounds, frontier_problems, d3d_frontier_cpu);
  check(rounds, dense_mask_problems, d3d_dense_mask_cpu);
  check(rounds, packed_mask_problems, d3d_packed_mask_cpu);
  check(rounds, select_outcome_problems, d3d_select_outcome_cpu);
  check(rounds, move_kv_problems, d3d_move_kv_cpu);
  empty_calls();
  bad_arguments();
  std::printf("%s\n", d3d_simd_level());
}
