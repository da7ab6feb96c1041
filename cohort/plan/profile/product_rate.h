#pragma once
// How much of its rate a device reaches in a matrix product.

namespace cohort {

/// For a result of `elements` elements with `columns` columns: products reach the full rate only where their result fills the device, half
/// of it at `half_rate_elements` elements and at `half_rate_width` columns. In (0, 1].
inline double share_of_rate(double elements, double columns, double half_rate_elements, double half_rate_width) {
  return elements / (elements + half_rate_elements) * columns / (columns + half_rate_width);
}

}  // namespace cohort
