// How long it takes to compile a grammar for a vocabulary, and how long a mask takes: along texts that match it, and along
// random choices among the allowed tokens.
// Usage: grammar_bench FOLDER_WITH_TOKENIZER_JSON
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "core/random.h"
#include "dsmoe/tokenizer.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"

namespace {

using namespace dsmoe;

// Processor time of this thread: what else the machine does is left out.
double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Case {
  const char* name;
  bool schema;
  const char* grammar;
  const char* text;  // that it matches
};

const Case kCases[] = {
    {"arithmetic (GBNF)", false, "root ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" root \")\"\n",
     "(12+3400)*(7-(81/9))+123456789*((1+2)*(3+4))-5"},
    {"any JSON object", true, R"({"type": "object"})",
     R"({"name": "Ada Lovelace", "born": 1815, "tags": ["mathematics", "poetry", "engines"], "note": {"text":
 "She wrote \"Note G\" — the first published program.", "page": 7.25, "ok": true, "none": null}, "list": [[1, 2], [3, [4]]]})"},
    {"a person, five fields", true,
     R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
         "email": {"type": "string", "pattern": "^[a-z0-9.]+@[a-z0-9.]+$"}, "born": {"type": "string", "format": "date"},
         "role": {"enum": ["admin", "editor", "reader"]}}, "required": ["name", "age"], "additionalProperties": false})",
     R"({"name": "Grace Brewster Murray Hopper", "age": 85, "email": "grace.hopper@navy.mil", "born": "1906-12-09",
 "role": "admin"})"},
    {"orders, nested, bounded strings", true,
     R"({"type": "object", "properties": {"orders": {"type": "array", "items": {"$ref": "#/$defs/order"}, "maxItems": 50}},
         "required": ["orders"], "$defs": {"order": {"type": "object", "properties": {"id": {"type": "integer"},
         "status": {"enum": ["open", "paid", "sent"]}, "customer": {"type": "string", "maxLength": 200},
         "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
         "count": {"type": "integer", "minimum": 1, "maximum": 999}, "price": {"type": "number", "minimum": 0}},
         "required": ["sku", "count", "price"]}}}, "required": ["id", "status", "lines"]}}})",
     R"({"orders": [{"id": 10248, "status": "paid", "customer": "Vins et alcools Chevalier, 59 rue de l'Abbaye, Reims", "lines":
 [{"sku": "ABC-1234", "count": 12, "price": 14.00}, {"sku": "QXZ-0042", "count": 10, "price": 9.8}]}, {"id": 10249, "status":
 "open", "lines": [{"sku": "TOF-0001", "count": 9, "price": 18.6}]}]})"},
    {"a recursive tree", true,
     R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": ["number", "string", "null"]},
         "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value", "children"]}}})",
     R"({"value": 1, "children": [{"value": "two", "children": []}, {"value": null, "children": [{"value": 3.5, "children": []}]}]})"},
};

struct Times {
  std::vector<double> mask, accept;
};

// One token: its mask and its acceptance.
void step(grammar::Matcher& m, std::vector<std::uint64_t>& mask, Times& times) {
  const double start = now();
  m.mask(mask);
  times.mask.push_back(now() - start);
}

bool take(grammar::Matcher& m, std::int32_t id, Times& times) {
  const double start = now();
  const bool good = m.accept(id);
  times.accept.push_back(now() - start);
  return good;
}

void along_text(grammar::Matcher m, const Tokenizer& tokenizer, const char* text, Times& times) {
  std::vector<std::uint64_t> mask(m.grammar().vocabulary().words());
  for (const std::int32_t id : tokenizer.encode(text, {.add_bos = false, .add_eos = false})) {
    step(m, mask, times);
    const bool allowed = mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1;
    if (!allowed || !take(m, id, times))
      throw std::runtime_error(fmt::format("a token of the text is not allowed: {}", id));
  }
  if (!m.can_end()) throw std::runtime_error("the text does not match the grammar");
}

void at_random(grammar::Matcher m, std::uint64_t seed, Times& times) {
  const Philox random(seed, 0);
  std::vector<std::uint64_t> mask(m.grammar().vocabulary().words());
  for (std::uint64_t i = 0; i < 300 && !m.ended(); ++i) {
    step(m, mask, times);
    std::vector<std::int32_t> ids;
    for (std::size_t id = 0; id < m.grammar().vocabulary().size(); ++id)
      if (mask[id / 64] >> (id % 64) & 1) ids.push_back(static_cast<std::int32_t>(id));
    if (ids.empty() || !take(m, ids[random.word(i) % ids.size()], times)) throw std::runtime_error("no token is allowed");
  }
}

std::string shown(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double part) {
    return 1e6 * seconds[static_cast<std::size_t>(part * static_cast<double>(seconds.size() - 1))];
  };
  return fmt::format("median {:6.1f} p99 {:7.1f} max {:8.1f} µs", at(0.5), at(0.99), at(1));
}

void measure(const Case& c, const Tokenizer& tokenizer, const std::shared_ptr<const grammar::Vocabulary>& vocabulary,
             std::size_t prepared) {
  const double start = now();
  const grammar::Grammar rules = c.schema ? grammar::parse_json_schema(c.grammar) : grammar::parse_gbnf(c.grammar);
  const auto compiled = std::make_shared<grammar::CompiledGrammar>(rules, vocabulary, prepared);
  const double seconds = now() - start;
  const std::size_t entries = compiled->token_sets().entries();
  Times text, random;
  for (int i = 0; i < 20; ++i) along_text(grammar::Matcher(compiled), tokenizer, c.text, text);
  for (std::uint64_t i = 0; i < 20; ++i) at_random(grammar::Matcher(compiled), i, random);
  fmt::print("{}: {} states, compiled in {:.1f} ms with {} token sets ({} later, {:.1f} MB in all)\n", c.name,
             compiled->automaton().states(), 1e3 * seconds, entries, compiled->token_sets().entries() - entries,
             static_cast<double>(compiled->token_sets().bytes()) / 1e6);
  fmt::print("  mask along a text   {} of {}\n", shown(text.mask), text.mask.size());
  fmt::print("  mask at random      {} of {}\n", shown(random.mask), random.mask.size());
  fmt::print("  accept              {}\n", shown(text.accept));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return fmt::print(stderr, "usage: grammar_bench FOLDER\n"), 2;
  try {
    const Tokenizer tokenizer = Tokenizer::load(argv[1]);
    std::vector<std::string> tokens;
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
      tokens.push_back(tokenizer.is_special(id) ? std::string() : std::string(tokenizer.bytes(id)));
    const double start = now();
    const auto vocabulary =
        std::make_shared<const grammar::Vocabulary>(tokens, std::vector<std::int32_t>{tokenizer.eos_id().value()});
    fmt::print("{} tokens, {} nodes, the longest has {} bytes; {:.1f} ms\n", vocabulary->size(), vocabulary->nodes(),
               vocabulary->longest(), 1e3 * (now() - start));
    for (const std::size_t prepared : {std::size_t{0}, grammar::CompiledGrammar::kPrepared}) {
      fmt::print("\nprepared token sets: at most {}\n", prepared);
      for (const Case& c : kCases) measure(c, tokenizer, vocabulary, prepared);
    }
  } catch (const std::exception& error) {
    return fmt::print(stderr, "error: {}\n", error.what()), 1;
  }
}
