#include "cohort/pipeline/packet_mail.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr int64_t kKeyNumbers = 4;

at::Tensor key_tensor(const PacketKey& key) {
  at::Tensor tensor = at::empty({kKeyNumbers}, at::kLong);
  int64_t* const numbers = tensor.data_ptr<int64_t>();
  numbers[0] = key.kind, numbers[1] = key.from, numbers[2] = key.to, numbers[3] = key.number;
  return tensor;
}

}  // namespace

std::string describe(const PacketKey& key) {
  static const char* const kNames[] = {"activations", "gradients", "a shared weight", "the gradient of a shared weight"};
  const bool back = key.kind == PacketKey::kGradients || key.kind == PacketKey::kSharedWeightGradient;
  const std::string path = concat(" from stage ", back ? key.to : key.from, " to stage ", back ? key.from : key.to);
  const std::string of = key.kind <= PacketKey::kGradients ? concat(" of micro-batch ", key.number) : "";
  return kNames[key.kind] + of + path;
}

void PacketMail::send(const PacketKey& key, int peer, Tensors tensors) {
  tensors.insert(tensors.begin(), key_tensor(key));
  channels_.send(peer, tensors, describe(key));
}

void PacketMail::wait_for(const PacketKey& key, int peer) {
  while (!inbox_.contains(key)) {
    Tensors packet = channels_.receive(peer, describe(key));
    if (packet.empty() || !packet[0].defined() || packet[0].numel() != kKeyNumbers)
      fail(ErrorCode::kFailed, "pipeline: rank ", peer, " sent something else while rank ", group_.rank(), " waited for ", describe(key));
    const int64_t* const numbers = packet[0].const_data_ptr<int64_t>();
    const PacketKey got{numbers[0], numbers[1], numbers[2], numbers[3]};
    packet.erase(packet.begin());
    inbox_[got] = std::move(packet);
  }
}

PacketMail::Tensors PacketMail::take(const PacketKey& key) {
  const auto found = inbox_.find(key);
  if (found == inbox_.end()) fail(ErrorCode::kFailed, "pipeline: ", describe(key), " was not received before it is used");
  Tensors packet = std::move(found->second);
  inbox_.erase(found);
  return packet;
}

}  // namespace cohort
