#pragma once
// CRC-32C (Castagnoli), the checksum of TFRecord files and of iSCSI (RFC 3720, appendix B.4).

#include <cstdint>
#include <string_view>

namespace cohort::report {

/// Of all bytes of `data`; 0 for none.
uint32_t crc32c(std::string_view data);

}  // namespace cohort::report
