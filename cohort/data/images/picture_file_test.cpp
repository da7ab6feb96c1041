#include "cohort/data/images/picture_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cmath>
#include <string>
#include <vector>

#include "cohort/base/random.h"
#include "tests/support/data_files.h"
#include "tests/support/mutation.h"
#include "tests/support/pictures.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

std::string refusal_of(const std::string& file) {
  return error_of([&] { decode_picture(bytes_of(file), "a.png"); });
}

/// A row of `bytes` bytes from the counter.
std::vector<uint8_t> noise(int y, int bytes) {
  std::vector<uint8_t> row;
  for (int i = 0; i < bytes; ++i) row.push_back(static_cast<uint8_t>(random_bits(7, y, i)));
  return row;
}

/// The same bytes with another number at `at`, most significant byte first.
std::string with_number(std::string file, size_t at, uint32_t number) {
  for (size_t i = 0; i < 4; ++i) file[at + i] = static_cast<char>(number >> (24 - 8 * i));
  return file;
}

std::string with_crc_of_head(std::string png) {
  const auto crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(png.data()) + 12, 17));
  return with_number(std::move(png), 29, crc);
}

}  // namespace

TEST_CASE("picture file: PNG in every form is the same pixels") {
  const auto row = [](int y) { return noise(y, 5 * 3); };
  for (const bool interlaced : {false, true}) {
    const Picture picture = decode_picture(bytes_of(png_file(5, 4, {.interlaced = interlaced}, row)), "a.png");
    CHECK(picture.size == PictureSize{3, 4, 5});
    for (int c = 0; c < 3; ++c)
      for (int y = 0; y < 4; ++y)
        for (int x = 0; x < 5; ++x)
          REQUIRE(picture.bytes[static_cast<size_t>((c * 4 + y) * 5 + x)] == row(y)[static_cast<size_t>(3 * x + c)]);
  }
  const Picture grey = decode_picture(
      bytes_of(png_file(8, 1, {.type = PNG_COLOR_TYPE_GRAY, .bits = 1}, [](int) { return std::vector<uint8_t>{0xa5}; })), "a");
  CHECK(grey.size == PictureSize{1, 1, 8});
  CHECK(grey.bytes == std::vector<uint8_t>{255, 0, 255, 0, 0, 255, 0, 255});
  // 16 bits become the nearest 8: 0x0180 is 384 / 257 = 1.49.
  const Picture deep = decode_picture(
      bytes_of(png_file(2, 1, {.type = PNG_COLOR_TYPE_GRAY, .bits = 16}, [](int) { return std::vector<uint8_t>{1, 0x80, 1, 0x82}; })), "a");
  CHECK(deep.bytes == std::vector<uint8_t>{1, 2});
  const Picture colours =
      decode_picture(bytes_of(png_file(2, 1, {.type = PNG_COLOR_TYPE_PALETTE}, [](int) { return std::vector<uint8_t>{3, 100}; })), "a");
  CHECK(colours.size.channels == 3);
  CHECK(colours.bytes == std::vector<uint8_t>{3, 100, 6, 200, 252, 155});
}

TEST_CASE("picture file: an alpha channel goes where it is opaque, and is refused where it is not") {
  const auto rgba = [](uint8_t alpha) {
    return png_file(2, 2, {.type = PNG_COLOR_TYPE_RGBA},
                    [=](int y) { return std::vector<uint8_t>{1, 2, 3, 255, 4, 5, 6, y == 1 ? alpha : uint8_t{255}}; });
  };
  CHECK(decode_picture(bytes_of(rgba(255)), "a").bytes == std::vector<uint8_t>{1, 4, 1, 4, 2, 5, 2, 5, 3, 6, 3, 6});
  CHECK(mentions(refusal_of(rgba(254)), "a.png: this PNG is transparent at pixel 1, 1; put it on a background"));
  const auto masked = [](uint8_t value) {
    return png_file(2, 1, {.type = PNG_COLOR_TYPE_PALETTE, .has_mask = true}, [=](int) { return std::vector<uint8_t>{7, value}; });
  };
  CHECK(decode_picture(bytes_of(masked(9)), "a").size.channels == 3);
  CHECK(mentions(refusal_of(masked(0)), "is transparent at pixel 1, 0"));
}

TEST_CASE("picture file: JPEG, grey and in colours, baseline and progressive; CMYK is refused by name") {
  const auto row = [](int y) {
    std::vector<uint8_t> out;
    for (int x = 0; x < 16; ++x)
      for (int c = 0; c < 3; ++c) out.push_back(static_cast<uint8_t>(8 * x + 4 * y + 20 * c));
    return out;
  };
  for (const bool progressive : {false, true}) {
    const Picture picture = decode_picture(bytes_of(jpeg_file(16, 16, {.progressive = progressive}, row)), "a.jpg");
    REQUIRE(picture.size == PictureSize{3, 16, 16});
    for (int x = 0; x < 16; ++x) CHECK(std::abs(int{picture.bytes[static_cast<size_t>(x)]} - 8 * x) < 16);
  }
  const auto first = [&](int y) { return std::vector<uint8_t>(16, static_cast<uint8_t>(10 * y)); };
  CHECK(decode_picture(bytes_of(jpeg_file(16, 16, {JCS_GRAYSCALE, 1}, first)), "a").size == PictureSize{1, 16, 16});
  const std::string cmyk = jpeg_file(8, 8, {JCS_CMYK, 4}, [](int) { return std::vector<uint8_t>(32, 9); });
  CHECK(mentions(refusal_of(cmyk), "a.png: this JPEG has the four colours of print (CMYK); convert it to RGB"));
}

