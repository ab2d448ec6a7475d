// Proof that the checks can fail: commits the fault that its argument names.
#include "inputs.h"
#include "thread_team.h"

namespace {

using namespace d3d;
using namespace proof;

// A value that rank 0 writes and all read, with no barrier in between.
void race() {
  int64_t shared = 0, sum = 0;
  run_team(8, [&](ThreadTeam& team) {
    if (team.rank() == 0) shared = 7;
    const int64_t total = team.reduce(shared, [](int64_t a, int64_t b) { return a + b; });
    if (team.rank() == 0) sum = total;
  });
  std::printf("%lld\n", static_cast<long long>(sum));
}

// One rank takes the other branch.
void divergence() {
  run_team(8, [](ThreadTeam& team) {
    if (team.rank() == 3)
      team.sync();
    else
      team.sync();
  });
}

// One rank leaves a loop early.
void early_exit() {
  run_team(8, [](ThreadTeam& team) {
    for (int i = 0; i < 4 - (team.rank() == 5); ++i) team.sync();
  });
}

void one_past_the_output() {
  Memory memory;
  int32_t* out = memory.output<int32_t>(3);
  memory.reset(0);
  out[3] = 1;
  memory.result("fault");
}

void a_changed_input() {
  Memory memory;
  int32_t* in = memory.input(std::vector<int32_t>{1, 2, 3});
  in[1] = 7;
  memory.result("fault");
}

// For AddressSanitizer.
void one_past_the_input(int count) {
  Memory memory;
  const int32_t* in = memory.input(std::vector<int32_t>{1, 2, 3});
  std::printf("%d\n", in[2 + count]);
}

// For UndefinedBehaviorSanitizer.
void overflow(int count) {
  std::printf("%d\n", std::numeric_limits<int32_t>::max() + count);
}

}  // namespace

int main(int count, char** words) {
  const std::string fault = count > 1 ? words[1] : "";
  if (fault == "race") race();
  if (fault == "divergence") divergence();
  if (fault == "early exit") early_exit();
  if (fault == "one past the output") one_past_the_output();
  if (fault == "a changed input") a_changed_input();
  if (fault == "one past the input") one_past_the_input(count - 1);
  if (fault == "overflow") overflow(count - 1);
}
