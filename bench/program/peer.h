#pragma once
// PyTorch's side of a benchmark: the scripts of bench/peers, run as a user would.

#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

/// The folder with `script` and workloads.py: --peers, else bench/peers of the current folder. "" if it does not exist or none is
/// wanted. Error(kBadInput) for a folder without it.
std::string peers_folder(const Arguments& arguments, const std::string& script);
/// --python, else that of .venv, else python3.
std::string peers_python(const Arguments& arguments);

struct PeerStep {
  double seconds = -1;
  std::string failure;  ///< If there are no seconds: "did not run with python3", "did not end within 63 s", "printed ...".
};

/// Seconds of a step as `script` in `folder` prints them ("step_ms"), started with `workers` ranks and these words. It is ended after a
/// minute and 30 times `expected_seconds`, for Gloo itself would wait for half an hour.
PeerStep peer_step(const std::string& folder, const std::string& python, int workers, const std::string& script,
                   const std::vector<std::string>& words, double expected_seconds);

}  // namespace cohort
