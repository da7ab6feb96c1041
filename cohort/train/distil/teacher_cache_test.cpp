#include "cohort/train/distil/teacher_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"

using namespace cohort;

namespace {

namespace fs = std::filesystem;

const TeacherCacheKey kKey{"00000000000000aa", "00000000000000bb", 2500, 3};  // Three pieces.

float score_of(int64_t sample, int64_t k) { return static_cast<float>(10 * sample + k); }

/// Counts samples that were asked for.
struct Asked {
  std::atomic<int64_t> samples = 0;
  int64_t stops_after = std::numeric_limits<int64_t>::max();  ///< From then on it throws, as a kill would end it.

  auto answer() {
    return [this](int64_t first, int64_t count, float* out) {
      if (samples >= stops_after) fail(ErrorCode::kFailed, "killed");
      samples += count;
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = 0; k < 3; ++k) out[i * 3 + k] = score_of(first + i, k);
    };
  }
};

bool never() { return false; }

void check_all(const TeacherCache& answers) {
  float scores[3];
  for (int64_t sample = 0; sample < kKey.num_samples; ++sample) {
    answers.read(sample, scores);
    for (int64_t k = 0; k < 3; ++k)
      if (scores[k] != score_of(sample, k)) FAIL("sample ", sample, " has another score");
  }
}

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  const std::string other = path + ".new";  // What is mapped stays as it was.
  std::ofstream(other, std::ios::binary) << bytes;
  fs::rename(other, path);
}

std::vector<std::string> pieces_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

TEST_CASE("kept answers: asked once, read by whoever comes; another teacher's and other data's are others") {
  const TemporaryFolder folder;
  Asked asked;
  TeacherCache first(folder.path(), kKey);
  CHECK(first.num_pieces() == 3);
  CHECK(first.num_missing() == 2500);
  first.fill(asked.answer(), 0, 1, never);
  CHECK(asked.samples == 2500);
  check_all(first);
  CHECK(pieces_in(first.folder()).size() == 3);  // No lock is left.
  TeacherCache second(folder.path(), kKey);
  CHECK(second.num_missing() == 0);
  second.fill(asked.answer(), 0, 1, never);
  CHECK(asked.samples == 2500);
  check_all(second);
  for (const TeacherCacheKey& other :
       {TeacherCacheKey{"00000000000000ac", kKey.data, 2500, 3}, TeacherCacheKey{kKey.teacher, "00000000000000bc", 2500, 3},
        TeacherCacheKey{kKey.teacher, kKey.data, 2500, 4}, TeacherCacheKey{kKey.teacher, kKey.data, 2499, 3}})
    CHECK(TeacherCache(folder.path(), other).num_missing() == other.num_samples);
}

TEST_CASE("kept answers: what was killed on the way is gone on with, a piece at a time") {
  const TemporaryFolder folder;
  Asked asked{.stops_after = 1024};
  CHECK(error_of([&] { TeacherCache(folder.path(), kKey).fill(asked.answer(), 0, 1, never); }, ErrorCode::kFailed) == "killed");
  TeacherCache again(folder.path(), kKey);
  CHECK(again.num_missing() == 2500 - 1024);
  Asked rest;
  again.fill(rest.answer(), 0, 1, never);
  CHECK(rest.samples == 2500 - 1024);
  check_all(again);
  bool asked_once = false;
  const TemporaryFolder other;
  CHECK_THROWS_AS(TeacherCache(other.path(), kKey).fill(rest.answer(), 0, 1, [&] { return std::exchange(asked_once, true); }), Error);
  CHECK(TeacherCache(other.path(), kKey).num_missing() == 2500 - 1024);
}

TEST_CASE("kept answers: several at once share the work, and none leaves before all is there") {
  const TemporaryFolder folder;
  Asked asked;
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int place = 0; place < 3; ++place)
    threads.emplace_back([&, place] {
      TeacherCache answers(folder.path(), kKey);
      answers.fill(asked.answer(), place, 3, never);
      check_all(answers);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(asked.samples == 2500);
}

TEST_CASE("kept answers: a score that is not finite is refused with its sample, and not kept") {
  const TemporaryFolder folder;
  const std::string error = error_of([&] {
    TeacherCache(folder.path(), kKey)
        .fill(
            [](int64_t first, int64_t count, float* out) {
              std::fill(out, out + 3 * count, 0.0F);
              if (first == 1024) out[3 * 7 + 1] = std::numeric_limits<float>::quiet_NaN();
            },
            0, 1, never);
  });
  CHECK(error.find("sample 1031 ") != std::string::npos);
  CHECK(TeacherCache(folder.path(), kKey).num_missing() == 2500 - 1024);
}

TEST_CASE("kept answers: of a file that was changed anywhere nothing is taken that is not the teacher's") {
  const TemporaryFolder folder;
  Asked asked;
  TeacherCache(folder.path(), kKey).fill(asked.answer(), 0, 1, never);
  const std::string path = pieces_in(TeacherCache(folder.path(), kKey).folder())[2], whole = read_bytes(path);
  std::mt19937 random(1);
  const auto below = [&](size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random); };
  int64_t found = 0;
  const uint64_t num_mutations = mutation_count(400);
  for (uint64_t i = 0; i < num_mutations; ++i) {
    std::string bytes = whole;
    if (i % 4 == 0) bytes.resize(below(whole.size()));
    else if (i % 4 == 1) bytes += std::string(1 + below(9), 'x');
    // The header, where a changed byte does most, and the scores.
    else bytes[below(i % 4 == 2 ? 300 : whole.size())] ^= static_cast<char>(1 << below(8));
    write_bytes(path, bytes);
    TeacherCache answers(folder.path(), kKey);
    if (answers.num_missing() == 0) check_all(answers);  // A byte that says nothing.
    else ++found;
    CHECK(std::ssize(answers.damaged()) == (answers.num_missing() == 0 ? 0 : 1));
  }
  CHECK(10 * found > static_cast<int64_t>(9 * num_mutations));
  write_bytes(path, whole.substr(0, whole.size() - 4));
  TeacherCache repaired(folder.path(), kKey);
  CHECK(repaired.num_missing() == 2500 - 2048);
  repaired.fill(asked.answer(), 0, 1, never);
  check_all(repaired);
  CHECK(read_bytes(path) == whole);
}
