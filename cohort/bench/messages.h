#pragma once
// What a message between two processes costs (world/messages/), beside a plain socket.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

struct MessageWay {
  std::string name;
  bool has_port, is_kept_from_others, is_plain_socket;
};
/// TCP with and without encryption, between processes of one host without a port, and a plain TCP socket.
const std::vector<MessageWay>& message_ways();

struct MessageTimes {
  double round_trip_seconds = 0;      ///< Of small_bytes there and back.
  double large_bytes_per_second = 0;  ///< Messages of large_bytes one way, one after the other.
};
struct BenchMessagesOptions {
  size_t small_bytes = 64, large_bytes = size_t{8} << 20;
  int num_small = 500, num_large = 16;
};
/// Between two threads of this process over its loopback device; each has its own context of libzmq's.
MessageTimes bench_messages(const MessageWay& way, const BenchMessagesOptions& options);

}  // namespace cohort
