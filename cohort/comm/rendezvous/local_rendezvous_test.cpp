#include "cohort/comm/rendezvous/local_rendezvous.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "cohort/base/fail.h"

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

/// Connected to the rendezvous of a job as any process of this user can be.
int stranger(const World& world) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = fill_local_address(address, concat("cohort/", ::getuid(), "/", world.launcher, "/", world.job_id));
  for (int i = 0; i < 1000; ++i) {
    if (::connect(socket, reinterpret_cast<sockaddr*>(&address), length) == 0) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL("nobody listens");
  return -1;
}

TEST_CASE("strangers that say nothing, half of it or nonsense hold up nobody, and are turned away") {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int> files(3, -1);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { files[0] = share_memory_file(rank_of_job(0, 3, "strangers-"), 20); });
  const int silent = stranger(rank_of_job(1, 3, "strangers-")), half = stranger(rank_of_job(1, 3, "strangers-")),
            liar = stranger(rank_of_job(1, 3, "strangers-"));
  const int32_t no_rank = 77;
  CHECK(::send(half, &no_rank, 2, MSG_NOSIGNAL) == 2);
  CHECK(::send(liar, &no_rank, sizeof no_rank, MSG_NOSIGNAL) == sizeof no_rank);
  for (const int rank : {1, 2})
    threads.emplace_back([&, rank] { files[static_cast<size_t>(rank)] = share_memory_file(rank_of_job(rank, 3, "strangers-"), 20); });
  for (std::thread& thread : threads) thread.join();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));  // Long before a stranger's time is up.
  for (const int file : files) {
    CHECK(file >= 0);
    ::close(file);
  }
  for (const int socket : {silent, half, liar}) ::close(socket);
}

TEST_CASE("a stranger is turned away while ranks are still missing, and named when they do not come") {
  const World world = rank_of_job(0, 2, "quiet-");
  std::string text;
  std::thread host([&] {
    try {
      share_memory_file(world, 1.2);
    } catch (const Error& error) {
      text = error.what();
    }
  });
  const int first = stranger(world);
  char byte;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(::recv(first, &byte, 1, 0) == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(900));
  ::close(first);
  std::this_thread::sleep_until(begin + std::chrono::milliseconds(1000));
  const int last = stranger(world);  // Its time is not up when rank 0's is.
  host.join();
  ::close(last);
  CHECK(text.find("rank(s) 1 did not come") != std::string::npos);
  CHECK(text.find(concat("process ", ::getpid(), " connected and said nothing")) != std::string::npos);
}

TEST_CASE("a process that holds the job's socket and says nothing is named by the ranks that find it there") {
  const World world = rank_of_job(1, 2, "held-");
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = fill_local_address(address, concat("cohort/", ::getuid(), "/", world.launcher, "/", world.job_id));
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::listen(listener, 4) == 0);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(share_memory_file(world, 0.3), doctest::Contains(concat("the process ", ::getpid(), " holds").c_str()), Error);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
  ::close(listener);
}

}  // namespace
}  // namespace cohort
