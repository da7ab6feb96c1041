// Times collectives the way a training step meets them: many calls in a row on buffers whose contents change.
//
// For each operation and size, each backend in turn runs a block; blocks rotate until each backend has had its number. A block, all ranks:
//   1. fill the buffers (32 MiB of them, 64 at most, one at least, so that middle and large sizes do not sit in the cache);
//   2. barrier, then `calls` calls over the buffers round about, then stop the clock on rank 0;
//   3. compare the results. All-reduce works in place, so a buffer that is passed k times holds (sum over ranks) p^(k-1): exact in floats
//      for small whole numbers where p is a power of two, and no buffer has the same contents twice in a block.
// The number of calls follows from a first, untimed try.
#include "bench/program/collectives.h"

#include <ATen/ops/empty.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <thread>

#include "bench/program/systems.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/group.h"
#include "cohort/comm/link.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTimeoutSeconds = 120;
constexpr int64_t kBufferBytes = int64_t{32} << 20, kMaxBuffers = 64, kPattern = 1024;

/// `whole` is what all-reduce and broadcast work on, all-gather's output and reduce-scatter's input; `part` the other one.
struct Buffers {
  std::vector<at::Tensor> whole, part;
};

float pattern(int64_t element, int64_t buffer) { return static_cast<float>(1 + (element % kPattern * 7 + buffer) % 13); }

Op op_named(const std::string& name) {
  static const std::map<std::string, Op> ops = {{"allreduce", Op::kAllReduce},
                                                {"reducescatter", Op::kReduceScatter},
                                                {"allgather", Op::kAllGather},
                                                {"broadcast", Op::kBroadcast},
                                                {"barrier", Op::kBarrier}};
  return ops.at(name);
}

bool cuts(Op op) { return op == Op::kReduceScatter || op == Op::kAllGather; }

class RankBench {
 public:
  RankBench(const BenchCollectivesOptions& options, const World& world);
  /// Rank 0's seconds by operation, size and backend; 0 for combinations that are left out.
  std::vector<double> run();
  double memory() { return memory_bandwidth(control_); }

 private:
  Buffers& buffers_of(const std::string& backend) { return buffers_[systems_.at(backend)->has_own_memory() ? backend : "private"]; }
  void allocate(const std::string& backend, int64_t bytes);
  void fill(Buffers& buffers, int64_t block);
  void check(const std::string& backend, Buffers& buffers, int64_t block, int64_t calls);
  double timed_block(const std::string& backend, int64_t block, int64_t calls);
  int64_t calls_of_block(const std::string& backend);
  std::vector<double> measure(Op op, int64_t bytes);

  const BenchCollectivesOptions& options_;
  int rank_, size_;
  Group control_;  // Barriers and agreements between blocks.
  std::map<std::string, std::unique_ptr<BenchSystem>> systems_;
  Op op_ = Op::kBarrier;                    // The operation that is measured,
  std::map<std::string, Buffers> buffers_;  // and on what, by backend.
};

RankBench::RankBench(const BenchCollectivesOptions& options, const World& world) : options_(options), rank_(world.rank), size_(world.size) {
  keep_freed_memory();
  use_compute_threads(1);
  const auto store = make_store(world, kTimeoutSeconds);
  control_ = Group::create(c10::make_intrusive<c10d::PrefixStore>("control", store), rank_, size_, {.timeout_seconds = kTimeoutSeconds});
  for (const std::string& name : options.backends) systems_[name] = make_bench_system(name, store, rank_, size_, kTimeoutSeconds);
}

void RankBench::allocate(const std::string& backend, int64_t bytes) {
  Buffers& buffers = buffers_of(backend);
  if (!buffers.whole.empty()) return;  // Systems that do not allocate share one set.
  const int64_t elements = bytes / static_cast<int64_t>(sizeof(float));
  const int64_t count = std::clamp<int64_t>(kBufferBytes / bytes, 1, kMaxBuffers);
  for (int64_t i = 0; i < count; ++i) {
    buffers.whole.push_back(systems_.at(backend)->allocate(elements));
    buffers.part.push_back(cuts(op_) ? systems_.at(backend)->allocate(elements / size_) : at::Tensor());
  }
}

