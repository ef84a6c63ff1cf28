#include "dsmoe/tokenizer.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <filesystem>

#include "binding.h"
#include "dsmoe/chat_template.h"
#include "dsmoe/error.h"
#include "dsmoe/model.h"

namespace dsmoe::python {

using namespace nb::literals;

namespace {

// Files of a folder that are read as parts of a tokenizer: Tokenizer::save() writes or removes each.
constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};

void save(const Tokenizer& tokenizer, const std::filesystem::path& folder, bool overwrite) {
  const nb::gil_scoped_release free;
  for (const char* name : kFiles) {
    const std::filesystem::path file = folder / name;
    std::error_code error;
    if (!overwrite && std::filesystem::exists(std::filesystem::symlink_status(file, error)))
      throw Error(ErrorCode::kInvalidArgument,
                  file.string() + " already exists; choose another folder, or replace the tokenizer in it with overwrite");
  }
  tokenizer.save(folder);
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
  nb::class_<Tokenizer>(m, "Tokenizer", "Text to token ids and back. May be used from several threads at once.")
      .def_static(
          "load",
          [](const std::filesystem::path& path) {
            const nb::gil_scoped_release free;
            return Model::load_tokenizer(path);
          },
          "path"_a, "From a model's folder, a GGUF file or a tokenizer.json; None when there is no tokenizer.")
      .def(
          "encode",
          [](const Tokenizer& t, std::string_view text, std::optional<bool> add_bos, std::optional<bool> add_eos,
             bool parse_special) {
            std::vector<std::int32_t> ids;
            {
              const nb::gil_scoped_release free;
              ids = t.encode(text, {.add_bos = add_bos, .add_eos = add_eos, .parse_special = parse_special});
            }
            return array_of(std::move(ids));
          },
          "text"_a, nb::kw_only(), "add_bos"_a = nb::none(), "add_eos"_a = nb::none(), "parse_special"_a = true)
      .def(
          "decode",
          [](const Tokenizer& t, const nb::object& ids, bool skip_special) {
            // The rule that all ids go by: lists too, no fractions, nothing that does not fit.
            const auto array = nb::cast<IdArray>(nb::module_::import_("dsmoe._model").attr("ids_array")(ids));
            const std::span<const std::int32_t> span = ids_of(array);
            const nb::gil_scoped_release free;
            return t.decode(span, {.skip_special = skip_special});
          },
          "ids"_a, nb::kw_only(), "skip_special"_a = false,
          "Of an array or a list of ids. Ids without a token are no text.")
      .def("piece", &Tokenizer::piece, "id"_a)
      .def("id_of", &Tokenizer::id_of, "token"_a)
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def_prop_ro("bos_id", &Tokenizer::bos_id)
      .def_prop_ro("eos_id", &Tokenizer::eos_id)
      .def_prop_ro("pad_id", &Tokenizer::pad_id)
      .def_prop_ro("chat_template", &Tokenizer::chat_template)
      .def(
          "save", &save, "folder"_a, nb::kw_only(), "overwrite"_a = false,
          "Writes the tokenizer's files into a folder. With overwrite, those of another tokenizer there are replaced, and\n"
          "removed where this one has no such file.");
}

}  // namespace dsmoe::python
