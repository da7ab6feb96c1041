#include "bench/program/bench_verb.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <tuple>

#include "bench/program/collectives.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/world/world.h"

namespace cohort {
namespace {

constexpr int64_t kLargeBytes = 16 << 20;  ///< From this size on memory is the limit, not the caches.

/// "4", "64KiB", "1MiB".
int64_t parse_bytes(const std::string& text) {
  int64_t unit = 1;
  std::string number = text;
  for (const auto& [suffix, bytes] : std::map<std::string, int64_t>{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}) {
    if (!text.ends_with(suffix)) continue;
    unit = bytes;
    number = text.substr(0, text.size() - suffix.size());
  }
  const auto value = parse_integer(number);
  if (!value || *value < 4 / std::min<int64_t>(unit, 4) || *value > (int64_t{1} << 32) / unit || *value * unit % 4 != 0)
    fail(ErrorCode::kBadInput, "--sizes: '", text, "': expected a multiple of 4 bytes up to 4GiB, such as 64, 1KiB or 16MiB");
  return *value * unit;
}

std::vector<std::string> names_option(const Arguments& arguments, const std::string& name, const std::vector<std::string>& known,
                                      const std::string& fallback) {
  const std::vector<std::string> names = split(arguments.option(name, fallback), ',');
  for (const std::string& given : names)
    if (std::ranges::find(known, given) == known.end())
      fail(ErrorCode::kBadInput, "--", name, ": no '", given, "'", did_you_mean(given, known), "; there are: ", join(known, " "));
  if (names.empty()) fail(ErrorCode::kBadInput, "--", name, " names nothing; there are: ", join(known, " "));
  return names;
}

/// What to measure.
struct Plan {
  std::vector<std::string> ops, own, peers;
  std::vector<int64_t> sizes;
  std::vector<int> worker_counts;
  int rounds = 3;
  bool json = false;
};

Plan plan_of(const Arguments& arguments) {
  Plan plan;
  const bool barrier = arguments.options.contains("barrier");
  std::vector<std::string> known = collective_backends();
  known.insert(known.end(), collective_peers().begin(), collective_peers().end());
  for (const std::string& name : names_option(arguments, "backends", known, join(known, ",")))
    (std::ranges::find(collective_peers(), name) != collective_peers().end() ? plan.peers : plan.own).push_back(name);
  plan.ops = barrier ? std::vector<std::string>{"barrier"} : names_option(arguments, "ops", collective_ops(), "allreduce");
  for (const std::string& size : split(arguments.option("sizes", "4,64,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"), ','))
    plan.sizes.push_back(parse_bytes(size));
  if (plan.sizes.empty()) fail(ErrorCode::kBadInput, "--sizes names no size");
  for (const std::string& count : split(arguments.option("worker-counts", barrier ? "8" : "2,4"), ',')) {
    const auto number = parse_integer(count);
    if (!number || *number < 2 || *number > 64)
      fail(ErrorCode::kBadInput, "--worker-counts: '", count, "': expected 2 to 64, or several with commas");
    plan.worker_counts.push_back(static_cast<int>(*number));
  }
  if (arguments.was_given("workers")) {
    if (arguments.config.workers < 2) fail(ErrorCode::kBadInput, "--workers ", arguments.config.workers, ": an exchange takes at least 2");
    plan.worker_counts = {arguments.config.workers};
  }
  plan.rounds = static_cast<int>(arguments.integer_option("rounds", 3, 1, 1000));
  plan.json = arguments.config.json;
  return plan;
}

/// Medians over rounds, by (op, bytes, backend).
struct Measured {
  std::map<std::tuple<std::string, int64_t, std::string>, std::vector<double>> seconds;
  std::vector<double> memory;

