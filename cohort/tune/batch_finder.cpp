// The largest micro-batch that fits, and the smallest that keeps a worker busy.
//
//   1. 1, 2, 4, ... samples train a few steps, short ones for kTrySeconds, each size in a child process, until one does not fit, the
//      training samples end, or a step would take longer than kMostStepSeconds.
//   2. Between the largest that fits and the least that does not, halve, to within a 32nd.
//   3. Saturated is the least size with 95 % of the most samples a second.
//
// The child is the training itself (run/train_job.h) without evaluation and report, so nothing that a step needs is forgotten. Its tensors
// are limited: by --memory-limit, else to 90 % of what is free without what smaller tries took besides tensors (libraries, batches that are
// read ahead), continued in a line. What a limit does not see (other libraries' memory, a limit that promises
// more than there is) ends in the kernel killing somebody: the child asks to be the first (oom_score_adj), and its end is told from others
// by the kernel's own count of such kills. Cost: log2(largest) + 5 trials.

#include "cohort/tune/batch_finder.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/shared_text.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/job/job.h"
#include "cohort/run/train_job.h"
#include "cohort/train/train_result.h"
#include "cohort/world/stop.h"
#include "cohort/world/supervisor.h"

namespace cohort {
namespace {

constexpr double kMostStepSeconds = 20, kFewStepsFrom = 4;  // Of a step: above, two steps do.
constexpr int kLeastSteps = 4, kMostSteps = 40;
constexpr double kTrySeconds = 0.25;  // The median of four steps of a millisecond would be one moment of the machine.
constexpr double kFreePart = 0.9;
constexpr int64_t kFarSmaller = 16;  // Than the largest that fits: there a page more or less would be a sample's share.

Config trial_config(const Config& config, int64_t micro_batch, int steps, const std::string& run) {
  Config trial = config;
  trial.layout = "single";
  trial.workers = 0;
  trial.run = run;
  trial.global_batch = micro_batch;
  trial.steps = steps, trial.epochs = 0;
  trial.lr = 1e-9;  // Weights stay as they are: at one sample a rate for hundreds would end in infinity.
  trial.checkpoint_every = -1;
  trial.json = false, trial.quiet = true;
  return trial;
}

/// In the child; returns what the parent reads.
Json train_some_steps(const Config& trial, const DataSet& data, int64_t limit_bytes) {
  try {
    limit_memory(limit_bytes);
    const TrainResult result = train(resolve(trial, 0), data, World{}, {.reports = false});
    return {{"seconds", result.step_seconds}, {"tensors", peak_counted_memory_bytes()}, {"process", peak_memory_bytes()}};
  } catch (const Error& error) {
    return {{"code", static_cast<int>(error.code())}, {"error", error.what()}};
  } catch (const std::bad_alloc&) {
    return {{"code", static_cast<int>(ErrorCode::kEnvironment)}, {"error", "the C library had no memory to give"}};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool is_memory = text.find("not enough memory") != std::string::npos;
    return {{"code", static_cast<int>(is_memory ? ErrorCode::kEnvironment : ErrorCode::kFailed)},
            {"error", is_memory ? std::string("LibTorch's allocator had no memory to give") : text.substr(0, text.find('\n'))}};
  }
}

TriedBatch try_batch(const Config& config, const DataSet& data, int64_t micro_batch, int steps, int64_t limit_bytes) {
  const TemporaryFolder folder("cohort-batch");
  const SharedText answer;
  const Config trial = trial_config(config, micro_batch, steps, folder.path() + "/run");
  const int64_t kills_before = num_oom_kills();
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) fail(ErrorCode::kEnvironment, "find-batch: fork failed: no process to try ", micro_batch, " samples in");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    end_at_stop_signals();
    std::ofstream("/proc/self/oom_score_adj") << 1000;
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);  // Its warnings would come once a size.
    ::dup2(nowhere, STDERR_FILENO);
    int code = 0;
    try {
      answer.write(train_some_steps(trial, data, limit_bytes).dump());
    } catch (const std::exception&) {
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  TriedBatch tried{.micro_batch = micro_batch};
  const std::string text = answer.read();
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    tried.why = num_oom_kills() > kills_before ? "the kernel killed it: out of memory" : "it was killed (SIGKILL)";
    return tried;
  }
  if (WIFSIGNALED(status) && std::ranges::count(stop_signals(), WTERMSIG(status)) > 0) {
    tried.why = "stopped";
    return tried;
  }
  if (WIFSIGNALED(status) || text.empty())
    fail(ErrorCode::kFailed, "find-batch: the training with ", micro_batch, micro_batch == 1 ? " sample" : " samples",
         WIFSIGNALED(status) ? concat(" ended by signal ", WTERMSIG(status)) : std::string(" ended without an answer"));
  const Json found = Json::parse(text);
  if (found.contains("error")) {
    const auto code = static_cast<ErrorCode>(found["code"].get<int>());
    if (code != ErrorCode::kEnvironment) throw Error(code, found["error"].get<std::string>());
    tried.why = found["error"].get<std::string>();
    return tried;
  }
  tried.fits = true;
  tried.step_seconds = found["seconds"].get<double>();
  tried.peak_tensor_bytes = found["tensors"].get<int64_t>();
  tried.peak_process_bytes = found["process"].get<int64_t>();
  return tried;
}

