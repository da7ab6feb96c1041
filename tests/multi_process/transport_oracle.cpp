// The oracle of transports (tests/support/transport_oracle.h) and their failures in real processes. Exit code 0 where all is as it should
// be; but Open MPI's mpirun gives 1 after failures, since it wants every process to reach MPI_Finalize.
//   mpirun -n 3 transport_oracle mpi oracle | groups | mismatch | message | leave | absent
// Any other backend meets as the program does (MASTER_ADDR, MASTER_PORT on several hosts) and has the first three parts:
//   mpirun -n 4 --host a:2,b:2 transport_oracle shm+mpi oracle | groups | mismatch

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "cohort/base/fail.h"
#include "cohort/comm/group_transport.h"
#include "cohort/comm/net/mpi_library.h"
#include "cohort/comm/net/mpi_transport.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/world/world.h"
#include "tests/support/transport_oracle.h"

namespace cohort {
namespace {

std::string backend;  // As on the command line.

/// Who is here and how they meet, for backends other than MPI's own.
struct Job {
  World world = world_from_environment();
  c10::intrusive_ptr<c10d::Store> store = make_store(world, 60);
  Peers peers = Peers::exchange(*store, world.rank, world.size);
};
Job& job() {
  static Job job;
  return job;
}

bool is_mpi() { return backend == "mpi"; }
int my_rank() { return is_mpi() ? MpiLibrary::instance().rank() : job().world.rank; }

std::vector<int> all_ranks() {
  std::vector<int> ranks;
  for (int rank = 0; rank < (is_mpi() ? MpiLibrary::instance().size() : job().world.size); ++rank) ranks.push_back(rank);
  return ranks;
}

/// These ranks of the job, this one among them. `name` is their own.
std::unique_ptr<Transport> connect(const std::vector<int>& ranks, const std::string& name, double timeout_seconds = 60) {
  const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), my_rank()) - ranks.begin());
  if (is_mpi()) return make_mpi_transport(ranks, place, timeout_seconds);
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, job().store);
  return make_group_transport({backend, store, place, job().peers.subset(ranks), ranks, timeout_seconds, name}).transport;
}

std::unique_ptr<Transport> everybody(double timeout_seconds = 60) { return connect(all_ranks(), "everybody", timeout_seconds); }

/// From any rank: not where two ways lead to this one.
bool from_any(const Transport& transport) { return std::strchr(transport.name(), '+') == nullptr; }

void sum(Transport& transport, size_t count) {
  std::vector<float> values(count, 1.0f);
  Call call;
  call.op = Op::kAllReduce;
  call.type = at::kFloat;
  call.input = call.output = values.data();
  call.count = count;
  call.name = "values";
  transport.start(call);
  transport.finish(call);
  if (count > 0 && values.back() != static_cast<float>(transport.size())) fail(ErrorCode::kFailed, "a wrong sum: ", values.back());
}

/// Whether `body` throws an error whose text holds `part`.
void expect_error(const char* part, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (std::strstr(error.what(), part)) {
      std::printf("as expected: %s\n", error.what());
      std::fflush(stdout);
      return;
    }
    fail(ErrorCode::kFailed, "expected '", part, "', got '", error.what(), "'");
  }
  fail(ErrorCode::kFailed, "no error, expected '", part, "'");
}

void oracle() {
  const auto transport = everybody();
  const bool any = from_any(*transport);
  constexpr size_t kThreshold = NetworkTransport::kSmallBytes / 4;
  size_t num_calls = 0;
  if (std::getenv("COHORT_FULL_ORACLE")) {
    num_calls += check_transport(*transport, {.from_any = any});
  } else {
    // Every type where data is small and where it is not; every size with a wide and a narrow type.
    if (any) num_calls += check_transport(*transport, {.counts = {1, 1009}});
    num_calls += check_transport(*transport, {.types = {at::kFloat, at::kShort}, .from_any = any});
  }
  num_calls += check_transport(*transport, {.counts = {kThreshold, kThreshold + 1, 1000003}, .types = {at::kFloat}, .from_any = any});
  if (transport->rank() == 0)
    std::printf("%zu calls right over %s\n", num_calls, is_mpi() ? MpiLibrary::instance().version().c_str() : transport->name());
}

/// Groups in another order, beside each other, on threads of their own.
void groups() {
  std::vector<int> reversed = all_ranks();
  std::reverse(reversed.begin(), reversed.end());
  const auto one = everybody(), other = connect(reversed, "reversed");
  const OracleOptions brief{.counts = {1, 1009}, .types = {at::kFloat}, .from_any = from_any(*one)};
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      check_transport(*one, brief);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  check_transport(*other, brief);
  thread.join();
  if (failure) std::rethrow_exception(failure);
  if (is_mpi()) check_transport(*connect({my_rank()}, "alone"), brief);
}

void mismatch() {
  const auto transport = everybody();
  const int last = transport->size() - 1;
  expect_error(concat("rank ", last).c_str(), [&] { sum(*transport, transport->rank() == last ? 50000 : 60000); });
  sum(*transport, 60000);
}

void message() {
  const auto transport = everybody();
  std::vector<char> data(1000);
  for (const size_t expected : {size_t{500}, size_t{1000}}) {
    if (transport->rank() == 0) transport->send(data.data(), 700, 1, 3)->wait();
    if (transport->rank() == 1) expect_error("rank 0", [&] { transport->receive(data.data(), expected, 0, 3)->wait(); });
  }
  if (transport->rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));  // Its end would end rank 1.
}

void leave() {
  const auto transport = everybody(1);
  if (transport->rank() == 0) expect_error("from rank 1 within 1 s", [&] { sum(*transport, 10); });
  if (transport->rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
}

void absent() {
  if (MpiLibrary::instance().rank() != 0) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  expect_error("came to MPI_Comm_create_group within 1 s", [] { everybody(1); });
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  const std::map<std::string, void (*)()> parts = {{"oracle", cohort::oracle},   {"groups", cohort::groups}, {"mismatch", cohort::mismatch},
                                                   {"message", cohort::message}, {"leave", cohort::leave},   {"absent", cohort::absent}};
  if (argc != 3 || !parts.count(argv[2])) {
    std::fprintf(stderr, "usage: transport_oracle BACKEND oracle|groups|mismatch|message|leave|absent\n");
    return 2;
  }
  cohort::backend = argv[1];
  try {
    parts.at(argv[2])();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "transport_oracle: %s\n", error.what());
    return 1;
  }
  return 0;
}
