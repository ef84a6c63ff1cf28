// Every tensor of a model, in the order of the reference's state dict: the one list that counting, initialising, loading,
// saving and training go by. Each module registers its own parameters (modules.h), with all that others need to know
// about them; nobody asks which parameter it is.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dsmoe/model_config.h"
#include "dsmoe/tensor.h"
#include "model/spec.h"

namespace dsmoe {

struct LatentWeights;
struct LayerTensors;
struct ModelTensors;

// What a parameter counts for.
enum class ParameterGroup : std::uint8_t {
  kEmbedding,
  kAttention,
  kDenseMlp,
  kRoutedExperts,
  kSharedExperts,
  kRouter,
  kNorm,
  kHead,
};

enum class InitialValue : std::uint8_t {
  kNormal,   // deviation initializer_range
  kUniform,  // in ±1/sqrt(columns)
  kOnes,
  kZeros,
};

struct ParameterTraits {
  ParameterGroup group = ParameterGroup::kEmbedding;
  InitialValue initial = InitialValue::kNormal;
  bool decay = true;        // weight decay
  bool gradient = true;     // without, it is never changed by the optimizer
  bool always_f32 = false;  // in memory and in a checkpoint, whatever the dtype of the model
  bool adapter = false;     // LoRA trains a product of two thin matrices in its place
  bool activated = true;    // counts for one token; of a layer's routed experts, as many as a token chooses
  // Rows (numbers of a vector) belong to heads of so many, the first `rotary` of which rotary positions turn. 0: not so.
  // Files may have them in another order than memory: row_order.h.
  // The first `before` of a head are no part of that: rotary positions turn what follows them.
  Index head_dim = 0, rotary = 0, before = 0;
  bool dense = false;  // a matrix that a GPU never keeps in quantized blocks, whatever a file has
};

enum class ExpertPart : std::uint8_t { kGate, kUp, kDown };

// A matrix of the layer's experts. Routed ones (Parameter::expert says which) are the last `experts` of them; else it is
// all the first `experts` as one wide MLP: the shared ones, or the one of a dense layer.
struct ExpertPlace {
  ExpertPart part;
  Index experts;
};

// Where the numbers are in ModelTensors: a tensor of the model's or of the layer's own, or a part of the layer's experts.
using ModelPlace = Tensor& (*)(ModelTensors&);
using LayerPlace = Tensor& (*)(LayerTensors&);
using Place = std::variant<ModelPlace, LayerPlace, ExpertPlace>;
// What a layer may have in parts instead, see LatentWeights.
using PartsPlace = LatentWeights& (*)(LayerTensors&);

struct Parameter {
  std::string name;       // as in the checkpoint; the family's
  std::string_view role;  // the module's own, such as "attention.q.weight"; the same in every family, layer and expert
  Shape shape;
  ParameterTraits traits;
  Place place;
  Index layer = -1;   // -1 outside the layers
  Index expert = -1;  // -1 outside the routed experts
  PartsPlace parts = nullptr;

  bool in(ParameterGroup group) const { return traits.group == group; }
};

// Rows are multiplied with it, so it is what gets quantized; vectors and the router stay f32 there.
inline bool is_matrix(const Shape& shape, const ParameterTraits& traits) {
  return shape.rank() >= 2 && traits.group != ParameterGroup::kRouter;
}
inline bool is_matrix(const Parameter& p) { return is_matrix(p.shape, p.traits); }
// What a parameter is kept in, in a model of `dtype`.
inline DType stored_dtype(const Parameter& p, DType dtype) { return p.traits.always_f32 ? DType::kF32 : dtype; }

// Modules add to it, in the order of the list. Roles are string literals.
class ParameterRegistry {
 public:
  using Visit = std::function<void(Parameter&&)>;
  explicit ParameterRegistry(Visit visit) : visit_(std::move(visit)) {}

  void enter_layer(Index layer) { layer_ = layer; }  // what follows belongs to it; -1 outside the layers
  void add(std::string_view role, Shape shape, const ParameterTraits& traits, ModelPlace at) {
    visit_({{}, role, shape, traits, at, -1, -1});
  }
  void add(std::string_view role, Shape shape, const ParameterTraits& traits, LayerPlace at, PartsPlace parts = nullptr) {
    visit_({{}, role, shape, traits, at, layer_, -1, parts});
  }
  void add(std::string_view role, Shape shape, const ParameterTraits& traits, ExpertPlace at, Index expert = -1) {
    visit_({{}, role, shape, traits, at, layer_, expert});
  }

 private:
  Visit visit_;
  Index layer_ = -1;
};

// Without names: what the modules of a spec register, as a list, or one after the other for those who only count.
std::vector<Parameter> registered_parameters(const ModelSpec& spec);
void visit_parameters(const ModelSpec& spec, const std::function<void(const Parameter&)>& visit);
// With the names of the config's family; validates the config first.
std::vector<Parameter> parameter_list(const ModelConfig& config);

}  // namespace dsmoe
