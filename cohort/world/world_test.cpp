#include "cohort/world/world.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// The environment with only these launcher variables, for its lifetime.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "COHORT_STORE_FD",
                             "COHORT_STATUS_FD",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_STEP_NUM_TASKS"})
      ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1), names_.push_back(name);
  }
  ~Environment() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

TEST_CASE("each launcher's variables") {
  {
    const Environment environment({});
    const World world = world_from_environment();
    CHECK(world.launcher == "none");
    CHECK(world.size == 1);
  }
  {
    const Environment environment({{"RANK", "3"},
                                   {"WORLD_SIZE", "4"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "10.0.0.1"},
                                   {"MASTER_PORT", "29500"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
    const World world = world_from_environment();
    CHECK(world.launcher == "torchrun");
    CHECK(world.rank == 3);
    CHECK(world.local_rank == 1);
    CHECK(world.master_port == 29500);
    CHECK(world.agent_store);
  }
  {
    const Environment environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    CHECK(world_from_environment().launcher == "openmpi");
    CHECK(world_from_environment().local_size == 2);
  }
  {
    const Environment environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
    CHECK(world_from_environment().launcher == "mpich");
  }
  {
    const Environment environment(
        {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}});
    const World world = world_from_environment();
    CHECK(world.launcher == "slurm");
    CHECK(world.rank == 5);
    CHECK(world.local_size == 4);
  }
  {
    // An interactive allocation has Slurm's variables too, yet only one task.
    const Environment environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
    CHECK(world_from_environment().launcher == "none");
  }
}

TEST_CASE("what does not make a job is refused by name") {
  const auto text_of = [](const std::map<std::string, std::string>& variables) -> std::string {
    const Environment environment(variables);
    try {
      world_from_environment();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kEnvironment);
      return error.what();
    }
    return "";
  };
  CHECK(text_of({{"RANK", "0"}}).find("WORLD_SIZE") != std::string::npos);
  CHECK(text_of({{"OMPI_COMM_WORLD_SIZE", "2"}}).find("OMPI_COMM_WORLD_RANK") != std::string::npos);
  CHECK(text_of({{"PMI_SIZE", "2"}}).find("PMI_RANK") != std::string::npos);
  CHECK(text_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK='x'") != std::string::npos);
  CHECK(text_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}).find("rank 2 of 2") != std::string::npos);
  CHECK(text_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR") != std::string::npos);
  CHECK(text_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "99999"}}).find("99999") != std::string::npos);
}

}  // namespace
}  // namespace cohort
