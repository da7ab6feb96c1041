#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/text.h"
#include "cohort/cli/verb.h"
#include "cohort/comm/gloo.h"
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
  std::string advice;
};

bool library_loads(const char* name) {
  void* handle = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (handle) ::dlclose(handle);
  return handle != nullptr;
}

/// In a forked rank, so that a crash of it is a finding and not the end of the doctor.
bool gloo_works() {
  return run_ranks({.num_ranks = 1}, [](const World&) {
           make_gloo(c10::make_intrusive<c10d::HashStore>(), 0, 1, "127.0.0.1", 10);
           return 0;
         }) == 0;
}

std::vector<Finding> findings(const Config& config) {
  std::vector<Finding> out;
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN), pages = ::sysconf(_SC_PHYS_PAGES), free_pages = ::sysconf(_SC_AVPHYS_PAGES),
             page = ::sysconf(_SC_PAGESIZE);
  out.push_back({"gloo", gloo_works() ? "works" : "fails its self-test", true, ""});
  out.back().works = out.back().value == "works";
  if (!out.back().works) out.back().advice = "train with --workers 1, or rebuild Cohort against this LibTorch";
  out.insert(out.begin(), {{"cohort", COHORT_VERSION, true, ""},
                           {"libtorch", TORCH_VERSION, std::string(TORCH_VERSION).starts_with("2.13"), "2.13 is what is tested"},
                           {"cores", std::to_string(cores), true, ""},
                           {"memory", human_bytes(pages * page) + ", " + human_bytes(free_pages * page) + " free", true, ""},
                           {"launcher", describe(world_from_environment()), true, ""}});
  const bool mpi = library_loads("libmpi.so.40") || library_loads("libmpi.so") || library_loads("libmpich.so.12");
  out.push_back({"mpi", mpi ? "installed; mpirun starts Cohort's ranks, which exchange through shared memory or gloo" : "not installed",
                 true, "the mpi backend is not built yet"});
  out.push_back({"cuda", "not built yet", false, "use --device cpu"});
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
    if (arguments.config.json)
      std::printf(
          "%s\n",
          Json{{"event", "finding"}, {"name", finding.name}, {"value", finding.value}, {"works", finding.works}, {"advice", finding.advice}}
              .dump()
              .c_str());
    else
      std::printf("%-14s %s%s\n", finding.name.c_str(), finding.value.c_str(),
                  finding.works || finding.advice.empty() ? "" : ("  -> " + finding.advice).c_str());
  }
  return 0;
}

}  // namespace

Verb doctor_verb() {
  return {.name = "doctor",
          .summary = "Says what was detected here (cores, memory, launcher, backends, models) and what will not work.",
          .examples = {"cohort doctor", "mpirun -n 2 cohort doctor --json"},
          .takes_settings = true,
          .run = run_doctor};
}

}  // namespace cohort
