#include "cohort/data/images/mnist.h"

#include <doctest/doctest.h>

#include "cohort/base/random.h"
#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

std::string text_of(const ByteBuffer& buffer) { return {reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(buffer.size())}; }

}  // namespace

TEST_CASE("idx: plain and gzip files, told by content") {
  TempFolder folder;
  const std::string images = idx_images(5, 3, 7), labels = idx_labels(5);
  for (const bool packed : {false, true}) {
    const IdxImages got = read_idx_images(folder.write("images", packed ? gzip(images) : images));
    CHECK(got.count == 5);
    CHECK(got.rows == 3);
    CHECK(got.columns == 7);
    CHECK(text_of(got.pixels) == images.substr(16));
    const IdxLabels got_labels = read_idx_labels(folder.write("labels", packed ? gzip(labels) : labels), 10);
    CHECK(got_labels.count() == 5);
    CHECK(text_of(got_labels.labels) == labels.substr(8));
  }
}

TEST_CASE("idx: each fault has its own line") {
  TempFolder folder;
  const auto images_error = [&](const std::string& content) {
    const std::string path = folder.write("file", content);
    const std::string text = error_of([&] { read_idx_images(path); });
    CHECK(mentions(text, path));
    return text;
  };
  const auto labels_error = [&](const std::string& content) {
    const std::string path = folder.write("file", content);
    return error_of([&] { read_idx_labels(path, 10); });
  };
  CHECK(mentions(images_error(""), "is empty: expected an IDX file of images"));
  CHECK(mentions(images_error(gzip("")), "holds nothing"));
  CHECK(mentions(images_error(idx_labels(20)), "labels given as images (magic number at offset 0: expected 0x00000803, found 0x00000801)"));
  CHECK(mentions(labels_error(idx_images(1, 2, 2)), "images given as labels"));
  CHECK(mentions(images_error("GIF89a, not IDX at all"), "expected the magic number 0x00000803 at offset 0, found 0x47494638"));
  CHECK(
      mentions(images_error(idx_images(2, 3, 3).substr(0, 11)), "is truncated at offset 11: expected an IDX header of 16 bytes, found 11"));
  CHECK(mentions(images_error(idx_images(2, 3, 3).substr(0, 30)),
                 "is truncated at offset 30: expected 18 bytes from offset 16 (2 images of 3x3), found 14"));
  CHECK(mentions(images_error(gzip(idx_images(2, 3, 3).substr(0, 30))),
                 "is truncated at offset 30: expected 18 bytes from offset 16 (2 images of 3x3), found 14"));
  CHECK(mentions(images_error(idx_images(2, 3, 3) + "x"), "trailing bytes at offset 34"));
  CHECK(mentions(images_error(gzip(idx_images(2, 3, 3) + "x")), "trailing bytes at offset 34"));
  CHECK(mentions(images_error(idx_images(0, 3, 3)), "number of images at offset 4 is 0"));
  CHECK(mentions(images_error(idx_images(3, 0, 3)), "number of rows at offset 8 is 0"));
  CHECK(mentions(images_error(idx_images(3, 3, 0)), "number of columns at offset 12 is 0"));
  CHECK(mentions(labels_error(idx_labels(0)), "number of labels at offset 4 is 0"));
  std::string bad_label = idx_labels(9);
  bad_label[8 + 6] = 10;
  CHECK(mentions(labels_error(bad_label), "label 10 at offset 14: expected 0 to 9"));
}

TEST_CASE("idx: images and labels must be as many") {
  TempFolder folder;
  const std::string images = folder.write("images", idx_images(4, 2, 2)), labels = folder.write("labels", idx_labels(5));
  IdxImages read_images;
  IdxLabels read_labels;
  const std::string text = error_of([&] { read_idx_pair(images, labels, 10, read_images, read_labels); });
  CHECK(text == images + " has 4 images but " + labels + " has 5 labels: expected as many");
}

TEST_CASE("idx: a hostile header is refused before memory is taken") {
  TempFolder folder;
  const auto refusal = [&](const std::string& content) {
    const std::string path = folder.write("file", content);
    return error_of([&] { read_idx_images(path); });
  };
  for (const bool packed : {false, true}) {
    const auto file = [&](std::initializer_list<uint32_t> header) { return packed ? gzip(big_endian(header)) : big_endian(header); };
    CHECK(mentions(refusal(file({0x803, 0x7fffffff, 0x80000000, 0x80000000})),
                   "number of rows at offset 8 is 2147483648: expected at most 65536"));
    CHECK(mentions(refusal(file({0x803, 0xffffffff, 1, 1})), "number of images at offset 4 is 4294967295"));
    CHECK(mentions(refusal(file({0x803, 0x7fffffff, 65536, 65536})), "more than the limit of 17179869184 bytes"));
    // Below the limit, but more than so small a file can hold.
    CHECK(mentions(refusal(file({0x803, 10000, 1000, 1000})), "expected 10000000000 bytes from offset 16 (10000 images of 1000x1000)"));
  }
}

TEST_CASE("idx: every truncation of a valid file is refused") {
  TempFolder folder;
  for (const std::string& content : {idx_images(3, 2, 3), gzip(idx_images(3, 2, 3))}) {
    for (size_t kept = 0; kept < content.size(); ++kept) {
      const std::string path = folder.write("images", content.substr(0, kept));
      CHECK_FALSE(error_of([&] { read_idx_images(path); }).empty());
    }
  }
  for (const std::string& content : {idx_labels(12), gzip(idx_labels(12))}) {
    for (size_t kept = 0; kept < content.size(); ++kept) {
      const std::string path = folder.write("labels", content.substr(0, kept));
      CHECK_FALSE(error_of([&] { read_idx_labels(path, 10); }).empty());
    }
  }
}

TEST_CASE("idx: any value of any header byte gives a valid file or a refusal") {
  TempFolder folder;
  const std::string good = idx_images(4, 2, 2);
  int accepted = 0;
  for (size_t at = 0; at < 16; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = good;
      changed[at] = static_cast<char>(value);
      const std::string path = folder.write("images", changed);
      accepted += succeeds_or_is_refused([&] {
        const IdxImages images = read_idx_images(path);
        CHECK(images.count * images.rows * images.columns == images.pixels.size());
        CHECK(images.pixels.size() == 16);
      });
    }
  }
  CHECK(accepted == 16);  // One change in one number always changes the size, so only the sixteen that change nothing remain.
}

TEST_CASE("idx: random damage to a gzip file gives a valid file or a refusal") {
  TempFolder folder;
  const std::string good = gzip(idx_images(4, 6, 6));
  for (uint64_t round = 0; round < 1500; ++round) {
    std::string changed = good;
    const uint64_t flips = 1 + random_bits(3, round) % 3;
    for (uint64_t flip = 0; flip < flips; ++flip) {
      const uint64_t bits = random_bits(4, round, flip);
      changed[bits % changed.size()] ^= static_cast<char>(1 << (bits >> 32) % 8);
    }
    const std::string path = folder.write("images", changed);
    // What passes the checksum is the content as it was: the damage was in a field that nobody needs, such as the time.
    succeeds_or_is_refused([&] {
      const IdxImages images = read_idx_images(path);
      CHECK(text_of(images.pixels) == idx_images(4, 6, 6).substr(16));
    });
  }
}
