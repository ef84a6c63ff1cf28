#include "grammar/json_schema.h"

#include <algorithm>
#include <map>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "grammar/json_pattern.h"
#include "grammar/schema_facts.h"

namespace dsmoe::grammar {

namespace {

// One rule for each conjunction of schemas that is met, made in turn, so that schemas may refer to themselves.
class SchemaCompiler {
 public:
  using Ref = Grammar::Ref;
  using Schemas = std::vector<const SchemaJson*>;
  SchemaCompiler(const SchemaJson& document, std::string_view where)
      : document_(document), reader_(document, where), json_(g_) {}

  Grammar compile() {
    g_.root = rule_of(reader_.conjunction({&document_}));
    for (std::size_t i = 0; i < work_.size(); ++i) {
      const auto [rule, all] = std::pair(work_[i].first, work_[i].second);
      g_.define(rule, all.never ? g_.choice({}) : all.unions.empty() ? plain(all) : any_branch(all));
    }
    return std::move(g_);
  }

 private:
  Ref schema(const Schemas& schemas) {
    if (schemas.empty()) return json_.value();
    return g_.call(rule_of(reader_.conjunction(schemas)));
  }
  std::uint32_t rule_of(Conjunction all) {
    const auto [found, is_new] = rules_.try_emplace(all.key(), 0);
    if (is_new) {
      found->second = g_.add_rule(all.nodes.empty() ? "schema" : reader_.place(all.nodes[0]));
      work_.emplace_back(found->second, std::move(all));
    }
    return found->second;
  }

  Ref any_branch(const Conjunction& all);
  Ref plain(const Conjunction& all);
  Ref values(const std::vector<SchemaJson>& values);
  Ref string(const SchemaFacts& facts, const Conjunction& all);
  Ref array(const SchemaFacts& facts);
  Ref object(const SchemaFacts& facts);

