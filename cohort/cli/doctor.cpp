#include <ATen/Version.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/cuda.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/system/busy_elsewhere.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/comm/nccl.h"
#include "cohort/comm/net/gloo.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/comm/shm/shm_transport.h"
#include "cohort/comm/transport/peers.h"
#include "cohort/models/registry.h"
#include "cohort/version.h"
#include "cohort/world/launch.h"
#include "cohort/world/world.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace cohort {
namespace {

struct Finding {
  std::string name, value;
  bool works = true;
  std::string advice;  ///< What to do if it does not work.
};

bool library_loads(const char* name) {
  void* handle = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (handle) ::dlclose(handle);
  return handle != nullptr;
}

/// Tries Gloo in a forked rank, so that a crash there is a finding and does not end this process.
bool gloo_works() {
  return run_ranks({.num_ranks = 1}, [](const World&) {
           make_gloo(c10::make_intrusive<c10d::HashStore>(), 0, 1, "127.0.0.1", 10);
           return 0;
         }) == 0;
}

/// Tunes the shared-memory transport between two forked ranks, for longer than a job does: the sizes at which it switches its ways of
/// moving data. "" if ranks cannot share memory.
std::string shm_tuning_text() {
  constexpr double kMostSeconds = 2;
  constexpr size_t kBytes = 256;
  void* const page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return "";
  char* const text = static_cast<char*>(page);
  const int code = run_ranks({.num_ranks = 2}, [text](const World& world) {
    const auto store = make_store(world, 10);
    const Peers peers = Peers::exchange(*store, world.rank, world.size);
    auto arena = ShmArena::create(*store, world.rank, world.size);
    if (!arena) return 1;
    ShmTransport transport(std::move(arena), peers.pids(), 10);
    const ShmTuning tuning = tune(transport, kMostSeconds);
    const char* const why = tuning.measured                       ? ""
                            : ::sysconf(_SC_NPROCESSORS_ONLN) < 2 ? ": two ranks would share one core"
                                                                  : ": other programs kept the cores busy for too long, try again later";
    if (world.rank == 0) concat(tuning.text(), why).copy(text, kBytes - 1);
    return 0;
  });
  const std::string result = code == 0 ? text : "";
  ::munmap(page, kBytes);
  return result;
}

/// The values of --device: "2 devices, cuda:0 to cuda:1".
std::string gpus_text() {
  const int count = static_cast<unsigned char>(torch::cuda::device_count());
  return count == 1 ? "1 device, cuda:0" : concat(count, " devices, cuda:0 to cuda:", count - 1);
}

/// The path of a program in PATH; "" if it is not there.
std::string found_in_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split(path ? path : "", ':'))
    if (const std::string file = folder + "/" + program; ::access(file.c_str(), X_OK) == 0) return file;
  return "";
}

/// Properties of this machine that slow down or end trainings.
std::vector<Finding> machine_findings() {
  constexpr rlim_t kFewFiles = 512;
  constexpr double kSmallShmBytes = 256e6, kLookSeconds = 0.5;
  std::vector<Finding> out;
  const BusyElsewhere busy;
  std::this_thread::sleep_for(std::chrono::duration<double>(kLookSeconds));
  const std::string remark = busy.remark(num_usable_cores());
  out.push_back({"load", remark.empty() ? "other programs leave the cores alone" : remark, remark.empty(),
                 "a training shares them; plans and benchmarks hold for a machine as busy as that"});
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const bool is_endless = files.rlim_cur == RLIM_INFINITY;
  out.push_back({"open files", is_endless ? "no limit" : concat("at most ", files.rlim_cur, " a process"),
                 is_endless || files.rlim_cur >= kFewFiles, "many workers and loaders need more: ulimit -n 4096"});
  struct statvfs shm{};
  const bool has_shm = ::statvfs("/dev/shm", &shm) == 0;
  const double shm_bytes = has_shm ? static_cast<double>(shm.f_frsize) * static_cast<double>(shm.f_blocks) : 0;
  out.push_back({"/dev/shm", has_shm ? human_bytes(static_cast<int64_t>(shm_bytes)) : "not there", shm_bytes >= kSmallShmBytes,
                 "Cohort's own workers do not use it, Open MPI and NCCL do: docker run --shm-size=1g"});
  for (const auto& [program, advice] : {std::pair("mpirun", "only commands that begin with mpirun need it: apt-get install openmpi-bin"),
                                        std::pair("torchrun",
                                                  "only commands that begin with torchrun need it: it comes with PyTorch, in a "
                                                  "checkout as .venv/bin/torchrun")}) {
    const std::string file = found_in_path(program);
    out.push_back({program, file.empty() ? "not in PATH" : file, !file.empty(), advice});
  }
  return out;
}