  void add(const CollectiveTimes& times) {
    for (const CollectiveTime& time : times.times) seconds[{time.op, time.bytes, time.backend}].push_back(time.seconds);
    if (times.memory_bytes_per_second > 0) memory.push_back(times.memory_bytes_per_second);
  }
  double of(const std::string& op, int64_t bytes, const std::string& backend) const {
    const auto found = seconds.find({op, bytes, backend});
    return found == seconds.end() ? 0 : median(found->second);
  }
};

void print_json(const CollectiveTime& time, int workers) {
  print_line(Json{{"op", time.op}, {"backend", time.backend}, {"workers", workers}, {"bytes", time.bytes}, {"seconds", time.seconds}});
}

/// Runs this program under the mpirun of an MPI library. Empty if that is not possible.
CollectiveTimes run_peer(const Plan& plan, const std::string& peer, int workers) {
  std::array<char, 4096> buffer;
  const ssize_t length = ::readlink("/proc/self/exe", buffer.data(), buffer.size());
  if (length <= 0 || length == std::ssize(buffer)) return {};
  const std::string program(buffer.data(), static_cast<size_t>(length));
  std::vector<std::string> sizes;
  for (const int64_t bytes : plan.sizes) sizes.push_back(std::to_string(bytes));
  // Open MPI needs two variables before root may run programs. More ranks than cores are intended.
  const std::string launcher =
      peer == "open-mpi" ? "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi --oversubscribe" : "mpirun.mpich";
  const std::string command =
      concat("timeout -k 5 1800 ", launcher, " -n ", workers, " ", shell_quoted(program), " collectives --backends ", peer, " --ops ",
             join(plan.ops, ","), " --sizes ", join(sizes, ","), " --json 2>/dev/null </dev/null");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  CollectiveTimes out;
  while (pipe && std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get())) {
    const Json line = Json::parse(buffer.data(), nullptr, false);
    if (line.is_object() && line.contains("op") && line.contains("seconds"))
      out.times.push_back({line["op"].get<std::string>(), peer, line["bytes"].get<int64_t>(), line["seconds"].get<double>()});
  }
  return out;
}

Measured measure(Plan& plan, int workers) {
  Measured measured;
  for (int round = 0; round < plan.rounds; ++round) {
    if (!plan.own.empty())
      measured.add(bench_collectives({.num_ranks = workers,
                                      .backends = plan.own,
                                      .ops = plan.ops,
                                      .sizes = plan.sizes,
                                      .measure_memory = plan.ops != std::vector<std::string>{"barrier"}}));
    for (const std::string& peer : std::vector<std::string>(plan.peers)) {
      const CollectiveTimes times = run_peer(plan, peer, workers);
      measured.add(times);
      if (!times.times.empty()) continue;
      log_warning(concat(peer, " did not run here (", peer == "open-mpi" ? "mpirun.openmpi, libmpi.so.40" : "mpirun.mpich, libmpich.so.12",
                         "); it is left out"));
      std::erase(plan.peers, peer);
    }
  }
  return measured;
}

void print_table(const Plan& plan, const Measured& measured, int workers) {
  std::vector<std::string> backends = plan.own;
  backends.insert(backends.end(), plan.peers.begin(), plan.peers.end());
  const double memory = median(measured.memory);
  if (plan.json) {
    if (memory > 0) print_line(Json{{"event", "memory"}, {"workers", workers}, {"bytes_per_second", memory}});
    for (const auto& [key, seconds] : measured.seconds)
      print_json({std::get<0>(key), std::get<2>(key), std::get<1>(key), median(seconds)}, workers);
    std::fflush(stdout);
    return;
  }
  for (const std::string& op : plan.ops) {
    std::printf("\n%s, %d workers, microseconds\n%10s", op.c_str(), workers, op == "barrier" ? "" : "size");
    for (const std::string& backend : backends) std::printf(" %13s", backend.c_str());
    std::printf("\n");
    for (const int64_t bytes : op == "barrier" ? std::vector<int64_t>{0} : plan.sizes) {
      std::printf("%10s", op == "barrier" ? "" : human_bytes(bytes).c_str());
      for (const std::string& backend : backends) {
        const double seconds = measured.of(op, bytes, backend);
        if (seconds > 0) std::printf(" %13.*f", seconds < 1e-4 ? 2 : 0, 1e6 * seconds);
        else std::printf(" %13s", "-");
      }
      // In place each rank reads and writes its copy once: 2 p n bytes.
      const double bound = memory > 0 ? 2.0 * workers * static_cast<double>(bytes) / memory : 0, shm = measured.of(op, bytes, "shm");
      if (op == "allreduce" && bytes >= kLargeBytes && bound > 0 && shm > 0)
        std::printf("   memory allows %.0f, shm reaches %.0f %%", 1e6 * bound, 100 * bound / shm);
      std::printf("\n");
    }
  }
  if (memory > 0) std::printf("memory: %.1f GB/s read and written by %d workers together\n", memory / 1e9, workers);
  std::fflush(stdout);
}

int run_faults(const Arguments& arguments) {
  const auto trials = static_cast<int>(arguments.integer_option("faults", 100, 1, 100000));
  const int workers = arguments.was_given("workers") ? arguments.config.workers : 2;
  const double timeout = arguments.was_given("timeout") ? arguments.config.timeout : 2.0;
  for (const bool stop : {false, true}) {
    // Detecting a stopped peer takes the whole time-out, so a few trials are enough.
    const FaultTimes times = bench_faults({.num_ranks = workers,
                                           .backend = arguments.config.backend,
                                           .trials = stop ? std::min(trials, 3) : trials,
                                           .stop = stop,
                                           .timeout_seconds = timeout});
    const double middle = median(times.seconds), longest = *std::ranges::max_element(times.seconds);
    const char* const kind = stop ? "stopped" : "killed";
    if (arguments.config.json) {
      print_line(Json{{"event", "faults"},
                      {"kind", kind},
                      {"backend", arguments.config.backend},
                      {"workers", workers},
                      {"trials", times.seconds.size()},
                      {"timeout_seconds", timeout},
                      {"median_seconds", middle},
                      {"max_seconds", longest},
                      {"named", times.num_named}});
    } else {
      std::printf("%-8s %4zu times: survivors know after %s (median), %s (longest); rank named %d times\n         %s\n", kind,
                  times.seconds.size(), human_seconds(middle).c_str(), human_seconds(longest).c_str(), times.num_named,
                  printable(times.example).c_str());
    }
    std::fflush(stdout);
  }
  return 0;
}

/// Measures in the ranks of a launcher, where MPI's own collectives can be chosen as a backend too.
int run_in_rank(const Plan& plan, const World& world) {
  if (world.size < 2) fail(ErrorCode::kBadInput, "bench collectives: one rank has no peer; start at least 2");
  std::vector<std::string> backends = plan.own;
  backends.insert(backends.end(), plan.peers.begin(), plan.peers.end());
  const CollectiveTimes times = bench_collectives_in_rank({.backends = backends, .ops = plan.ops, .sizes = plan.sizes}, world);
  if (world.rank != 0) return 0;
  Measured measured;
  measured.add(times);
  print_table(plan, measured, world.size);
  return 0;
}

}  // namespace

