#include "cohort/data/text_source.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/skip.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;

/// A text whose bytes tell their place, for as long as 256 bytes.
std::string counting_text(int size) {
  std::string out;
  for (int i = 0; i < size; ++i) out += static_cast<char>(i);
  return out;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const std::string& file : text_files(folder)) out.push_back(fs::path(file).lexically_relative(folder).string());
  return out;
}

/// The bytes that all samples of `source` see, tokens and last target, in order.
std::vector<int64_t> bytes_of(const DataSource& source) {
  std::vector<int64_t> out;
  Batch batch;
  for (int64_t i = 0; i < source.num_samples(); ++i) {
    source.read(std::vector<int64_t>{i}, batch);
    for (size_t at = 0; at + 1 < batch.tokens.size(); ++at) REQUIRE(batch.targets[at] == batch.tokens[at + 1]);
    out.insert(out.end(), batch.tokens.begin(), batch.tokens.end());
    if (i + 1 == source.num_samples()) out.push_back(batch.targets.back());
  }
  return out;
}

}  // namespace

TEST_CASE("text: number of samples and their bytes") {
  const auto text = std::make_shared<ByteBuffer>(256, "test");
  for (int i = 0; i < 256; ++i) text->data()[i] = static_cast<uint8_t>(i);
  CHECK(TextSource(text, 0, 256, 4).num_samples() == 63);  // floor(255 / 4)
  CHECK(TextSource(text, 0, 257 - 1, 5).num_samples() == 51);
  CHECK(TextSource(text, 10, 15, 4).num_samples() == 1);
  CHECK(TextSource(text, 10, 14, 4).num_samples() == 0);
  const TextSource source(text, 100, 256, 3);
  Batch batch;
  batch.values.resize(9);  // Of an earlier use.
  source.read(std::vector<int64_t>{50, 1}, batch);
  CHECK(batch.num_samples == 2);
  CHECK(batch.values.empty());
  CHECK(batch.tokens == std::vector<int64_t>{250, 251, 252, 103, 104, 105});
  CHECK(batch.targets == std::vector<int64_t>{251, 252, 253, 104, 105, 106});
  CHECK(source.shape().kind == DataShape::Kind::kText);
  CHECK(source.shape().num_classes == 256);
  CHECK(source.shape().vocabulary() == 256);
  CHECK(source.shape().targets_per_sample() == 3);
}

TEST_CASE("text: train and validation share no byte and are as long as can be") {
  TempFolder folder;
  for (int size = 8; size <= 200; ++size) {
    const std::string path = folder.write("text", counting_text(size));
    for (const int64_t context : {int64_t{1}, int64_t{3}}) {
      const DataSet data = open_text(path, {.context = context});
      const std::vector<int64_t> train = bytes_of(*data.train), validation = bytes_of(*data.validation);
      REQUIRE(train.front() == 0);
      REQUIRE(train.back() < validation.front());
      REQUIRE(validation.back() == size - 1);
      const int64_t samples = data.train->num_samples() + data.validation->num_samples();
      REQUIRE(samples == (size - 2) / context);
      REQUIRE(data.validation->num_samples() == std::max<int64_t>(1, samples / 10));
    }
  }
}

TEST_CASE("text: too short says how much is needed") {
  TempFolder folder;
  const std::string path = folder.write("text", counting_text(129));
  CHECK(mentions(error_of([&] { open_text(path, {.context = 64}); }), path + " has 129 bytes of text: expected at least 130"));
  folder.write("text", counting_text(130));
  CHECK(open_text(path, {.context = 64}).train->num_samples() == 1);
  folder.write("text", "");
  CHECK(mentions(error_of([&] { open_text(path, {.context = 64}); }), "has 0 bytes of text"));
  for (const int64_t context : {int64_t{0}, int64_t{-3}, int64_t{1} << 40}) {
    CHECK(mentions(error_of([&] { open_text(path, {.context = context}); }), "context: expected 1 to 1048576 bytes"));
  }
}