void RankBench::fill(Buffers& buffers, int64_t block) {
  for (int64_t i = 0; i < std::ssize(buffers.whole); ++i) {
    at::Tensor& tensor = op_ == Op::kAllGather ? buffers.part[i] : buffers.whole[i];
    auto* const values = tensor.data_ptr<float>();
    const int64_t count = tensor.numel();
    const float factor = static_cast<float>(rank_ + 1);
    for (int64_t j = 0; j < std::min(count, kPattern); ++j) values[j] = factor * pattern(j, i + block);
    for (int64_t j = kPattern; j < count; j += kPattern) std::copy_n(values, std::min(kPattern, count - j), values + j);
  }
}

/// Checks a few thousand elements of each used buffer, including the first and the last.
void RankBench::check(const std::string& backend, Buffers& buffers, int64_t block, int64_t calls) {
  const int64_t num_buffers = std::ssize(buffers.whole);
  const double ranks_sum = size_ * (size_ + 1) / 2.0;
  for (int64_t i = 0; i < std::min(calls, num_buffers); ++i) {
    const double passes = static_cast<double>((calls - 1 - i) / num_buffers + 1);
    const at::Tensor& tensor = op_ == Op::kReduceScatter ? buffers.part[i] : buffers.whole[i];
    const auto* const values = tensor.data_ptr<float>();
    const int64_t count = tensor.numel(), stride = std::max<int64_t>(1, count / 4096);
    const auto expected = [&](int64_t j) {
      if (op_ == Op::kAllReduce) return pattern(j, i + block) * ranks_sum * std::pow(size_, passes - 1);
      if (op_ == Op::kReduceScatter) return pattern(j + rank_ * count, i + block) * ranks_sum;
      if (op_ == Op::kAllGather)
        return static_cast<double>(pattern(j % (count / size_), i + block)) * static_cast<double>(j / (count / size_) + 1);
      return static_cast<double>(pattern(j, i + block));
    };
    for (int64_t j = 0; j < count; j = j + 1 == count ? count : std::min(j + stride, count - 1)) {
      if (std::abs(values[j] - expected(j)) > 1e-5 * expected(j))
        fail(ErrorCode::kFailed, name_of(op_), " of ", buffers.whole[i].nbytes(), " bytes by ", backend, ": element ", j, " is ", values[j],
             " on rank ", rank_, ", expected ", expected(j));
    }
  }
}

/// Seconds of one call.
double RankBench::timed_block(const std::string& backend, int64_t block, int64_t calls) {
  Buffers& buffers = buffers_of(backend);
  if (op_ != Op::kBarrier) fill(buffers, block);
  BenchSystem& system = *systems_.at(backend);
  const size_t num_buffers = buffers.whole.size();
  control_.barrier();
  const auto start = Clock::now();
  for (size_t i = 0, at = 0; i < static_cast<size_t>(calls); ++i, at = at + 1 == num_buffers ? 0 : at + 1)
    system.call(op_, buffers.whole[at], buffers.part[at]);
  const double seconds = seconds_since(start);
  if (op_ != Op::kBarrier) check(backend, buffers, block, calls);
  return seconds / static_cast<double>(calls);
}

/// The number of calls that fill block_seconds without overflow of all-reduce's floats; the same on all ranks.
int64_t RankBench::calls_of_block(const std::string& backend) {
  const int64_t num_buffers = std::ssize(buffers_of(backend).whole);
  timed_block(backend, 0, std::min<int64_t>(num_buffers, 2));  // Touches memory and opens connections.
  const double seconds = timed_block(backend, 0, std::min<int64_t>(num_buffers, 4));
  at::Tensor calls = at::empty({1}, at::kLong);
  const auto max_passes = static_cast<int64_t>(90 / std::log2(std::max(2, size_)));
  calls.data_ptr<int64_t>()[0] = std::clamp(static_cast<int64_t>(options_.block_seconds / seconds), int64_t{1}, max_passes * num_buffers);
  control_.broadcast(calls, 0, "the number of calls");
  return calls.data_ptr<int64_t>()[0];
}

/// Returns seconds by backend.
std::vector<double> RankBench::measure(Op op, int64_t bytes) {
  op_ = op;
  buffers_.clear();
  for (const std::string& backend : options_.backends) allocate(backend, bytes);
  std::vector<int64_t> calls;
  for (const std::string& backend : options_.backends) calls.push_back(calls_of_block(backend));
  std::vector<std::vector<double>> seconds(options_.backends.size());
  for (int block = 1; block <= options_.blocks; ++block)
    for (size_t i = 0; i < seconds.size(); ++i) seconds[i].push_back(timed_block(options_.backends[i], block, calls[i]));
  std::vector<double> medians;
  for (const std::vector<double>& of_backend : seconds) medians.push_back(median(of_backend));
  return medians;
}

