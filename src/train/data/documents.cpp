#include "train/data/documents.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "io/atomic_file.h"
#include "io/line_reader.h"
#include "io/text_data.h"

namespace dsmoe::train {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeptBad = 20, kTextPart = std::size_t{1} << 20;

bool is_jsonl(const fs::path& path) { return path.extension() == ".jsonl" || path.extension() == ".ndjson"; }

InputFile input_file(const fs::path& path, std::string label) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw io::io_error(path, "read", errno);
  // A pipe could be read once only, and its cache would never be found again.
  require(S_ISREG(status.st_mode), "{}: not a regular file; write the data to a file first", path.string());
  require(path.extension() != ".ids", "{}: an .ids file cannot be mixed with other data; give it alone", path.string());
  return {path, std::move(label), static_cast<std::uint64_t>(status.st_size),
          std::int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec};
}

void list_folder(const fs::path& folder, DataOptions::LabelBy label_by, std::vector<InputFile>& out) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    const bool hidden = it->path().filename().string().starts_with('.');
    if (hidden && it->is_directory()) it.disable_recursion_pending();
    if (!hidden && it->is_regular_file()) files.push_back(it->path());
  }
  if (error) fail(ErrorCode::kIo, "{}: cannot list the folder: {}", folder.string(), error.message());
  std::sort(files.begin(), files.end());
  fs::path name = folder.lexically_normal();
  if (!name.has_filename()) name = name.parent_path();  // "data/"
  for (const fs::path& file : files) {
    const fs::path below = file.lexically_relative(folder);
    const bool direct = !below.has_parent_path();
    const std::string label = label_by == DataOptions::LabelBy::kFile ? fs::path(below).replace_extension().generic_string()
                              : direct                                ? name.filename().string()
                                                                      : below.begin()->string();
    out.push_back(input_file(file, label));
  }
}

using json_read::Json;

std::vector<ChatMessage> read_messages(const Json& list, const std::string& where) {
  std::vector<ChatMessage> messages;
  for (const Json& m : list)
    messages.push_back({json_read::get<std::string>(m, "role", where), json_read::get<std::string>(m, "content", where)});
  if (std::none_of(messages.begin(), messages.end(), [](const ChatMessage& m) { return m.role == "assistant"; }))
    fail(ErrorCode::kFormat, "{}: a conversation without an answer of the assistant", where);
  return messages;
}

// Of fields that hold a text, the first few.
std::string text_fields(const Json& object) {
  constexpr std::size_t kFew = 5;
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items())
    if (value.is_string() && names.size() < kFew) names.push_back(in_quotes(name));
  return names.empty() ? "no field with a text" : fmt::format("{}", fmt::join(names, ", "));
}

void parse_line(std::string_view line, const DataOptions& options, RawDocument& doc) {
  const Json value = json_read::parse_object(line, doc.where);
  if (const auto label = value.find(options.label_field); label != value.end() && label->is_string())
    doc.label = label->get<std::string>();
  if (json_read::find(value, options.field)) {
    doc.text = json_read::get<std::string>(value, options.field, doc.where);
  } else if (json_read::find(value, "messages")) {
    doc.messages = read_messages(json_read::array(value, "messages", doc.where), doc.where);
  } else {
    fail(ErrorCode::kFormat, "{}: neither the field {} nor 'messages', it has {}", doc.where, in_quotes(options.field),
         text_fields(value));
  }
}

// Runs step(); what it refuses is reported, other errors pass through. False when step() wants no more.
template <class Step>
bool guarded(const DataOptions& options, DataReport& report, Step&& step) {
  try {
    return step();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kFormat && error.code() != ErrorCode::kInvalidArgument) throw;
    report_bad(options, report, error.what());
    return true;
  }
}

