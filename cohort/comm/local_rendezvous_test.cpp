#include "cohort/comm/local_rendezvous.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "cohort/base/error.h"

namespace cohort {
namespace {

World rank_of_job(int rank, int size, const std::string& job) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.launcher = "test";
  world.job_id = job + std::to_string(::getpid());
  return world;
}

TEST_CASE("ranks of one job share one memory file") {
  std::vector<int> files(3, -1);
  std::vector<std::thread> threads;
  for (int rank = 2; rank >= 0; --rank)
    threads.emplace_back([&, rank] { files[rank] = share_memory_file(rank_of_job(rank, 3, "share-"), 10); });
  for (std::thread& thread : threads) thread.join();
  struct stat first{};
  REQUIRE(::fstat(files[0], &first) == 0);
  for (const int file : files) {
    struct stat status{};
    REQUIRE(::fstat(file, &status) == 0);
    CHECK(status.st_ino == first.st_ino);
    ::close(file);
  }
}

TEST_CASE("a rank that does not come is named") {
  CHECK_THROWS_WITH_AS(share_memory_file(rank_of_job(0, 3, "absent-"), 0.2), doctest::Contains("rank(s) 1 2"), Error);
  CHECK_THROWS_WITH_AS(share_memory_file(rank_of_job(1, 3, "alone-"), 0.2), doctest::Contains("no rank 0"), Error);
}

}  // namespace
}  // namespace cohort
