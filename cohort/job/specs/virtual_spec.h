#pragma once
// `--virtual`: workers, speeds and links that one process simulates (model: docs/algorithms/asynchronous.md). Torch-free.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cohort {

struct VirtualSpec {
  int workers = 0;
  double speed_sigma = 0;                    ///< Speeds are lognormal with median 1 and this sigma; 0: equal.
  std::vector<std::pair<int, double>> slow;  ///< Workers and factors by which they are slower.
  double latency_seconds = 0;                ///< Per message,
  double bytes_per_second = 0;               ///< and the bandwidth of the server's link, each way; 0: infinite.
  double compute_seconds = 0;                ///< Forward and backward of a full work item at speed 1; 0: measured.
  double mtbf_seconds = 0;                   ///< Mean time between failures of a worker; 0: none.
  double restart_seconds = 30;               ///< Until it restarts.
  double pause_every_seconds = 0;            ///< Mean computing time between pauses of a worker; 0: none.
  double pause_seconds = 0;                  ///< Length of a pause.
  bool operator==(const VirtualSpec&) const = default;
};

/// workers=64,speed=lognormal:0.3,link=1ms:1Gbit,mtbf=600,restart=30,compute=0.01,pauses=10:2,slow=3:4.
/// Error(kBadInput) otherwise.
VirtualSpec parse_virtual(const std::string& text);
/// The reverse of parse_virtual(); numbers have three digits.
std::string to_text(const VirtualSpec& spec);
/// `text` with compute=SECONDS at its end.
std::string with_compute_seconds(const std::string& text, double seconds);

}  // namespace cohort
