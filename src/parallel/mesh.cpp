#include "parallel/mesh.h"

#include "core/fail.h"

namespace dsmoe::parallel {

Mesh one_rank() {
  const std::shared_ptr<Comm> alone = self();
  return {alone, alone, alone};
}

Mesh make_mesh(std::shared_ptr<Comm> world, std::int64_t expert_parallel) {
  const int size = world->size(), rank = world->rank();
  require(expert_parallel >= 1 && size % expert_parallel == 0,
          "expert-parallel is {}, but there are {} ranks: it must divide their number", expert_parallel, size);
  Mesh mesh;
  mesh.world = world;
  const int group = static_cast<int>(expert_parallel);
  mesh.data = group == 1 ? world : world->split(rank % group);
  mesh.experts = group == size ? world : world->split(rank / group);
  return mesh;
}

}  // namespace dsmoe::parallel
