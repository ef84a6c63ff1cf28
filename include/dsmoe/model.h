// A language model with its tokenizer, from a Hugging Face folder or a GGUF file. Held by shared_ptr: sessions and training
// runs keep their model alive.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "dsmoe/generation_config.h"
#include "dsmoe/kv_type.h"
#include "dsmoe/model_config.h"
#include "dsmoe/numa.h"
#include "dsmoe/options.h"
#include "dsmoe/storage.h"
#include "dsmoe/tensor.h"
#include "dsmoe/tokenizer.h"

namespace dsmoe {

template <>
struct OptionNames<Device> {
  static constexpr std::array values = {std::pair{Device::kCpu, "cpu"}, std::pair{Device::kCuda, "cuda"}};
};

struct ModelOptions {
  std::optional<Device> device;
  std::optional<DType> dtype;
  Storage storage = Storage::kAuto;
  // For the whole process, and for what is made from then on: load the model before the first Context. Weights are placed
  // when they are read into memory, not in mapped files.
  Numa numa = Numa::kOff;
  // What a GPU must have room for besides the weights, for the check before anything is loaded: tokens of all sequences in
  // the KV cache (0: as many as the model was trained for), and their type. Unset: the weights alone.
  std::optional<Index> cache_tokens;
  std::optional<KvType> kv_type;
  // Under mpirun: the routed experts are spread over the ranks, each of which reads those it has. All ranks must then make
  // the same calls with the same tokens; the results have the bits of one process. A rank on which a call throws must end
  // the job (MPI_Abort): the others wait for it.
  bool spread_experts = false;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes read into memory, or copied to a GPU

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.device, {"device", "Where the model runs (auto: a GPU if there is one and the model fits it)"});
    v(o.dtype, {"dtype", "Dtype of the weights in memory (auto: as stored, including quantized)"});
    v(o.storage, {"load",
                  "Read the weights into memory (fastest), or mmap the file (starts at once; processes share it); "
                  "auto: memory if they fit"});
    v(o.numa, {"numa",
               "With several memory nodes: distribute spreads threads and weights over them; isolate stays on the node "
               "that the program is on; numactl keeps to numactl's settings, as off does"});
  }
};

class Model {
 public:
  // The path of a folder or of a .gguf file. Throws with what to do when there is no model.
  static std::shared_ptr<Model> load(const std::filesystem::path& path, const ModelOptions& options = {});
  // Random weights to train from, f32 or bf16.
  static std::shared_ptr<Model> random(const ModelConfig& config, std::uint64_t seed, DType dtype = DType::kF32,
                                       std::optional<Tokenizer> tokenizer = {});
  // The tokenizer alone, also from a tokenizer.json; none when there is no tokenizer.
  static std::optional<Tokenizer> load_tokenizer(const std::filesystem::path& path);
  ~Model();

  const ModelConfig& config() const;
  const std::optional<Tokenizer>& tokenizer() const;
  // Defaults that come with the model: generation().sampler() for sampling. A Session ends a text at its eos tokens, and
  // otherwise does what its caller's options say.
  const GenerationConfig& generation() const;
  DType dtype() const;                        // of the activations
  Device device() const;                      // where it runs
  const std::filesystem::path& path() const;  // that it was loaded from; empty for none

  // As a Hugging Face folder, in the dtype that it has in memory. Quantized weights are refused: load them with a dtype.
  // So are folders with files of a model, unless `overwrite`, and always those of a training run. Other files are left
  // alone.
  void save(const std::filesystem::path& folder, bool overwrite = false) const;

  struct Impl;  // the library's own
  explicit Model(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe
