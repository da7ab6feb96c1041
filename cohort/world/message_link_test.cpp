#include "cohort/world/message_link.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

using namespace cohort;

namespace {

struct Pair {
  MessageLink a, b;
};
Pair make_pair_of_links() {
  LinkPairs pairs(1);
  LinkPairs::Ends ends = pairs.take(0);
  return {std::move(ends.to_workers[0]), std::move(ends.to_coordinator)};
}

/// A connection that is no rank's.
UniqueDescriptor stranger(const std::string& ticket) {
  const auto parts = split(ticket, ' ');
  UniqueDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::inet_addr(parts[0].c_str());
  address.sin_port = htons(static_cast<uint16_t>(*parse_integer(parts[1])));
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return socket;
}

}  // namespace

TEST_CASE("messages arrive whole and in order, and receive(0) does not wait") {
  Pair pair = make_pair_of_links();
  CHECK_FALSE(pair.a.receive(0));
  pair.b.send("one");
  pair.b.send("");
  pair.b.send("three");
  CHECK(pair.a.receive(1) == "one");
  CHECK(pair.a.receive(0) == "");
  CHECK(pair.a.receive(0) == "three");
  CHECK_FALSE(pair.a.receive(0.01));
}

TEST_CASE("a message larger than the socket's buffer") {
  Pair pair = make_pair_of_links();
  const std::string large(5'000'000, 'x');
  std::thread sender([&] { pair.a.send(large); });
  const auto got = pair.b.receive(30);
  sender.join();
  REQUIRE(got);
  CHECK(*got == large);
}

TEST_CASE("what was sent before the peer went is heard, then its end") {
  Pair pair = make_pair_of_links();
  pair.b.send("last words");
  pair.b.close();
  CHECK(pair.a.receive(1) == "last words");
  CHECK_THROWS_AS(pair.a.receive(1), Error);
  CHECK_THROWS_AS(pair.a.send("too late"), Error);
}

TEST_CASE("a peer that does not read is given up") {
  Pair pair = make_pair_of_links();
  CHECK_THROWS_AS(pair.a.send(std::string(5'000'000, 'x'), 0.05), Error);
  CHECK_FALSE(pair.a);  // Half a line went out.
}

TEST_CASE("newlines and endless lines are refused") {
  Pair pair = make_pair_of_links();
  CHECK_THROWS_AS(pair.a.send("two\nlines"), Error);
  pair.b.limit_message_bytes(1000);
  std::thread sender([&] {
    try {
      pair.a.send(std::string(200'000, 'x'), 1);
    } catch (const Error&) {
    }
  });
  CHECK_THROWS_AS(pair.b.receive(5), Error);
  pair.b.close();
  sender.join();
}

TEST_CASE("every rank has its own pair") {
  LinkPairs pairs(3);
  LinkPairs::Ends ends = pairs.take(0);
  REQUIRE(ends.to_workers.size() == 3);
  ends.to_coordinator.send("mine");
  CHECK(ends.to_workers[0].receive(1) == "mine");
  CHECK_THROWS_AS(ends.to_workers[1].receive(1), Error);  // Its other end was closed here; in a forked rank it would be open.
}

TEST_CASE("ranks come in over TCP with the token; others are dropped") {
  LinkListener listener("127.0.0.1");
  const std::string ticket = listener.ticket();
  const UniqueDescriptor silent = stranger(ticket);
  const UniqueDescriptor liar = stranger(ticket);
  const std::string greeting = "00000000000000000000000000000000 1\n";
  REQUIRE(::send(liar.get(), greeting.data(), greeting.size(), 0) == static_cast<ssize_t>(greeting.size()));
  const UniqueDescriptor flood = stranger(ticket);
  const std::string noise(5000, 'x');
  REQUIRE(::send(flood.get(), noise.data(), noise.size(), MSG_NOSIGNAL) > 0);
  auto ranks = std::async(std::launch::async, [&] {
    std::vector<MessageLink> links;
    links.push_back(connect_link(ticket, 2, 10));
    links.push_back(connect_link(ticket, 1, 10));
    links[0].send("from 2");
    links[1].send("from 1");
    return links;
  });
  std::vector<MessageLink> links = listener.accept_ranks(3, 10);
  const std::vector<MessageLink> others = ranks.get();
  REQUIRE(links.size() == 2);
  CHECK(links[0].peer() == "rank 1");
  CHECK(links[0].receive(5) == "from 1");
  CHECK(links[1].receive(5) == "from 2");
  CHECK_THROWS_AS(connect_link(ticket, 1, 1), Error);  // It listens no more.
}

TEST_CASE("ranks that do not come are named") {
  LinkListener listener("127.0.0.1");
  const MessageLink one = connect_link(listener.ticket(), 2, 10);
  try {
    listener.accept_ranks(4, 0.3);
    FAIL("it should have thrown");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("rank(s) 1 3 did not connect") != std::string::npos);
  }
  CHECK_THROWS_AS(LinkListener("192.0.2.1"), Error);  // Not an address of this host.
}

TEST_CASE("tickets differ") { CHECK(LinkListener("127.0.0.1").ticket().substr(16) != LinkListener("127.0.0.1").ticket().substr(16)); }
