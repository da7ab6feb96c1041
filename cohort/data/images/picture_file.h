#pragma once
// Decodes JPEG and PNG files.

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

/// Reads the size from the file's header only. Errors: see decode_picture().
PictureSize picture_size(std::span<const uint8_t> file, const std::string& what);
/// Decodes to 8 bits grey or RGB; palettes become RGB, an opaque alpha channel is dropped. Error(kBadInput) that names `what` for a file
/// that is invalid, of another format, in CMYK, transparent anywhere, or too large. Thread-safe.
Picture decode_picture(std::span<const uint8_t> file, const std::string& what);
/// Converts to `channels` channels: the luma of Rec. 601 in integers, (299 R + 587 G + 114 B + 500) / 1000, or grey three times.
Picture with_channels(Picture picture, int64_t channels);

/// The bytes of a picture file. Error(kBadInput) where it cannot be read, or has more than 1 GiB.
std::vector<uint8_t> read_picture_file(const std::string& path);

}  // namespace cohort