TEST_CASE("text: a folder is all its files by path, each once") {
  TempFolder folder;
  folder.write("b/deep/z", "4");
  folder.write("b/a", "3");
  folder.write("c", "5");
  folder.write("GPL-3", "2");
  fs::create_symlink("GPL-3", folder.path("GPL"));           // Sorted before its target, and still not taken.
  fs::create_hard_link(folder.path("c"), folder.path("d"));  // The same file again.
  fs::create_directory_symlink(".", folder.path("loop"));    // Not followed.
  TempFolder outside;
  outside.write("far", "1");
  fs::create_symlink(outside.path("far"), folder.path("A"));   // Not in the folder: taken,
  fs::create_symlink(outside.path("far"), folder.path("A2"));  // once.
  ::mkfifo(folder.path("pipe").c_str(), 0600);                 // Not a regular file.
  CHECK(names_in(folder.path()) == std::vector<std::string>{"A", "GPL-3", "b/a", "b/deep/z", "c"});
  const DataSet data = open_text(folder.path(), {.context = 1});
  CHECK(bytes_of(*data.train) == std::vector<int64_t>{'1', '2', '3'});
  CHECK(bytes_of(*data.validation) == std::vector<int64_t>{'4', '5'});
}

TEST_CASE("text: what cannot be read is an error") {
  TempFolder folder;
  CHECK(mentions(error_of([&] { text_files(folder.path("none")); }), "no file or folder " + folder.path("none")));
  CHECK(mentions(error_of([&] { text_files(folder.path()); }), "has no files"));
  const auto refusal = [&](const std::string& more) { return error_of([&] { open_text(folder.path("none") + more, {}); }); };
  const std::string expected = ": expected text:FILE-OR-DIR,vocabulary=FILE", none = "no file or folder " + folder.path("none");
  CHECK(mentions(refusal(",vocabulry=v"), "none,vocabulry=v; text has no setting 'vocabulry' (did you mean 'vocabulary'?)" + expected));
  CHECK(mentions(refusal(",vocab=v"), "none,vocab=v; text has no setting 'vocab'" + expected));
  for (const char* more : {"", ",b", ",=b", "=a,b", ",b/c=d"}) CHECK(refusal(more) == none + more);
  folder.write("fine", "text");
  fs::create_symlink("nowhere", folder.path("dangling"));
  CHECK(
      mentions(error_of([&] { text_files(folder.path()); }), "cannot read " + folder.path("dangling") + ", a symbolic link: No such file"));
  fs::remove(folder.path("dangling"));
  if (!permissions_bind()) return;
  folder.write("locked/file", "x");
  fs::permissions(folder.path(""), fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
  fs::permissions(folder.path("locked"), fs::perms::none);
  CHECK(mentions(as_nobody([&] { return std::to_string(text_files(folder.path()).size()); }), "Permission denied"));
  fs::permissions(folder.path("locked"), fs::perms::owner_all);
}

TEST_CASE("text: a file that says it is empty and is not") {
  TempFolder folder;
  if (!fs::exists("/proc/self/status") || fs::file_size("/proc/self/status") > 0) return skip_test("no /proc/self/status without a size");
  CHECK(mentions(error_of([&] { read_text("x", {"/proc/self/status"}); }), "/proc/self/status says that it has 0 bytes, and has more"));
  CHECK(read_text("x", {folder.write("empty", "")}).size() == 0);
}

TEST_CASE("text: the system's licences, where they are") {
  if (!fs::exists("/usr/share/common-licenses/GPL-3")) return skip_test("no /usr/share/common-licenses/GPL-3");
  const std::vector<std::string> names = names_in("/usr/share/common-licenses");
  CHECK(std::ranges::count(names, "GPL-3") == 1);
  CHECK(std::ranges::count(names, "GPL") == 0);
}