  const SchemaJson& document_;
  Grammar g_;
  SchemaReader reader_;
  JsonText json_;
  std::map<std::vector<const void*>, std::uint32_t> rules_;
  std::vector<std::pair<std::uint32_t, Conjunction>> work_;
};

SchemaCompiler::Ref SchemaCompiler::any_branch(const Conjunction& all) {
  const Conjunction::Union last = all.unions.back();
  std::vector<Conjunction> branches;
  for (const SchemaJson& branch : *last.branches) branches.push_back(reader_.with_branch(all, branch));
  if (last.exactly_one)
    for (std::size_t i = 0; i < branches.size(); ++i)
      for (std::size_t j = i + 1; j < branches.size(); ++j)
        if (!reader_.apart(branches[i], branches[j]))
          fail(ErrorCode::kFormat,
               "{}: a value may be valid under both branch {} and branch {} of 'oneOf', which would make it invalid; use "
               "'anyOf', "
               "or tell them apart by type, by values or by a required property with different values",
               reader_.place(all.nodes[0]), i + 1, j + 1);
  std::vector<Ref> parts;
  for (Conjunction& branch : branches) parts.push_back(g_.call(rule_of(std::move(branch))));
  return g_.choice(std::move(parts));
}

SchemaCompiler::Ref SchemaCompiler::plain(const Conjunction& all) {
  const SchemaFacts f = reader_.facts(all);
  if (f.values) return values(*f.values);
  if (f.types == kAllTypes && f.arrays.empty() && f.objects.empty() && f.patterns.empty() && f.min_length == 0 &&
      f.max_length == kUnbounded && !f.bounds.min && !f.bounds.max)
    return json_.value();
  std::vector<Ref> parts;
  const bool bounded = f.bounds.min || f.bounds.max;
  if (f.types & kTypeObject) parts.push_back(object(f));
  if (f.types & kTypeArray) parts.push_back(array(f));
  if (f.types & kTypeString) parts.push_back(string(f, all));
  if (f.types & kTypeNumber)
    parts.push_back(bounded ? number_within(g_, f.bounds) : json_.number());
  else if (f.types & kTypeInteger)
    parts.push_back(integer_within(g_, f.bounds));
  if (f.types & kTypeBoolean) parts.push_back(g_.choice({g_.text("true"), g_.text("false")}));
  if (f.types & kTypeNull) parts.push_back(g_.text("null"));
  return g_.choice(std::move(parts));
}

SchemaCompiler::Ref SchemaCompiler::values(const std::vector<SchemaJson>& values) {
  std::vector<Ref> parts;
  for (const SchemaJson& value : values) parts.push_back(json_.exactly(value));
  return g_.choice(std::move(parts));
}

SchemaCompiler::Ref SchemaCompiler::string(const SchemaFacts& f, const Conjunction& all) {
  const bool any_length = f.min_length == 0 && f.max_length == kUnbounded;
  if (f.patterns.empty()) {
    if (any_length) return json_.string();
    if (f.min_length > f.max_length) return g_.choice({});
    return json_.quoted(g_.repeat(json_.character(), f.min_length, f.max_length));
  }
  const std::string place = reader_.place(all.nodes[0]);
  const bool same = std::all_of(f.patterns.begin(), f.patterns.end(),
                                [&](const auto& pattern) { return pattern.first == f.patterns[0].first; });
  if (!same) fail(ErrorCode::kFormat, "{}: two patterns or formats for one string are not supported", place);
  if (!any_length)
    fail(ErrorCode::kFormat,
         "{}: 'minLength' and 'maxLength' beside 'pattern' or 'format' are not supported; put them into the pattern",
         place);
  return string_with_pattern(g_, json_, f.patterns[0].first, f.patterns[0].second);
}

SchemaCompiler::Ref SchemaCompiler::array(const SchemaFacts& f) {
  const std::size_t listed = reader_.listed_elements(f);
  const bool more = reader_.has_more_elements(f);
  const std::uint32_t most = more ? f.max_items : std::min(f.max_items, static_cast<std::uint32_t>(listed));
  if (f.min_items > most) return g_.choice({});
  const Ref nothing = g_.sequence({g_.text("["), json_.space(), g_.text("]")});
  if (most == 0) return nothing;
  // From the last element to the first: each may be followed by the others.
  const auto listed_used = static_cast<std::uint32_t>(std::min<std::size_t>(listed, most));
  Ref tail = g_.empty();
  if (most > listed_used) {
    const Ref next = g_.sequence({json_.comma(), schema(reader_.element(f, listed))});
    const std::uint32_t max = most == kUnbounded ? kUnbounded : most - std::max(listed_used, 1u);
    const std::uint32_t least = std::max(listed_used, 1u);
    tail = g_.repeat(next, f.min_items > least ? f.min_items - least : 0, max);
  }
  for (std::uint32_t i = listed_used; i-- > 1;) {
    const Ref next = g_.sequence({json_.comma(), schema(reader_.element(f, i)), tail});
    tail = i >= f.min_items ? g_.optional(next) : next;
  }
  const Ref some = json_.braced("[", g_.sequence({schema(reader_.element(f, 0)), tail}), "]");
  return f.min_items == 0 ? g_.choice({nothing, some}) : some;
}

// Properties come in the order of the schema, those that are not required may be left out, the others that are allowed come
// last. Which property is the first decides where commas are, so before the first required one each possible first one is
// an alternative; what can follow is a rule, since it is the same for all.
SchemaCompiler::Ref SchemaCompiler::object(const SchemaFacts& f) {
  const std::vector<std::string> names = reader_.names(f);
  std::vector<Ref> members;
  std::size_t first_required = names.size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (first_required == names.size() && f.requires_property(names[i])) first_required = i;
    members.push_back(json_.member(g_.text(json_quoted(names[i])), schema(reader_.property(f, names[i]))));
  }
  Ref rest = g_.empty();  // behind a member
  std::vector<Ref> firsts;
  if (reader_.has_more_properties(f)) {
    const Ref other = names.empty() && reader_.additional(f).empty()
                          ? json_.member(json_.string(), json_.value())
                          : json_.member(json_.key_but(names), schema(reader_.additional(f)));
    rest = g_.repeat(g_.sequence({json_.comma(), other}), 0, kUnbounded);
    if (first_required == names.size()) firsts.push_back(g_.sequence({other, rest}));
  }
  const auto follow = [&](std::size_t i) {
    const Ref next = g_.sequence({json_.comma(), members[i]});
    return f.requires_property(names[i]) ? next : g_.optional(next);
  };
  // Behind the first required one, all in one sequence; before it, one rule for each place.
  if (first_required < names.size()) {
    std::vector<Ref> parts;
    for (std::size_t i = first_required + 1; i < names.size(); ++i) parts.push_back(follow(i));
    parts.push_back(rest);
    rest = g_.sequence(std::move(parts));
    firsts.push_back(g_.sequence({members[first_required], rest}));
    if (first_required > 0) rest = g_.sequence({follow(first_required), rest});
  }
  for (std::size_t i = first_required; i-- > 0;) {
    const Ref behind = g_.call(g_.add_rule(fmt::format("behind {}", json_quoted(names[i])), rest));
    firsts.push_back(g_.sequence({members[i], behind}));
    rest = g_.sequence({follow(i), behind});
  }
  const Ref inside = g_.sequence({g_.choice(std::move(firsts)), json_.space()});
  return g_.sequence(
      {g_.text("{"), json_.space(), first_required < names.size() ? inside : g_.optional(inside), g_.text("}")});
}

}  // namespace

Grammar parse_json_schema(std::string_view text, std::string_view where) {
  if (text.size() > kMaxSchemaBytes)
    fail(ErrorCode::kFormat, "{}: {} bytes, at most {} are read", where, text.size(), kMaxSchemaBytes);
  const auto document = json_read::parse<SchemaJson>(text, where);
  return SchemaCompiler(document, where).compile();
}

Grammar json_object_grammar() { return parse_json_schema(R"({"type": "object"})"); }

}  // namespace dsmoe::grammar
