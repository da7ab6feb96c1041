// Reads graph.txt of PipeDream's profiler.
//
// A line of a node: ID -- WHAT -- forward_compute_time=MS, backward_compute_time=MS, activation_size=BYTES, parameter_size=BYTES
// A line of an edge: a tab or blanks, then FROM -- TO; both nodes stand further up. Blank lines are skipped.
//  1. Every line is checked: four fields, each once, each a finite number of at least zero. An activation may be a list [a; b; c], whose
//     sum counts. What follows a third " -- " (stages that PipeDream wrote there) is not read.
//  2. As PipeDream's optimizer does, nodes without predecessors called "Input..." are taken out, then nodes without successors called
//     "__getitem__...".
//  3. The rest is numbered along its edges; a cycle is refused.
//
// Source: the files and README of msr-fiddle/pipedream (Narayanan et al. 2019, "PipeDream", section 3.1).

#include "cohort/plan/public/pipedream_file.h"

#include <array>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr size_t kMostFileBytes = size_t{16} << 20;
constexpr size_t kMostNodes = 5000, kMostEdges = 100'000;
constexpr double kMostValue = 1e30;  // Sums and products of what is smaller stay finite.
constexpr std::array<std::string_view, 4> kFields = {"forward_compute_time", "backward_compute_time", "activation_size", "parameter_size"};

/// ID, WHAT, fields; two pieces in a line of an edge.
std::vector<std::string_view> pieces_of(std::string_view line, std::string_view separator) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const size_t end = line.find(separator);
    pieces.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    line.remove_prefix(end + separator.size());
  }
}

struct Node {
  std::string name, what;
  std::array<double, 4> values{};  // In the order of kFields.
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  PipedreamGraph read() {
    const std::string text = read_small_file(path_, kMostFileBytes);
    for (const std::string_view line : pieces_of(text, "\n")) {
      ++line_number_;
      if (trim(line).empty()) continue;
      if (line[0] == ' ' || line[0] == '\t') read_edge(trim(line));
      else read_node(trim(line));
    }
    leave_out_unused();
    return graph();
  }

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(std::string_view found, const Parts&... expected) const {
    fail(ErrorCode::kBadInput, quote_text(path_), " line ", line_number_, ": expected ", expected..., ", found ", quote_text(found));
  }

  double number(std::string_view text, std::string_view field) const {
    const std::optional<double> value = parse_number(trim(text));
    if (!value || *value < 0 || *value > kMostValue) refuse(text, field, " as a number from 0 to 1e30");
    return *value;
  }

  double number_or_sum(std::string_view text, std::string_view field) const {
    if (text.empty() || text.front() != '[') return number(text, field);
    if (text.back() != ']') refuse(text, "']' at the end of a list");
    double sum = 0;
    for (const std::string_view piece : pieces_of(text.substr(1, text.size() - 2), ";")) sum += number(piece, field);
    return sum;
  }

  void read_field(std::string_view text, Node& node, std::array<bool, 4>& seen) const {
    const size_t equals = text.find('=');
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (equals == std::string_view::npos || text.substr(0, equals) != kFields[i]) continue;
      if (seen[i]) refuse(text, kFields[i], " once");
      seen[i] = true;
      node.values[i] = number_or_sum(text.substr(equals + 1), kFields[i]);
      return;
    }
    refuse(text, "forward_compute_time=, backward_compute_time=, activation_size= or parameter_size=");
  }

  void read_node(std::string_view line) {
    const std::vector<std::string_view> pieces = pieces_of(line, " -- ");
    if (pieces.size() != 3 && pieces.size() != 4) refuse(line, "ID -- WHAT -- forward_compute_time=...");
    Node node{.name = trim(pieces[0]), .what = trim(pieces[1]), .values = {}};
    if (node.name.empty()) refuse(line, "the name of a node");
    std::array<bool, 4> seen{};
    for (const std::string_view field : pieces_of(pieces[2], ",")) read_field(trim(field), node, seen);
    for (size_t i = 0; i < seen.size(); ++i)
      if (!seen[i]) refuse(line, "a field ", kFields[i]);
    if (nodes_.size() == kMostNodes) refuse(line, "at most ", kMostNodes, " nodes");
    if (!number_of_.emplace(node.name, static_cast<int>(nodes_.size())).second) refuse(node.name, "a name that occurs once");
    nodes_.push_back(std::move(node));
  }

  int node_called(std::string_view name) const {
    const auto found = number_of_.find(std::string(name));
    if (found == number_of_.end()) refuse(name, "the name of a node that stands further up");
    return found->second;
  }

  void read_edge(std::string_view line) {
    const std::vector<std::string_view> pieces = pieces_of(line, " -- ");
    if (pieces.size() != 2) refuse(line, "FROM -- TO");
    if (edges_.size() == kMostEdges) refuse(line, "at most ", kMostEdges, " edges");
    const std::pair<int, int> edge(node_called(trim(pieces[0])), node_called(trim(pieces[1])));
    if (!edges_.insert(edge).second) refuse(line, "an edge that occurs once");
  }

  /// Takes out nodes that are at an end of the graph (of no edge's `end`) and whose kind begins with `what`.
  void leave_out(int std::pair<int, int>::* end, std::string_view what) {
    std::vector<bool> inner(nodes_.size());
    for (const std::pair<int, int>& edge : edges_) inner[edge.*end] = true;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (!inner[i] && nodes_[i].what.starts_with(what)) left_out_[i] = true;
    std::erase_if(edges_, [&](const std::pair<int, int>& edge) { return left_out_[edge.first] || left_out_[edge.second]; });
  }

  void leave_out_unused() {
    check_cycles();
    left_out_.assign(nodes_.size(), false);
    leave_out(&std::pair<int, int>::second, "Input");
    leave_out(&std::pair<int, int>::first, "__getitem__");
  }

  void check_cycles() const {
    const OrderedDag ordered = order_dag(static_cast<int>(nodes_.size()), {edges_.begin(), edges_.end()});
    if (ordered.order.size() < nodes_.size()) fail(ErrorCode::kBadInput, quote_text(path_), ": expected a graph without cycles, found one");
  }

  PipedreamGraph graph() const {
    std::vector<int> kept, place(nodes_.size(), -1);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (left_out_[i]) continue;
      place[i] = static_cast<int>(kept.size());
      kept.push_back(static_cast<int>(i));
    }
    if (kept.empty()) fail(ErrorCode::kBadInput, quote_text(path_), ": expected at least one layer, found none");
    std::vector<std::pair<int, int>> edges;
    for (const auto& [from, to] : edges_) edges.emplace_back(place[from], place[to]);
    OrderedDag ordered = order_dag(static_cast<int>(kept.size()), edges);
    PipedreamGraph graph{.dag = std::move(ordered.dag), .names = {}, .seconds = {}, .output_bytes = {}, .parameter_bytes = {}};
    for (const int at : ordered.order) {
      const Node& node = nodes_[kept[at]];
      graph.names.push_back(node.name);
      graph.seconds.push_back((node.values[0] + node.values[1]) / 1000);
      graph.output_bytes.push_back(node.values[2]);
      graph.parameter_bytes.push_back(node.values[3]);
    }
    return graph;
  }

  std::string path_;
  size_t line_number_ = 0;
  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> number_of_;
  std::set<std::pair<int, int>> edges_;
  std::vector<bool> left_out_;
};

}  // namespace

PipedreamGraph read_pipedream_graph(const std::string& path) { return Reader(path).read(); }

}  // namespace cohort