bool read_jsonl(const InputFile& file, const DataOptions& options, DataReport& report,
                const std::function<void(std::uint64_t)>& advance, const std::function<bool(const RawDocument&)>& f) {
  io::LineReader lines(file.path);
  for (std::string_view line; lines.next(line);) {
    advance(line.size() + 1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const bool more = guarded(options, report, [&] {
      RawDocument doc{.label = file.label, .where = fmt::format("{}:{}", lines.path(), lines.line())};
      parse_line(line, options, doc);
      return f(doc);
    });
    if (!more) return false;
  }
  return true;
}

bool has_zero_byte(const fs::path& path) {
  io::TextReader reader(path, kTextPart);
  for (std::string part; reader.next(part);)
    if (part.find('\0') != std::string::npos) return true;
  return false;
}

bool read_text(const InputFile& file, const DataOptions& options, DataReport& report,
               const std::function<void(std::uint64_t)>& advance, const std::function<bool(const RawDocument&)>& f) {
  // Before anything of it is used: a file is left out as a whole.
  if (has_zero_byte(file.path)) {
    report_bad(options, report, fmt::format("{}: not a text file (it has zero bytes)", file.path.string()));
    return true;
  }
  io::TextReader reader(file.path, kTextPart);
  RawDocument doc{.label = file.label, .where = file.path.string()}, following = doc;
  if (!reader.next(doc.text)) return true;
  for (bool more = true; more;) {
    more = reader.next(following.text);
    doc.ends = !more;
    advance(doc.text.size());
    if (!f(doc)) return false;
    std::swap(doc.text, following.text);
    doc.begins = false;
  }
  return true;
}

}  // namespace

std::vector<InputFile> list_inputs(const DataOptions& options) {
  require(!options.inputs.empty(), "no data given");
  std::vector<InputFile> files;
  for (const std::string& input : options.inputs) {
    require(input != kBuiltin, "the built-in corpus cannot be mixed with other data; give {} alone", kBuiltin);
    const fs::path path(input);
    if (fs::is_directory(path))
      list_folder(path, options.label_by, files);
    else
      files.push_back(input_file(path, path.stem().string()));
  }
  require(!files.empty(), "{}: no files in it", options.inputs.front());
  return files;
}

void report_bad(const DataOptions& options, DataReport& report, const std::string& message) {
  if (options.strict) throw Error(ErrorCode::kFormat, message);
  ++report.bad_count;
  if (report.bad.size() < kKeptBad) report.bad.push_back(message);
}

void read_documents(const std::vector<InputFile>& files, const DataOptions& options, DataReport& report,
                    const std::function<bool(const RawDocument&)>& f) {
  std::uint64_t total = 0, done = 0;
  for (const InputFile& file : files) total += file.size;
  const auto advance = [&](std::uint64_t bytes) {
    done += bytes;
    if (options.progress) options.progress(std::min(done, total), total);
  };
  const auto counted = [&](const RawDocument& doc) {
    const bool more = f(doc);
    report.documents += doc.ends ? 1 : 0;
    return more;
  };
  for (const InputFile& file : files) {
    ++report.files;
    const bool more = is_jsonl(file.path) ? read_jsonl(file, options, report, advance, counted)
                                          : read_text(file, options, report, advance, counted);
    if (!more) return;
  }
}

std::vector<std::string> DataReport::lines() const {
  std::vector<std::string> out;
  if (files > 0)  // where only texts are read, there are no tokens to count
    out.push_back(fmt::format("data: {}{} document{} of {} file{}{}",
                              cache.empty() ? "" : fmt::format("{} tokens in ", tokens), documents,
                              documents == 1 ? "" : "s", files, files == 1 ? "" : "s",
                              cache.empty() ? "" : (cache_built ? ", cached in " : ", from the cache ") + cache.string()));
  if (!cache_note.empty()) out.push_back("data: " + cache_note);
  if (bad_count > 0) out.push_back(fmt::format("data: {} left out:", bad_count));
  for (const std::string& message : bad) out.push_back("  " + message);
  if (bad_count > bad.size()) out.push_back(fmt::format("  and {} more", bad_count - bad.size()));
  return out;
}

}  // namespace dsmoe::train
