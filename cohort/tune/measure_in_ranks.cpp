#include "cohort/tune/measure_in_ranks.h"

#include "cohort/base/fail.h"
#include "cohort/base/files/shared_text.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/world/launch.h"
#include "cohort/world/stop.h"

namespace cohort {

Json measure_in_ranks(int num_ranks, const std::string& backend, const std::function<Json(const World& world, Group& group)>& measure) {
  const SharedText answer;
  const int code = run_ranks({.num_ranks = num_ranks, .is_one_of_many = true}, [&](const World& world) {
    end_at_stop_signals();
    keep_freed_memory();
    use_compute_threads(1);
    Group group = Group::create(world, {.backend = backend});
    const Json measured = measure(world, group);
    if (world.rank == 0) answer.write(measured.dump());
    return 0;
  });
  if (code == static_cast<int>(ErrorCode::kInterrupted)) fail(ErrorCode::kInterrupted, "interrupted while this machine was measured");
  if (code != 0) throw Error(static_cast<ErrorCode>(code), "");  // The launcher has said which rank ended, and how.
  return Json::parse(answer.read());
}

}  // namespace cohort