std::vector<VerbOption> bench_collectives_options() {
  return {{"sizes", "LIST", "bytes, such as 4,64KiB,1MiB (default: 4 to 256MiB)"},
          {"ops", "LIST", "allreduce (default), reducescatter, allgather, broadcast, barrier"},
          {"backends", "LIST", "shm, shm-private, gloo, pytorch-gloo, open-mpi, mpich (default: all)"},
          {"worker-counts", "LIST", "numbers of workers (default 2,4); --workers N for one"},
          {"barrier", "", "only the barrier, with 8 workers"},
          {"faults", "N", "kill a peer in mid-exchange N times, stop one: when do the others know?"}};
}

int bench_collectives_verb(const Arguments& arguments) {
  if (arguments.options.contains("faults")) return run_faults(arguments);
  Plan plan = plan_of(arguments);
  const World world = world_from_environment();
  if (world.launcher != "none") {
    for (const char* unread : {"rounds", "worker-counts", "workers"})
      if (arguments.options.contains(unread) || arguments.was_given(unread))
        fail(ErrorCode::kBadInput, "bench collectives does not read --", unread, " under ", world.launcher,
             ", whose ranks measure once; leave it out");
    return run_in_rank(plan, world);
  }
  for (const int workers : plan.worker_counts) print_table(plan, measure(plan, workers), workers);
  return 0;
}

}  // namespace cohort
