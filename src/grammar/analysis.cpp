#include "grammar/analysis.h"

#include <algorithm>
#include <string>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe::grammar {

namespace {

using Graph = std::vector<std::vector<std::uint32_t>>;  // rules that a rule calls

// Who must be looked at again when an expression has become true: the expressions that it is part of, and the calls of the
// rules that it is the body of.
Graph dependents_of(const Grammar& g) {
  Graph up(g.size());
  std::vector<std::vector<std::uint32_t>> bodies(g.size());  // rules
  for (std::uint32_t r = 0; r < g.rules().size(); ++r) bodies[g.rules()[r].body].push_back(r);
  std::vector<std::vector<std::uint32_t>> calls(g.rules().size());
  for (std::uint32_t e = 0; e < g.size(); ++e) {
    for (const std::uint32_t part : g.expr(e).parts) up[part].push_back(e);
    if (g.expr(e).kind == ExprKind::kRule) calls[g.expr(e).rule].push_back(e);
  }
  for (std::uint32_t e = 0; e < g.size(); ++e)
    for (const std::uint32_t r : bodies[e]) up[e].insert(up[e].end(), calls[r].begin(), calls[r].end());
  return up;
}

// The least solution of: a leaf is true when leaf() says so, a sequence when all of its parts are, a choice when one is, a
// repetition when it may happen no times or its part is true. Each expression is looked at once per part.
template <class Leaf>
std::vector<char> least_fixed_point(const Grammar& g, const Graph& up, Leaf leaf) {
  std::vector<char> known(g.size());
  std::vector<std::uint32_t> missing(g.size()), work;
  const auto set = [&](std::uint32_t e) {
    if (!known[e]) known[e] = 1, work.push_back(e);
  };
  for (std::uint32_t e = 0; e < g.size(); ++e) {
    const Expr& x = g.expr(e);
    missing[e] = x.kind == ExprKind::kSequence ? static_cast<std::uint32_t>(x.parts.size()) : 1;
    const bool is_leaf = x.kind == ExprKind::kText || x.kind == ExprKind::kChars;
    if (is_leaf ? leaf(x) : (x.kind == ExprKind::kRepeat && x.min == 0) || missing[e] == 0) set(e);
  }
  while (!work.empty()) {
    const std::uint32_t e = work.back();
    work.pop_back();
    for (const std::uint32_t parent : up[e])
      if (!known[parent] && --missing[parent] == 0) set(parent);
  }
  return known;
}

// Strongly connected components (Tarjan), without recursion: `visit` gets the nodes of each, callees' components first.
template <class Visit>
void components(const Graph& graph, Visit visit) {
  constexpr std::uint32_t kNew = 0xFFFFFFFF;
  const auto count = static_cast<std::uint32_t>(graph.size());
  std::vector<std::uint32_t> index(count, kNew), low(count), path;
  std::vector<char> on_path(count);
  std::vector<std::pair<std::uint32_t, std::size_t>> stack;  // node, next of its edges
  std::uint32_t next = 0;
  const auto enter = [&](std::uint32_t node) {
    index[node] = low[node] = next++;
    path.push_back(node);
    on_path[node] = 1;
    stack.push_back({node, 0});
  };
  for (std::uint32_t start = 0; start < count; ++start) {
    if (index[start] != kNew) continue;
    enter(start);
    while (!stack.empty()) {
      const std::uint32_t node = stack.back().first;
      if (stack.back().second < graph[node].size()) {
        const std::uint32_t to = graph[node][stack.back().second++];
        if (index[to] == kNew)
          enter(to);
        else if (on_path[to])
          low[node] = std::min(low[node], index[to]);
        continue;
      }
      stack.pop_back();
      if (!stack.empty()) low[stack.back().first] = std::min(low[stack.back().first], low[node]);
      if (low[node] != index[node]) continue;
      std::vector<std::uint32_t> component;
      do {
        component.push_back(path.back());
        on_path[path.back()] = 0;
        path.pop_back();
      } while (component.back() != node);
      visit(component);
    }
  }
}

// The calls in each rule: all of them, or with `nullable` only those that may come before any character.
Graph calls_of(const Grammar& g, const std::vector<char>* nullable) {
  Graph graph(g.rules().size());
  std::vector<std::uint32_t> seen(g.size(), 0xFFFFFFFF), work;
  for (std::uint32_t r = 0; r < g.rules().size(); ++r) {
    work.assign(1, g.rules()[r].body);
    while (!work.empty()) {
      const std::uint32_t e = work.back();
      work.pop_back();
      if (seen[e] == r) continue;
      seen[e] = r;
      const Expr& x = g.expr(e);
      if (x.kind == ExprKind::kRule) graph[r].push_back(x.rule);
      if (x.kind == ExprKind::kRepeat && x.max == 0) continue;
      for (const std::uint32_t part : x.parts) {
        work.push_back(part);
        if (nullable && x.kind == ExprKind::kSequence && !(*nullable)[part]) break;
      }
    }
    std::sort(graph[r].begin(), graph[r].end());
    graph[r].erase(std::unique(graph[r].begin(), graph[r].end()), graph[r].end());
  }
  return graph;
}

bool is_recursive(const Graph& graph, const std::vector<std::uint32_t>& component) {
  const std::uint32_t node = component[0];
  return component.size() > 1 || std::binary_search(graph[node].begin(), graph[node].end(), node);
}

void refuse_left_recursion(const Grammar& g, const std::vector<std::uint32_t>& component) {
  constexpr std::size_t kNamed = 5;
  std::string names;
  for (std::size_t i = 0; i < std::min(component.size(), kNamed); ++i)
    names += (i ? ", " : "") + in_quotes(g.rules()[component[i]].name);
  fail(ErrorCode::kFormat, "left recursion: {} {} call{} before any character; write it as a repetition", names,
       component.size() > kNamed ? "and others" : "", component.size() > 1 ? " each other" : "s itself");
}

}  // namespace

Analysis analyse(const Grammar& g) {
  for (const Rule& rule : g.rules())
    if (!rule.defined) fail(ErrorCode::kFormat, "the rule {} is used but not defined", in_quotes(rule.name));
  Analysis a;
  const Graph up = dependents_of(g);
  a.nullable = least_fixed_point(g, up, [](const Expr& x) { return x.kind == ExprKind::kText && x.text.empty(); });
  a.productive =
      least_fixed_point(g, up, [](const Expr& x) { return x.kind == ExprKind::kText || !utf8_sequences(x.chars).empty(); });

  const Graph left = calls_of(g, &a.nullable);
  a.left_rank.resize(g.rules().size());
  auto rank = static_cast<std::uint32_t>(g.rules().size());
  components(left, [&](const std::vector<std::uint32_t>& component) {
    if (is_recursive(left, component)) refuse_left_recursion(g, component);
    a.left_rank[component[0]] = --rank;
  });

  const Graph calls = calls_of(g, nullptr);
  a.recursive.resize(g.rules().size());
  components(calls, [&](const std::vector<std::uint32_t>& component) {
    for (const std::uint32_t rule : component) a.recursive[rule] = is_recursive(calls, component);
    a.order.insert(a.order.end(), component.begin(), component.end());
  });

  const Rule& root = g.rules()[g.root];
  if (!a.productive[root.body])
    fail(ErrorCode::kFormat,
         "no text can ever match {}: every way through it calls a rule that has no end, or an empty set",
         in_quotes(root.name));
  return a;
}

}  // namespace dsmoe::grammar
