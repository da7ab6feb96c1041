#pragma once
#include <nlohmann/json_fwd.hpp>

namespace cohort {
using Json = nlohmann::ordered_json;
}