/// What a try has resident besides its tensors and what this process had before: what the least that fits has, and a sample's share at the
/// most that any of the larger ones showed. The largest alone would not do: whether two or three batches are read ahead at once is a
/// moment's chance.
int64_t bytes_besides_tensors(const std::vector<TriedBatch>& tried, int64_t micro_batch) {
  const auto besides = [](const TriedBatch& one) {
    return std::max(0.0, static_cast<double>(one.peak_process_bytes - one.peak_tensor_bytes - peak_memory_bytes()));
  };
  const TriedBatch *least = nullptr, *largest = nullptr;
  for (const TriedBatch& one : tried) {
    if (!one.fits) continue;
    if (!least || one.micro_batch < least->micro_batch) least = &one;
    if (!largest || one.micro_batch > largest->micro_batch) largest = &one;
  }
  if (!largest) return 0;
  double a_sample = 0;
  for (const TriedBatch& one : tried) {
    if (!one.fits || one.micro_batch <= least->micro_batch || one.micro_batch < largest->micro_batch / kFarSmaller) continue;
    a_sample = std::max(a_sample, (besides(one) - besides(*least)) / static_cast<double>(one.micro_batch - least->micro_batch));
  }
  return static_cast<int64_t>(besides(*least) + a_sample * static_cast<double>(micro_batch - least->micro_batch));
}

/// For a step that should take so long, 0 where that is not known.
int num_steps(double expected_seconds) {
  if (expected_seconds > kFewStepsFrom) return 2;
  if (expected_seconds <= 0) return kLeastSteps;
  return static_cast<int>(std::clamp(kTrySeconds / expected_seconds, double{kLeastSteps}, double{kMostSteps}));
}

}  // namespace

FoundBatch find_batch(const Config& config, const DataSet& data, const std::function<void(const TriedBatch&)>& show,
                      const std::function<bool()>& stop) {
  FoundBatch out{.limit_is_given = config.memory_limit > 0};
  out.limit_bytes =
      out.limit_is_given ? config.memory_limit : static_cast<int64_t>(kFreePart * static_cast<double>(available_memory_bytes()));
  int64_t least_that_fails = 0;
  double a_sample = 0;  // Seconds, at the largest so far.
  const auto attempt = [&](int64_t micro_batch) {
    const int64_t besides = out.limit_is_given ? 0 : bytes_besides_tensors(out.tried, micro_batch);
    const TriedBatch tried =
        besides < out.limit_bytes
            ? try_batch(config, data, micro_batch, num_steps(a_sample * static_cast<double>(micro_batch)), out.limit_bytes - besides)
            : TriedBatch{.micro_batch = micro_batch,
                         .why = concat("batches that are read ahead and libraries alone would take ", human_bytes(besides), " of ",
                                       human_bytes(out.limit_bytes))};
    if (stop()) return false;
    show(tried);
    out.tried.push_back(tried);
    if (tried.fits) out.largest = micro_batch, a_sample = tried.step_seconds / static_cast<double>(micro_batch);
    else least_that_fails = micro_batch;
    return true;
  };
  const int64_t most = data.train->num_samples();
  for (int64_t size = 1; least_that_fails == 0; size = std::min(2 * size, most)) {
    if (!attempt(size)) {
      out.end = FoundBatch::End::kStopped;
      break;
    }
    if (least_that_fails == 1)
      fail(ErrorCode::kInfeasible, "find-batch: not even one sample fits: ", out.tried.back().why,
           name_settings("; a smaller model, --precision bf16, a shorter --context, a smaller --image-size, or several workers (tp, pp, "
                         "zero=3: cohort plan without --find-batch)"));
    if (least_that_fails > 0) break;
    out.end = size == most ? FoundBatch::End::kData : FoundBatch::End::kTime;
    if (size == most || 2 * a_sample * static_cast<double>(size) > kMostStepSeconds) break;
  }
  if (least_that_fails > 0) out.end = FoundBatch::End::kMemory;
  while (least_that_fails > 0 && least_that_fails - out.largest > std::max<int64_t>(1, out.largest / 32)) {
    if (!attempt(out.largest + (least_that_fails - out.largest) / 2)) {
      out.end = FoundBatch::End::kStopped;
      break;
    }
  }
  std::sort(out.tried.begin(), out.tried.end(), [](const TriedBatch& a, const TriedBatch& b) { return a.micro_batch < b.micro_batch; });
  const auto rate = [](const TriedBatch& one) { return one.fits ? static_cast<double>(one.micro_batch) / one.step_seconds : 0.0; };
  double best = 0;
  for (const TriedBatch& one : out.tried) best = std::max(best, rate(one));
  for (const TriedBatch& one : out.tried)
    if (out.saturating == 0 && one.fits && rate(one) >= kSaturated * best) out.saturating = one.micro_batch;
  return out;
}

}  // namespace cohort
