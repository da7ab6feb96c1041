#include "cohort/world/messages/message_server.h"

#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <memory>

#include "tests/support/message_servers.h"

using namespace cohort;
using Kind = PeerEvent::Kind;

TEST_CASE("messages arrive whole and in order, both ways, at a port and without one") {
  for (const bool with_port : {true, false}) {
    MessageListener listener = with_port ? MessageListener(kTestSecret) : MessageListener::for_forks();
    CHECK(listener.endpoint().starts_with(with_port ? "tcp://127.0.0.1:" : "ipc://@cohort-"));
    const std::string secret = listener.secret();
    EchoServer server(std::move(listener));
    MessageClient client = client_of(server.endpoint(), "rank 1", secret);
    client.connect(kTestPatience);
    CHECK(client.is_connected());
    CHECK_FALSE(client.receive(0));
    const PeerMessage large{std::string(3'000'000, 'x'), std::string(9'000'001, '\0')};
    client.send({"one", ""});
    client.send({});
    client.send(large);
    client.send({"", std::string("\0\n", 2)});
    CHECK(client.receive(kTestPatience)->text == "one");
    CHECK(client.receive(kTestPatience)->num_bytes() == 0);
    const auto got = client.receive(kTestPatience);
    REQUIRE(got);
    CHECK((got->text == large.text && got->data == large.data));
    CHECK(client.receive(kTestPatience)->data == std::string("\0\n", 2));
    CHECK_FALSE(client.receive(0.01));
  }
}

