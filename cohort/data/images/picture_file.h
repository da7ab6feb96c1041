#pragma once
// One picture of a JPEG or PNG file, decoded.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cohort {

struct PictureSize {
  int64_t channels = 0;  ///< 1 where the file is grey, else 3.
  int64_t height = 0, width = 0;

  int64_t num_bytes() const { return channels * height * width; }
  bool operator==(const PictureSize&) const = default;
};

struct Picture {
  PictureSize size;
  std::vector<uint8_t> bytes;  ///< Channel by channel, rows from the top.
};

/// More pixels are refused before memory is taken for them.
inline constexpr int64_t kMaxPicturePixels = INT64_C(1) << 26;

/// What the head of a file says. Errors as decode_picture's, but for what only the rest shows.
PictureSize picture_size(std::span<const uint8_t> file, const std::string& what);
/// Grey or RGB, 8 bits. Palettes become RGB, fewer or more bits 8, an alpha channel goes where it is opaque everywhere. Error(kBadInput)
/// that names `what` for a file that is empty, truncated, damaged, of another format, in CMYK, transparent anywhere, or too large. Any
/// thread.
Picture decode_picture(std::span<const uint8_t> file, const std::string& what);
/// The same picture with `channels` of them: the luma of Rec. 601 in whole numbers, (299 R + 587 G + 114 B + 500) / 1000, or grey three
/// times.
Picture with_channels(Picture picture, int64_t channels);

/// The bytes of a file of pictures. Error(kBadInput) where it cannot be read, or has more than 1 GiB.
std::vector<uint8_t> read_picture_file(const std::string& path);

}  // namespace cohort