std::vector<double> RankBench::run() {
  std::vector<double> out;
  for (const std::string& name : options_.ops) {
    const Op op = op_named(name);
    for (const int64_t bytes : options_.sizes) {
      const int64_t unit = static_cast<int64_t>(sizeof(float)) * (cuts(op) ? size_ : 1);
      const bool once = op == Op::kBarrier;  // A barrier has no size.
      const bool fits = once ? bytes == options_.sizes.front() : bytes >= unit && bytes % unit == 0;
      const std::vector<double> seconds = fits ? measure(op, once ? unit : bytes) : std::vector<double>(options_.backends.size(), 0.0);
      out.insert(out.end(), seconds.begin(), seconds.end());
    }
  }
  return out;
}

CollectiveTimes named(const BenchCollectivesOptions& options, std::span<const double> seconds, double memory) {
  CollectiveTimes out{.memory_bytes_per_second = memory};
  size_t at = 0;
  for (const std::string& op : options.ops)
    for (const int64_t bytes : options.sizes)
      for (const std::string& backend : options.backends)
        if (const double of_call = seconds[at++]; of_call > 0) out.times.push_back({op, backend, op == "barrier" ? 0 : bytes, of_call});
  return out;
}

void check_names(const std::vector<std::string>& given, const std::vector<std::string>& known, const char* what) {
  for (const std::string& name : given)
    if (std::ranges::find(known, name) == known.end()) fail(ErrorCode::kBadInput, "bench collectives: no ", what, " '", name, "'");
}

}  // namespace

const std::vector<std::string>& collective_backends() {
  static const std::vector<std::string> names = {"shm", "shm-private", "gloo", "pytorch-gloo"};
  return names;
}

const std::vector<std::string>& collective_peers() {
  static const std::vector<std::string> names = {"open-mpi", "mpich"};
  return names;
}

const std::vector<std::string>& collective_ops() {
  static const std::vector<std::string> names = {"allreduce", "reducescatter", "allgather", "broadcast", "barrier"};
  return names;
}

CollectiveTimes bench_collectives_in_rank(const BenchCollectivesOptions& options, const World& world) {
  std::vector<std::string> known = collective_backends();
  known.insert(known.end(), collective_peers().begin(), collective_peers().end());
  check_names(options.backends, known, "backend");
  check_names(options.ops, collective_ops(), "operation");
  RankBench bench(options, world);
  const double memory = options.measure_memory ? bench.memory() : 0;
  return named(options, bench.run(), memory);
}

CollectiveTimes bench_collectives(const BenchCollectivesOptions& options) {
  check_names(options.backends, collective_backends(), "backend");
  check_names(options.ops, collective_ops(), "operation");
  // Rank 0 is another process, so its numbers are returned in a shared page; the last is the bandwidth of memory.
  const size_t count = options.ops.size() * options.sizes.size() * options.backends.size(), bytes = (count + 1) * sizeof(double);
  void* const page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  const auto unmap = [bytes](double* memory) { ::munmap(memory, bytes); };
  const std::unique_ptr<double, decltype(unmap)> shared(static_cast<double*>(page), unmap);
  const int code = run_ranks({.num_ranks = options.num_ranks, .is_one_of_many = true}, [&](const World& world) {
    RankBench bench(options, world);
    const double memory = options.measure_memory ? bench.memory() : 0;
    const std::vector<double> seconds = bench.run();
    if (world.rank == 0) std::copy(seconds.begin(), seconds.end(), shared.get());
    if (world.rank == 0) shared.get()[count] = memory;
    return 0;
  });
  if (code != 0) throw Error(static_cast<ErrorCode>(code), concat("bench collectives: the ranks ended with code ", code));
  return named(options, {shared.get(), count}, shared.get()[count]);
}

