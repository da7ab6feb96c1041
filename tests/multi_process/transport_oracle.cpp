// The oracle of transports (comm/transport_oracle.h) and their failures in real processes. Exit code 0 where all is as it should be; but
// Open MPI's mpirun gives 1 after failures, since it wants every process to reach MPI_Finalize.
//   mpirun -n 3 transport_oracle mpi oracle | groups | mismatch | message | leave | absent

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <thread>

#include "cohort/base/error.h"
#include "cohort/comm/mpi_library.h"
#include "cohort/comm/mpi_transport.h"
#include "cohort/comm/transport_oracle.h"

namespace cohort {
namespace {

std::vector<int> all_ranks() {
  std::vector<int> ranks;
  for (int rank = 0; rank < MpiLibrary::instance().size(); ++rank) ranks.push_back(rank);
  return ranks;
}

std::unique_ptr<NetworkTransport> everybody(double timeout_seconds = 60) {
  return make_mpi_transport(all_ranks(), MpiLibrary::instance().rank(), timeout_seconds);
}

void sum(NetworkTransport& transport, size_t count) {
  std::vector<float> values(count, 1.0f);
  Call call;
  call.op = Op::kAllReduce;
  call.type = at::kFloat;
  call.input = call.output = values.data();
  call.count = count;
  call.name = "values";
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
  constexpr size_t kThreshold = NetworkTransport::kSmallBytes / 4;
  size_t num_calls = check_transport(*transport);
  num_calls += check_transport(*transport, {.counts = {kThreshold, kThreshold + 1, 1000003}, .types = {at::kFloat}});
  if (transport->rank() == 0) std::printf("%zu calls right over %s\n", num_calls, MpiLibrary::instance().version().c_str());
}

/// Groups in another order, beside each other, on threads of their own.
void groups() {
  const int rank = MpiLibrary::instance().rank();
  std::vector<int> reversed = all_ranks();
  std::reverse(reversed.begin(), reversed.end());
  const auto one = everybody(), other = make_mpi_transport(reversed, static_cast<int>(reversed.size()) - 1 - rank, 60);
  const auto alone = make_mpi_transport({rank}, 0, 60);
  const OracleOptions brief{.counts = {1, 1009}, .types = {at::kFloat}};
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
  check_transport(*alone, brief);
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
  if (argc != 3 || std::strcmp(argv[1], "mpi") != 0 || !parts.count(argv[2])) {
    std::fprintf(stderr, "usage: transport_oracle mpi oracle|groups|mismatch|message|leave|absent\n");
    return 2;
  }
  try {
    parts.at(argv[2])();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "transport_oracle: %s\n", error.what());
    return 1;
  }
  return 0;
}
