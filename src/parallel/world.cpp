#include "parallel/world.h"

#include <algorithm>
#include <cstdlib>

#include "core/topology.h"

namespace dsmoe::parallel {

namespace {

long number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

}  // namespace

int ranks_on_this_machine() {
  for (const char* const name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_TASKS_PER_NODE"})
    if (const long n = number_of(name); n > 0) return static_cast<int>(n);
  return 1;
}

int rank_on_this_machine() {
  for (const char* const name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (std::getenv(name) != nullptr) return static_cast<int>(number_of(name));
  return 0;
}

int threads_per_rank(int usable) {
  return std::max(1, std::min(usable, whole_machine_topology().default_threads() / ranks_on_this_machine()));
}

bool started_as_rank() {
  if (number_of("OMPI_COMM_WORLD_SIZE") > 1 || number_of("PMI_SIZE") > 1) return true;
  return std::getenv("PMIX_RANK") != nullptr && number_of("SLURM_NTASKS") > 1;
}

}  // namespace dsmoe::parallel
