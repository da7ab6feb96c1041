#pragma once
// What --virtual says: workers, speeds and links that one process makes up (docs/algorithms/asynchronous.md has the model). Torch-free.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cohort {

struct VirtualSpec {
  int workers = 0;
  double speed_sigma = 0;                    ///< Speeds are lognormal with median 1 and this sigma; 0: all alike.
  std::vector<std::pair<int, double>> slow;  ///< Workers that are FACTOR times slower than that.
  double latency_seconds = 0;                ///< Of a message,
  double bytes_per_second = 0;               ///< and the rate of the server's link, each way; 0: endless.
  double compute_seconds = 0;                ///< Forward and backward of a full work item at speed 1; 0: measured here.
  double mtbf_seconds = 0;                   ///< Mean time until a worker dies; 0: never.
  double restart_seconds = 30;               ///< Until it is back.
  double pause_every_seconds = 0;            ///< Mean computing time between pauses of a worker; 0: none.
  double pause_seconds = 0;                  ///< Length of each.
  bool operator==(const VirtualSpec&) const = default;
};

/// workers=64,speed=lognormal:0.3,link=1ms:1Gbit,mtbf=600,restart=30,compute=0.01,pauses=10:2,slow=3:4.
/// Error(kBadInput) for anything else, in one line.
VirtualSpec parse_virtual(const std::string& text);
/// As parse_virtual() reads it; numbers to three digits.
std::string to_text(const VirtualSpec& spec);
/// `text` with compute=SECONDS at its end.
std::string with_compute_seconds(const std::string& text, double seconds);

}  // namespace cohort
