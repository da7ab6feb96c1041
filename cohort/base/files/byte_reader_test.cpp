#include "cohort/base/files/byte_reader.h"

#include <doctest/doctest.h>

#include "cohort/base/random.h"
#include "tests/support/data_files.h"
#include "tests/support/skip.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

std::string noise(size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) out += static_cast<char>(random_bits(1, i));
  return out;
}

std::string read_in_pieces(const std::string& path, int64_t piece) {
  ByteReader reader(path);
  std::string out, buffer(static_cast<size_t>(piece), '\0');
  for (;;) {
    const int64_t got = reader.read(reinterpret_cast<uint8_t*>(buffer.data()), piece);
    out.append(buffer, 0, static_cast<size_t>(got));
    CHECK(reader.offset() == std::ssize(out));
    if (got < piece) return out;
  }
}

}  // namespace

TEST_CASE("byte reader: plain, gzip and several gzip members give the same bytes, whatever the piece and the name") {
  TempFolder folder;
  // Longer than the reader's chunk of input, also when compressed.
  const std::string content = noise(300000) + std::string(100000, 'x');
  const std::string plain = folder.write("plain.gz", content), packed = folder.write("packed", gzip(content));
  const std::string members = folder.write("members", gzip(content.substr(0, 7)) + gzip("") + gzip(content.substr(7)));
  for (const int64_t piece : {977, 65536, 1000000}) {
    CHECK(read_in_pieces(plain, piece) == content);
    CHECK(read_in_pieces(packed, piece) == content);
    CHECK(read_in_pieces(members, piece) == content);
  }
  CHECK_FALSE(ByteReader(plain).is_gzip());
  CHECK(ByteReader(packed).is_gzip());
  CHECK(ByteReader(packed).max_bytes() >= std::ssize(content));
}

TEST_CASE("byte reader: max_bytes bounds even the best compressible content") {
  TempFolder folder;
  const std::string content(1 << 22, '\0');
  const std::string path = folder.write("zeros.gz", gzip(content));
  ByteReader reader(path);
  CHECK(reader.max_bytes() >= std::ssize(content));
  CHECK(reader.file_bytes() < 5000);
}

TEST_CASE("byte reader: what is no readable file") {
  TempFolder folder;
  CHECK(mentions(error_of([&] { ByteReader{folder.path("absent")}; }), "cannot open " + folder.path("absent") + ": No such file"));
  CHECK(mentions(error_of([&] { ByteReader{folder.path()}; }), "is a folder"));
  CHECK(mentions(error_of([&] { ByteReader{"/dev/null"}; }), "is not a regular file"));
  if (!permissions_bind()) return;
  const std::string locked = folder.write("locked", "x");
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all | std::filesystem::perms::others_exec);
  std::filesystem::permissions(locked, std::filesystem::perms::none);
  CHECK(mentions(as_nobody([&] { return std::to_string(ByteReader{locked}.file_bytes()); }), "Permission denied"));
}

TEST_CASE("byte reader: gzip that is truncated, damaged or followed by something") {
  TempFolder folder;
  const std::string good = gzip(noise(2000));
  for (const size_t kept : {size_t{2}, size_t{9}, size_t{10}, good.size() / 2, good.size() - 8, good.size() - 1}) {
    const std::string path = folder.write("cut", good.substr(0, kept));
    CHECK(mentions(error_of([&] { read_in_pieces(path, 4096); }), "gzip data is truncated at offset " + std::to_string(kept)));
  }
  std::string damaged = good;
  damaged[good.size() / 2] ^= 0x10;
  const std::string bad = folder.write("damaged", damaged);
  CHECK(mentions(error_of([&] { read_in_pieces(bad, 4096); }), "gzip data is corrupt near offset "));
  const std::string longer = folder.write("longer", good + "tail");
  CHECK(mentions(error_of([&] { read_in_pieces(longer, 4096); }), "trailing bytes at offset " + std::to_string(good.size())));
}