TEST_CASE("a server knows its peers by name, and what one sent before it went comes before its loss") {
  MessageServer server{MessageListener(kTestSecret)};
  std::thread ranks([endpoint = server.endpoint()] {
    MessageClient two = client_of(endpoint, "rank 2"), one = client_of(endpoint, "rank 1");
    two.connect(kTestPatience);
    one.connect(kTestPatience);
    for (int i = 0; i < 100; ++i) one.send({std::to_string(i), std::string(100'000, 'x')});
    one.send({"last words", ""});
    one.close();
    two.receive(kTestPatience);
  });
  CHECK(next_event(server, Kind::kJoined).name == "rank 2");
  CHECK(next_event(server, Kind::kJoined).name == "rank 1");
  CHECK(server.num_peers() == 2);
  for (int i = 0; i < 100; ++i) REQUIRE(next_event(server, Kind::kMessage).message.text == std::to_string(i));
  const auto last = server.poll(kTestPatience);
  REQUIRE(last);
  CHECK(last->message.text == "last words");
  const PeerEvent lost = next_event(server, Kind::kLost);
  CHECK(lost.why == "rank 1 is gone");
  CHECK(lost.peer == last->peer);
  CHECK_FALSE(server.send(lost.peer, {"too late", ""}));
  CHECK(server.waiting_bytes(lost.peer) == 0);
  CHECK(server.num_peers() == 1);
  server.send(1, {"enough", ""});
  server.poll(0);
  ranks.join();
}

TEST_CASE("a peer that goes while the server looks away is lost after all that it sent") {
  MessageServer server{MessageListener(kTestSecret)};
  constexpr int kMessages = 2000;  // More than libzmq queues: the rest is in the sockets when the connection ends.
  for (int visit = 0; visit < 20; ++visit) {
    std::thread rank([endpoint = server.endpoint()] {
      MessageClient client = client_of(endpoint);
      client.connect(kTestPatience);
      for (int i = 0; i < kMessages; ++i) client.send({std::to_string(i), ""});
    });
    next_event(server, Kind::kJoined);
    rank.join();
    int heard = 0;
    for (auto event = server.poll(kTestPatience); event && event->kind == Kind::kMessage; event = server.poll(kTestPatience)) ++heard;
    REQUIRE(heard == kMessages);
  }
}

TEST_CASE("a killed process is lost at once") {
  MessageListener listener = MessageListener::for_forks();
  const std::string endpoint = listener.endpoint(), secret = listener.secret();
  const pid_t pid = ::fork();
  if (pid == 0) {
    listener.close();
    try {
      MessageClient client = client_of(endpoint, "rank 1", secret);
      client.connect(kTestPatience);
      client.send({"here", ""});
      client.receive(kTestPatience);
    } catch (const std::exception&) {
    }
    ::_exit(0);
  }
  MessageServer server{std::move(listener)};
  CHECK(next_event(server, Kind::kMessage).message.text == "here");
  ::kill(pid, SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(next_event(server, Kind::kLost).name == "rank 1");
  CHECK(seconds_since(begin) < 10);
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("who is stopped is lost after three heartbeats, and comes back") {
  MessageListener listener = MessageListener::for_forks();
  const std::string endpoint = listener.endpoint(), secret = listener.secret();
  const pid_t pid = ::fork();
  if (pid == 0) {
    listener.close();
    for (int visit = 0; visit < 2; ++visit) {
      try {
        MessageClient client = client_of(endpoint, "rank 1", secret);
        client.connect(kTestPatience);
        client.receive(kTestPatience);
      } catch (const std::exception&) {
      }
    }
    ::_exit(0);
  }
  MessageServer server{std::move(listener), {.heartbeat_seconds = 0.25}};
  const PeerId first = next_event(server, Kind::kJoined).peer;
  CHECK_FALSE(server.poll(0.9));  // It answers, although its own thread only waits.
  ::kill(pid, SIGSTOP);
  CHECK(next_event(server, Kind::kLost).peer == first);
  ::kill(pid, SIGCONT);
  const PeerEvent again = next_event(server, Kind::kJoined);
  CHECK(again.name == "rank 1");
  CHECK(again.peer != first);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("a server that starts again is found again, and hears nothing that was meant for the last one") {
  auto server = std::make_unique<EchoServer>(MessageListener(kTestSecret));
  const int port = server->port();
  MessageClient client = client_of(server->endpoint());
  client.connect(kTestPatience);
  client.send({"first", ""});
  CHECK(client.receive(kTestPatience)->text == "first");
  server.reset();
  CHECK_THROWS_WITH_AS(client.receive(kTestPatience), "rank 0 is gone", Error);
  CHECK_FALSE(client.is_connected());
  CHECK_THROWS_WITH_AS(client.send({"lost", ""}), "rank 0 is gone", Error);
  {
    const MessageListener silent(kTestSecret, "127.0.0.1", port);
    pollfd knock{silent.descriptor(), POLLIN, 0};
    CHECK(::poll(&knock, 1, 300) == 0);  // libzmq does not come back by itself.
  }
  bool has_knocked = false;
  std::thread later([&] {
    MessageListener listener(kTestSecret, "127.0.0.1", port);
    pollfd knock{listener.descriptor(), POLLIN, 0};
    has_knocked = ::poll(&knock, 1, 10'000) == 1;
    server = std::make_unique<EchoServer>(std::move(listener));
  });
  client.connect(kTestPatience);  // While nobody is there yet.
  later.join();
  CHECK(has_knocked);
  client.send({"second", ""});
  CHECK(client.receive(kTestPatience)->text == "second");
  CHECK(server->num_heard() == 1);
}

TEST_CASE("what a server said before it went is heard, then its end") {
  auto server = std::make_unique<MessageServer>(MessageListener(kTestSecret));
  MessageClient client = client_of(server->endpoint());
  auto connected = std::async(std::launch::async, [&] { client.connect(kTestPatience); });
  const PeerId peer = next_event(*server, Kind::kJoined).peer;
  connected.get();
  for (int i = 0; i < 50; ++i) server->send(peer, {std::to_string(i), std::string(50'000, 'x')});
  server->send(peer, {"the end", ""});
  server.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (int i = 0; i < 50; ++i) REQUIRE(client.receive(kTestPatience)->text == std::to_string(i));
  CHECK(client.receive(kTestPatience)->text == "the end");
  CHECK_THROWS_AS(client.receive(kTestPatience), Error);
}

TEST_CASE("a server does not wait for a peer that takes nothing, and what waits for it is bounded") {
  MessageServer server(MessageListener(kTestSecret), {.max_waiting_bytes = 40'000'000});
  MessageClient lazy = client_of(server.endpoint(), "rank 1"), eager = client_of(server.endpoint(), "rank 2");
  auto connected = std::async(std::launch::async, [&] { lazy.connect(kTestPatience), eager.connect(kTestPatience); });
  const PeerId lazy_peer = next_event(server, Kind::kJoined).peer, eager_peer = next_event(server, Kind::kJoined).peer;
  connected.get();
  const auto message = std::make_shared<const PeerMessage>(PeerMessage{"", std::string(10'000'000, 'x')});
  std::string why;
  for (int i = 0; i < 20 && why.empty(); ++i) try {
      server.send(lazy_peer, message);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kEnvironment);
      why = error.what();
    }
  CHECK(why.starts_with("rank 1 does not receive: "));
  CHECK(server.waiting_bytes(lazy_peer) <= 40'000'000);
  server.send(eager_peer, {"at once", ""});
  server.poll(0);
  CHECK(eager.receive(kTestPatience)->text == "at once");
  server.dismiss(lazy_peer, "it does not listen");
  CHECK(server.num_peers() == 1);
  CHECK_THROWS_AS(server.send(eager_peer, {"", std::string((64 << 20) + 1, 'x')}), Error);
}

TEST_CASE("both may send large messages at once") {
  MessageServer server{MessageListener(kTestSecret)};
  std::thread rank([endpoint = server.endpoint()] {
    MessageClient client = client_of(endpoint);
    client.connect(kTestPatience);
    for (int i = 0; i < 3; ++i) client.send({"", std::string(60'000'000, 'c')});
    for (int i = 0; i < 3; ++i) client.receive(kTestPatience);
    client.send({"done", ""});
  });
  const PeerId peer = next_event(server, Kind::kJoined).peer;
  for (int i = 0; i < 3; ++i) server.send(peer, {"", std::string(60'000'000, 's')});
  for (int i = 0; i < 3; ++i) CHECK(next_event(server, Kind::kMessage).message.data.size() == 60'000'000);
  CHECK(next_event(server, Kind::kMessage).message.text == "done");
  rank.join();
}

TEST_CASE("a client that the server does not read gives up, and one that is dismissed hears why") {
  MessageServer server{MessageListener(kTestSecret)};
  MessageClient client = client_of(server.endpoint());
  auto connected = std::async(std::launch::async, [&] { client.connect(kTestPatience); });
  const PeerId peer = next_event(server, Kind::kJoined).peer;
  connected.get();
  CHECK_THROWS_WITH_AS(client.send({"", std::string(60'000'000, 'x')}, 0.1), "rank 0 took nothing for 0.1 s", Error);
  CHECK_FALSE(client.is_connected());  // Half of it went out.
  next_event(server, Kind::kLost);
  connected = std::async(std::launch::async, [&] { client.connect(kTestPatience); });
  const PeerId again = next_event(server, Kind::kJoined).peer;
  connected.get();
  CHECK(again != peer);
  server.dismiss(again, "the study has three ranks");
  CHECK_THROWS_WITH_AS(client.receive(kTestPatience), "rank 0 is gone: it says: the study has three ranks", Error);
}

TEST_CASE("more peers than may be are turned away; who comes again takes the place of the one before") {
  EchoServer server(MessageListener(kTestSecret), {.max_peers = 2});
  MessageClient one = client_of(server.endpoint(), "rank 1"), two = client_of(server.endpoint(), "rank 2");
  one.connect(kTestPatience);
  two.connect(kTestPatience);
  MessageClient three = client_of(server.endpoint(), "rank 3");
  CHECK_THROWS_AS(three.connect(kTestPatience), Error);
  MessageClient again = client_of(server.endpoint(), "rank 2");
  again.connect(kTestPatience);
  CHECK_THROWS_WITH_AS(two.receive(kTestPatience), "rank 0 is gone: it says: another rank 2 has come", Error);
  again.send({"here", ""});
  CHECK(again.receive(kTestPatience)->text == "here");
  server.end();
  CHECK(server.server().num_peers() == 2);
  CHECK(server.last_loss() == "rank 2 is gone: it has come again");
}

TEST_CASE("addresses: other hosts', unknown names and ports that are none are refused with a sentence") {
  CHECK_THROWS_AS(MessageListener(kTestSecret, "192.0.2.1"), Error);  // Not an address of this host.
  CHECK_THROWS_AS(MessageListener(kTestSecret, "no such host"), Error);
  for (const char* wrong :
       {"", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:70000", "tcp://:5", "udp://host:1", "tcp://127.0.0.1:x"})
    CHECK_THROWS_AS(client_of(wrong), Error);
  const MessageListener taken(kTestSecret);
  const auto port = parse_integer(taken.endpoint().substr(taken.endpoint().rfind(':') + 1));
  CHECK_THROWS_AS(MessageListener(kTestSecret, "127.0.0.1", static_cast<int>(*port)), Error);
  CHECK(resolved_endpoints("tcp://[::1]:5").front() == "tcp://[::1]:5");
  CHECK(is_of_this_host("tcp://127.0.0.1:5"));
  CHECK_FALSE(is_of_this_host("tcp://10.0.0.1:5"));
  CHECK_THROWS_AS(MessageServer(MessageListener(kTestSecret, "0.0.0.0"), {.encrypts = false}), Error);
  MessageClient nobody = client_of(taken.endpoint());
  CHECK_THROWS_WITH_AS(nobody.connect(0.1), doctest::Contains("has not let rank 1 in within 0.1 s: nobody answers there"), Error);
}
