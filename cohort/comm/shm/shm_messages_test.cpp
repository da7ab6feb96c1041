#include "cohort/comm/shm/shm_messages.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "tests/support/shm_ranks.h"

using namespace cohort;

namespace {

std::vector<uint8_t> bytes_of(size_t length, int salt) {
  std::vector<uint8_t> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 251 + static_cast<size_t>(salt));
  return bytes;
}

void require(bool condition, const char* what) {
  if (!condition) fail(ErrorCode::kFailed, what);
}

void barrier(ShmTransport& transport) {
  Call call;
  transport.finish(call);
}

}  // namespace

TEST_CASE("messages of any size arrive whole, from any kind of memory") {
  for (const bool shared : {false, true})
    run_shm_threads(2, [&](ShmTransport& transport) {
      at::Tensor memory = transport.allocate(2 << 20, at::kByte);
      for (const size_t length : {0u, 1u, 63u, 64u, 32703u, 32704u, 32705u, 100003u, 1u << 20}) {
        std::vector<uint8_t> data = bytes_of(length, 3), came(length + 1, 9);
        if (transport.rank() == 0) {
          if (shared) std::copy(data.begin(), data.end(), memory.data_ptr<uint8_t>());
          transport.send(shared ? memory.data_ptr() : data.data(), length, 1, 8)->wait();
        } else {
          const auto message = transport.receive(came.data(), length, 0, 8);
          message->wait();
          require(message->source() == 0 && came[length] == 9, "source, or bytes after the message");
          came.resize(length);
          require(came == data, "bytes");
        }
      }
    });
}

TEST_CASE("a message waits for its tag while others pass it") {
  run_shm_threads(2, [](ShmTransport& transport) {
    std::vector<uint8_t> large = bytes_of(1 << 20, 1), small = bytes_of(100, 2), first = bytes_of(10, 3), second = bytes_of(10, 4);
    if (transport.rank() == 0) {
      std::vector<std::shared_ptr<Message>> sent{transport.send(large.data(), large.size(), 1, 1), transport.send(small.data(), 100, 1, 2),
                                                 transport.send(first.data(), 10, 1, 3), transport.send(second.data(), 10, 1, 3)};
      for (const auto& message : sent) message->wait();
    } else {
      std::vector<uint8_t> a(1 << 20), b(100), c(10), d(10);
      transport.receive(b.data(), 100, 0, 2)->wait();
      const auto one = transport.receive(c.data(), 10, 0, 3), other = transport.receive(d.data(), 10, 0, 3);
      other->wait();
      require(one->done(), "messages of one tag are received in order");
      transport.receive(a.data(), a.size(), 0, 1)->wait();
      require(a == large && b == small && c == first && d == second, "bytes");
    }
  });
}

TEST_CASE("sends go on while the sender waits in a collective") {
  run_shm_threads(3, [](ShmTransport& transport) {
    std::vector<uint8_t> data = bytes_of(10 << 20, 5), came(10 << 20);
    std::shared_ptr<Message> sent;
    if (transport.rank() == 0) sent = transport.send(data.data(), data.size(), 1, 0);
    if (transport.rank() == 1) transport.receive(came.data(), came.size(), 0, 0)->wait();
    barrier(transport);
    if (sent) require(sent->done(), "the barrier is left after the message was taken");
    if (transport.rank() == 1) require(came == data, "bytes");
  });
}

TEST_CASE("ranks that send before they receive do not wait for each other") {
  run_shm_threads(2, [](ShmTransport& transport) {
    const int peer = 1 - transport.rank();
    std::vector<uint8_t> data = bytes_of(3 << 20, transport.rank()), came(3 << 20);
    transport.send(data.data(), data.size(), peer, 0)->wait();
    transport.receive(came.data(), came.size(), peer, 0)->wait();
    require(came == bytes_of(3 << 20, peer), "bytes");
  });
}

TEST_CASE("a rank sends to itself") {
  run_shm_threads(1, [](ShmTransport& transport) {
    std::vector<uint8_t> data = bytes_of(100000, 1), one(100000), two(100000);
    const auto before = transport.receive(one.data(), one.size(), 0, 1);
    require(!before->done(), "nothing was sent");
    require(transport.send(data.data(), data.size(), 0, 1)->done() && before->done(), "received before sent");
    require(transport.send(data.data(), data.size(), 0, 2)->done(), "sent");
    transport.receive(two.data(), two.size(), -1, 2)->wait();
    require(one == data && two == data, "bytes");
  });
}

TEST_CASE("a storm of messages between all pairs, from anybody") {
  constexpr int kMessages = 60;
  run_shm_threads(4, [](ShmTransport& transport) {
    const int rank = transport.rank(), size = transport.size();
    std::vector<std::vector<uint8_t>> kept;
    std::vector<std::shared_ptr<Message>> sent;
    const auto length = [](int from, int number) { return static_cast<size_t>((from * 7919 + number * 4001) % 50000); };
    for (int number = 0; number < kMessages; ++number)
      for (int peer = 0; peer < size; ++peer) {
        kept.push_back(bytes_of(length(rank, number), rank + number));
        // All send the same length on tag 1000, so that it may be received from any rank.
        sent.push_back(transport.send(kept.back().data(), kept.back().size(), peer, number));
        kept.push_back({static_cast<uint8_t>(rank)});
        sent.push_back(transport.send(kept.back().data(), 1, peer, 1000));
      }
    std::vector<int> from_anybody(static_cast<size_t>(size));
    for (int number = kMessages; number-- > 0;)
      for (int peer = 0; peer < size; ++peer) {
        std::vector<uint8_t> came(length(peer, number));
        transport.receive(came.data(), came.size(), peer, number)->wait();
        require(came == bytes_of(came.size(), peer + number), "bytes");
        uint8_t text = 99;
        const auto message = transport.receive(&text, 1, -1, 1000);
        message->wait();
        require(message->source() == text, "source");
        ++from_anybody[text];
      }
    for (const int count : from_anybody) require(count == kMessages, "each message once");
    for (const auto& message : sent) message->wait();
    barrier(transport);
  });
}

TEST_CASE("a message of another size, and one that never comes, are errors with names") {
  run_shm_threads(
      2,
      [](ShmTransport& transport) {
        std::vector<uint8_t> data(100), came(50, 7);
        if (transport.rank() == 0) transport.send(data.data(), 100, 1, 4)->wait();
        const auto error_of = [&](const std::shared_ptr<Message>& message) -> std::string {
          try {
            message->wait();
          } catch (const std::runtime_error& error) {
            return error.what();
          }
          return "";
        };
        if (transport.rank() == 1) {
          require(error_of(transport.receive(came.data(), 50, 0, 4)) == "rank 0 sent 100 bytes with tag 4, rank 1 expects 50", "size");
          require(came == std::vector<uint8_t>(50, 7), "memory of a wrong message is left alone");
          require(error_of(transport.receive(came.data(), 50, 0, 5)) == "rank 0 did not send a message with tag 5 within 0.05 s", "never");
        }
        bool refused = false;
        try {
          transport.send(data.data(), 1, 2, 0);
        } catch (const Error&) {
          refused = true;
        }
        require(refused, "a rank that is none");
      },
      {}, 0.05);
}
