#include "cohort/world/world.h"

#include <doctest/doctest.h>
#include <unistd.h>

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
                             "SLURM_STEP_ID",
                             "SLURM_STEPID",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_STEP_NUM_TASKS",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "COHORT_LAUNCHER"})
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
}

TEST_CASE("the variables of several launchers together, and of one that did not start this process") {
  using Variables = std::map<std::string, std::string>;
  const Variables slurm = {
      {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
  const auto with = [](Variables variables, const Variables& more) {
    for (const auto& [name, value] : more) variables[name] = value;
    return variables;
  };
  const std::string kubernetes = "tcp://10.0.0.1:29500", pid = std::to_string(::getpid()), parent = std::to_string(::getppid());
  const Variables launched = {{"RANK", "1"},        {"WORLD_SIZE", "2"},          {"LOCAL_RANK", "1"},       {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_PORT", "9"}, {"MASTER_ADDR", "127.0.0.1"}, {"COHORT_STORE_FD", "999"}};
  struct Row {
    Variables variables;
    std::string launcher;           ///< Or a part of the refusal,
    int rank = -1, local_size = 0;  ///< where these are not given.
    std::string address = "";
  };
  const Row rows[] = {
      {slurm, "slurm", 5, 4},
      // The script of a job and an interactive allocation have Slurm's variables too, yet are no task of srun's.
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}}, "none", 0, 1},
      {with(slurm, {{"SLURM_STEP_ID", "4294967291"}}), "none", 0, 1},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}, "none", 0, 1},
      // srun --mpi=pmi2; MPICH's mpiexec in a job; and variables that are left of something else.
      {with(slurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}), "slurm", 5, 4},
      {with(slurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}), "mpich", 3, 2},
      {with(slurm, {{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}), "PMI_RANK and PMI_SIZE say rank 0 of 4, Slurm's variables rank 5 of 8"},
      // Kubernetes' own MASTER_PORT.
      {with(slurm, {{"MASTER_PORT", kubernetes}}), "slurm", 5, 4},
      {with(slurm, {{"MASTER_PORT", kubernetes}, {"MASTER_ADDR", "10.0.0.1"}}), "enableServiceLinks: false"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", kubernetes}},
       "is not a port: Kubernetes sets it so where a service is named master"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", kubernetes}}, "torchrun", 0, 1},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "[fd00::5]"}, {"MASTER_PORT", "9"}}, "torchrun", 0, 1, "fd00::5"},
      // A program that a rank of `cohort launch` started without its descriptors, and one that has them from elsewhere.
      {with(launched, {{"COHORT_LAUNCHER", parent}}), "torchrun", 1, 2, "127.0.0.1"},
      {with(launched, {{"COHORT_LAUNCHER", pid}}), "is left of a `cohort launch` that did not start this process"},
      {launched, "env -u COHORT_STORE_FD"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.launcher);
    const Environment environment(row.variables);
    try {
      const World world = world_from_environment();
      CHECK(world.launcher == row.launcher);
      CHECK(world.rank == row.rank);
      CHECK(world.local_size == row.local_size);
      CHECK(world.master_address == row.address);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kEnvironment);
      CHECK_MESSAGE((row.rank < 0 && std::string(error.what()).find(row.launcher) != std::string::npos), error.what());
    }
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