// Ranks are forked here and not by run_ranks: its supervisor would end the survivors and print each death; here nobody but the survivors
// themselves may notice.
namespace {

constexpr int kMaxRanks = 64;
constexpr int64_t kElements = (1 << 20) / 4;

/// State shared by the ranks of one trial. The steady clock is the same in all processes.
struct Trial {
  std::atomic<int> num_ready{0};
  std::atomic<double> signalled{0};
  std::atomic<double> noticed[kMaxRanks]{};
  char error[kMaxRanks][512]{};
};

World world_of(int rank, int size, int store_fd) {
  World world = world_from_environment();
  world.launcher = "cohort";
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.store_fd = store_fd;
  return world;
}

/// Runs one rank; never returns.
[[noreturn]] void live(const BenchFaultsOptions& options, int trial_number, int rank, int store_fd, Trial& trial) {
  std::thread killer;
  try {
    use_compute_threads(1);
    Group group = Group::create(world_of(rank, options.num_ranks, store_fd),
                                {.backend = options.backend, .timeout_seconds = options.timeout_seconds});
    at::Tensor gradients = group.allocate(kElements, at::kFloat);
    group.all_reduce_sum(gradients, "the gradients");
    ++trial.num_ready;
    if (rank + 1 == options.num_ranks) {
      killer = std::thread([&] {
        while (trial.num_ready < options.num_ranks) std::this_thread::yield();
        const uint64_t wait_us = 5000 + random_bits(1, trial_number) % 45000;
        std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
        trial.signalled = steady_seconds();
        ::kill(::getpid(), options.stop ? SIGSTOP : SIGKILL);
      });
    }
    while (true) group.all_reduce_sum(gradients, "the gradients");
  } catch (const std::exception& error) {
    trial.noticed[rank] = steady_seconds();
    std::strncpy(trial.error[rank], error.what(), sizeof trial.error[rank] - 1);
  }
  ::_exit(0);
}

/// Kills and reaps those of `ranks` that still run.
void end_all(std::vector<pid_t>& ranks) {
  for (const pid_t pid : ranks) {
    if (pid <= 0) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ranks.clear();
}

/// Waits until every survivor (all but the last rank) has ended, or the deadline.
void wait_for_survivors(const BenchFaultsOptions& options, std::vector<pid_t>& ranks) {
  const double end = steady_seconds() + options.timeout_seconds + 10;
  for (size_t left = ranks.size() - 1; left > 0 && steady_seconds() < end;) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank] <= 0 || ::waitpid(ranks[rank], nullptr, WNOHANG) != ranks[rank]) continue;
      ranks[rank] = 0;
      left -= rank + 1 < ranks.size();
    }
    ::usleep(200);
  }
}

void run_trial(const BenchFaultsOptions& options, int number, Trial& trial) {
  const int store_fd = ::memfd_create("cohort-store", 0);
  if (store_fd < 0) fail(ErrorCode::kEnvironment, "memfd_create failed: ", std::strerror(errno));
  const pid_t parent = ::getpid();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(4);
      live(options, number, rank, store_fd, trial);
    }
    if (pid < 0) {
      end_all(ranks);
      ::close(store_fd);
      fail(ErrorCode::kEnvironment, "could not start rank ", rank, " of ", options.num_ranks, ": ", std::strerror(errno));
    }
    ranks.push_back(pid);
  }
  ::close(store_fd);
  wait_for_survivors(options, ranks);
  end_all(ranks);
}

}  // namespace

FaultTimes bench_faults(const BenchFaultsOptions& options) {
  if (options.num_ranks < 2 || options.num_ranks > kMaxRanks)
    fail(ErrorCode::kBadInput, "bench faults: expected 2 to ", kMaxRanks, " workers, found ", options.num_ranks);
  if (const int threads = num_threads_of_process(); threads != 1)
    fail(ErrorCode::kEnvironment, "cannot fork ranks: this process already has ", threads, " threads");
  void* const page = ::mmap(nullptr, sizeof(Trial), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  const std::unique_ptr<void, void (*)(void*)> mapping(page, [](void* memory) { ::munmap(memory, sizeof(Trial)); });
  FaultTimes out;
  const std::string lost = concat("rank ", options.num_ranks - 1);
  for (int number = 0; number < options.trials; ++number) {
    Trial& trial = *new (page) Trial;
    run_trial(options, number, trial);
    double slowest = 0;
    bool named = true;
    for (int rank = 0; rank + 1 < options.num_ranks; ++rank) {
      if (trial.signalled == 0 || trial.noticed[rank] < trial.signalled)
        fail(ErrorCode::kFailed, "trial ", number + 1, ": rank ", rank,
             trial.noticed[rank] == 0 ? " did not notice that " : " failed before ", lost, " was ", options.stop ? "stopped" : "killed",
             " ", trial.error[rank]);
      slowest = std::max(slowest, trial.noticed[rank] - trial.signalled);
      named = named && std::string(trial.error[rank]).find(lost) != std::string::npos;
    }
    out.seconds.push_back(slowest);
    out.num_named += named;
    out.example = trial.error[0];
  }
  return out;
}

}  // namespace cohort
