#pragma once
// Charts that stand in a file as SVG: which of them may go into a page as they are.

#include <string>

namespace cohort::report {

/// Whether `text` is one `svg` element made of nothing but g, rect, text and title, with attributes that place, size, colour and name
/// things: no script, no link, no style, no markup declaration. Such a drawing can do nothing but be looked at.
bool is_plain_svg(const std::string& text);

}  // namespace cohort::report
