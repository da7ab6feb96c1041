// CRC-32C: the remainder of the message, taken as a polynomial over GF(2), divided by 0x1EDC6F41; bits reflected, register preset to ones
// and inverted at the end.
//
// Steps: a table holds the effect of each byte value on the register; each byte of the message is one look-up and one shift.
// Cost: about 2 ns a byte. Event files see a few hundred bytes a second, so neither slicing nor the SSE4.2 instruction is worth its code
// here. Source: RFC 3720, appendix B.4 (polynomial and test vectors); Sarwate 1988 (the table method).

#include "cohort/report/crc32c.h"

#include <array>

namespace cohort::report {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82f63b78;  // 0x1EDC6F41 with its bits in reverse order.

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? kReflectedPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t state = 0xffffffff;
  for (const char byte : data) state = (state >> 8) ^ kTable[(state ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~state;
}

}  // namespace cohort::report
