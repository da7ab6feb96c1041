#include "cohort/base/text/host_and_port.h"

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

HostAndPort parse_host_and_port(const std::string& text, const std::string& option) {
  const size_t colon = text.rfind(':');
  HostAndPort out{.host = text.substr(0, colon)};
  const bool in_brackets = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
  if (in_brackets) out.host = out.host.substr(1, out.host.size() - 2);
  const int64_t port = colon == std::string::npos ? -1 : parse_integer(text.substr(colon + 1)).value_or(-1);
  const bool is_name = out.host.find_first_of(in_brackets ? " /@[]" : " /@:[]") == std::string::npos;
  if (port < 0 || port > 65535 || out.host.empty() || !is_name)
    fail(ErrorCode::kBadInput, option, " ", printable(text), ": expected HOST:PORT, as 10.0.0.1:29400 or [::1]:29400");
  out.port = static_cast<int>(port);
  return out;
}

}  // namespace cohort