TEST_CASE("picture file: empty, cut and of other formats") {
  const std::string png = png_file(9, 9, {}, [](int y) { return noise(y, 27); });
  const std::string jpeg = jpeg_file(40, 40, {}, [](int y) { return noise(y, 120); });
  CHECK(refusal_of("") == "a.png is empty: expected a JPEG or PNG file");
  CHECK(refusal_of("GIF89a....") == "a.png is a GIF (10 bytes): expected a JPEG or PNG file");
  CHECK(mentions(refusal_of("<html>"), "does not begin as a picture does"));
  for (size_t length = 1; length < png.size(); ++length) REQUIRE(refusal_of(png.substr(0, length)) != "");
  for (size_t length = 1; length + 2 < jpeg.size(); ++length) REQUIRE(refusal_of(jpeg.substr(0, length)) != "");
  CHECK(mentions(refusal_of(jpeg.substr(0, jpeg.size() / 2)), "this JPEG cannot be decoded (Premature end of JPEG file)"));
}

TEST_CASE("picture file: heads that lie are refused before memory is taken") {
  const std::string png = png_file(9, 9, {}, [](int y) { return noise(y, 27); });
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  CHECK(mentions(refusal_of(with_crc_of_head(with_number(with_number(png, 16, 40000), 20, 30000))),
                 "has 40000 x 30000 pixels, expected sides of 1 to 65536"));
  CHECK(mentions(refusal_of(with_crc_of_head(with_number(with_number(png, 16, 8000), 20, 8000))),
                 "says that it has 8000 x 8000 pixels, more than its bytes can hold"));
  std::string jpeg = jpeg_file(16, 16, {}, [](int y) { return noise(y, 48); });
  const size_t frame = jpeg.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  for (const size_t at : {frame + 5, frame + 7}) jpeg[at] = static_cast<char>(0x1f), jpeg[at + 1] = static_cast<char>(0xff);
  CHECK(mentions(refusal_of(jpeg), "says that it has 8191 x 8191 pixels, more than its bytes can hold"));
  for (const size_t at : {frame + 5, frame + 7}) jpeg[at] = static_cast<char>(0xff), jpeg[at + 1] = static_cast<char>(0xff);
  CHECK(mentions(refusal_of(jpeg), "Maximum supported image dimension is 65500 pixels"));
  getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 32 << 10);  // KiB; 8000 x 8000 pixels alone are 190 MB.
}

TEST_CASE("picture file: channels that are asked for") {
  const Picture colours{{3, 1, 2}, {255, 10, 0, 20, 0, 30}};
  CHECK(with_channels(colours, 1).bytes == std::vector<uint8_t>{76, 18});  // 76.2, 18.15
  CHECK(with_channels({{1, 1, 2}, {7, 8}}, 3).bytes == std::vector<uint8_t>{7, 8, 7, 8, 7, 8});
  CHECK(with_channels(colours, 3).bytes == colours.bytes);
}

TEST_CASE("mutation: a picture that is damaged is refused with one line, or has the bytes that it says; memory stays") {
  const std::vector<std::string> files = {
      png_file(24, 17, {}, [](int y) { return noise(y, 72); }),
      png_file(24, 17, {.type = PNG_COLOR_TYPE_PALETTE, .bits = 4, .interlaced = true}, [](int y) { return noise(y, 12); }),
      png_file(9, 9, {.type = PNG_COLOR_TYPE_GRAY_ALPHA, .bits = 16}, [](int y) { return noise(y, 36); }),
      jpeg_file(24, 17, {}, [](int y) { return noise(y, 72); }),
      jpeg_file(24, 17, {.progressive = true}, [](int y) { return noise(y, 72); }),
      jpeg_file(16, 16, {JCS_GRAYSCALE, 1}, [](int y) { return noise(y, 16); })};
  int64_t decoded = 0, refused = 0;
  for (uint64_t seed = 1; seed <= mutation_count(3000); ++seed) {
    std::string file = mutated(files[seed % files.size()], seed);
    // Half of the damaged PNG files are made to pass their checksums' guard, or nothing behind it would be reached.
    if (seed / files.size() % 2 == 0 && file.size() > 33 && file.starts_with("\x89PNG")) file = with_crc_of_head(file);
    ++(succeeds_or_is_refused([&] {
      const PictureSize size = picture_size(bytes_of(file), "m");
      const Picture picture = decode_picture(bytes_of(file), "m");
      REQUIRE(picture.size == size);
      REQUIRE(std::ssize(picture.bytes) == size.num_bytes());
    })
           ? decoded
           : refused);
  }
  CHECK(decoded > 50);
  CHECK(refused > 1000);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < 1 << 20);  // KiB
}
