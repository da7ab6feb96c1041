#pragma once
// Sizes at which shared memory changes its way of moving data.

#include <cstddef>
#include <string>

namespace cohort {

class ShmTransport;

struct ShmTuning {
  size_t flat_bytes = 4 << 10;    ///< Private inputs up to so much are copied and read by all; larger ones go through tiles.
  size_t direct_bytes = 1 << 10;  ///< Shared inputs up to so much are copied and read by all; larger ones are read and written in place.
  size_t tile_bytes = 512 << 10;  ///< Of a tile; at most ShmBoard::kTileBytes.
  bool measured = false;

  /// "copied up to 4.0 KiB (in shared memory up to 1.0 KiB), tiles of 512.0 KiB, measured".
  std::string text() const;
};

/// Measures on this machine with this group: collective, at most some `most_seconds` of rank 0 (enough where nothing else runs). Rank 0's
/// figures count for all; the transport uses them from then on. Where ranks have to share cores nothing is measured, since figures would be
/// those of the scheduler: the defaults stay. No call may be under way.
ShmTuning tune(ShmTransport& transport, double most_seconds = 6e-3);

}  // namespace cohort