std::vector<Finding> findings(const Config& config) {
  std::vector<Finding> out;
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN), pages = ::sysconf(_SC_PHYS_PAGES), free_pages = ::sysconf(_SC_AVPHYS_PAGES),
             page = ::sysconf(_SC_PAGESIZE);
  out.push_back({"gloo", gloo_works() ? "works" : "fails its self-test", true, ""});
  out.back().works = out.back().value == "works";
  if (!out.back().works) out.back().advice = "train with --workers 1, or rebuild Cohort against this LibTorch";
  out.insert(out.begin(), {{"cohort", COHORT_VERSION, true, ""},
                           {"libtorch", TORCH_VERSION, TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13 && TORCH_VERSION_MINOR <= 15,
                            "2.13 is what is tested; what else was tried: docs/adr/0001"},
                           {"cores", std::to_string(cores), true, ""},
                           {"memory", human_bytes(pages * page) + ", " + human_bytes(free_pages * page) + " free", true, ""},
                           {"launcher", describe(world_from_environment()), true, ""}});
  for (Finding& finding : machine_findings()) out.push_back(std::move(finding));
  const bool mpi = library_loads("libmpi.so.40") || library_loads("libmpi.so") || library_loads("libmpich.so.12");
  const std::string shm = shm_tuning_text();
  out.push_back({"shm", shm.empty() ? "ranks cannot share memory" : "works: " + shm, !shm.empty(), "exchanges go over gloo"});
  out.push_back(
      {"mpi", mpi ? "installed: mpirun starts Cohort's ranks; --backend mpi and shm+mpi exchange over it" : "not installed", true, ""});
  const bool cuda = torch::cuda::is_available();
  out.push_back({"cuda", cuda ? gpus_text() : "no device", cuda, "use --device cpu"});
  const std::string no_nccl = why_no_nccl();
  out.push_back({"nccl",
                 !no_nccl.empty() ? "not in this build"
                 : cuda ? concat("in this build: exchanges gradients of up to ", torch::cuda::device_count(), " ranks here, one a GPU")
                        : "in this build, without a GPU to use it on",
                 no_nccl.empty() && cuda, no_nccl.empty() ? "use --device cpu" : no_nccl});
  out.push_back({"fashion-mnist", std::filesystem::exists("/usr/share/datasets/fashion-mnist") ? "installed" : "not installed",
                 std::filesystem::exists("/usr/share/datasets/fashion-mnist"), "apt-get install dataset-fashion-mnist"});
  load_plugin(config);
  std::vector<std::string> names;
  for (const auto& [name, entry] : registered_models()) names.push_back(name);
  out.push_back({"models", join(names, " "), true, ""});
  return out;
}

int run_doctor(const Arguments& arguments) {
  for (const Finding& finding : findings(arguments.config)) {
    const std::string advice = finding.works ? "" : finding.advice;
    if (arguments.config.json)
      print_line(
          Json{{"event", "finding"}, {"name", finding.name}, {"value", finding.value}, {"works", finding.works}, {"advice", advice}});
    else std::printf("%-14s %s%s\n", finding.name.c_str(), finding.value.c_str(), advice.empty() ? "" : ("  -> " + advice).c_str());
  }
  return 0;
}

}  // namespace

Verb doctor_verb() {
  return {.name = "doctor",
          .summary = "Says what was detected here (cores, memory, launcher, backends, models) and what will not work.",
          .examples = {"cohort doctor", "mpirun -n 2 cohort doctor --json"},
          .settings = {"plugin", "json"},
          .run = run_doctor};
}

}  // namespace cohort
