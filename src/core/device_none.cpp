// The GPU functions of a build without CUDA.
#include "core/device.h"
#include "core/fail.h"
#include "core/side_stream.h"
#include "core/timeline.h"

namespace dsmoe::device {

namespace {

[[noreturn]] void not_built() {
  fail(ErrorCode::kUnsupported, "this build has no CUDA backend; configure with -DDSMOE_CUDA=ON (needs nvcc)");
}

}  // namespace

bool available() { return false; }
int count() { return 0; }
void use(int) { not_built(); }
std::shared_ptr<void> allocate(std::size_t, Stream) { not_built(); }
Usage usage() { return {}; }
void reset_peak() {}
void copy(void*, Device, const void*, Device, std::size_t, Stream) { not_built(); }
void end_uploads() {}
void upload(void*, const void*, std::size_t, Stream) { not_built(); }
void copy_rows(void*, Device, std::size_t, const void*, Device, std::size_t, std::size_t, std::size_t, Stream) {
  not_built();
}
Memory memory() { not_built(); }
void release_cached() {}
void fill_bytes(void*, int, std::size_t, Stream) { not_built(); }
std::shared_ptr<GraphMemory> graph_memory() { not_built(); }
std::shared_ptr<Graph> capture(Stream, const std::function<void()>&, std::shared_ptr<GraphMemory>) { not_built(); }
void launch(const Graph&, Stream) { not_built(); }
struct Download::Impl {};
Download::Download(std::size_t) { not_built(); }
Download::~Download() = default;
void Download::copy(std::size_t, const void*, std::size_t, Stream) { not_built(); }
void Download::end(Stream) { not_built(); }
const std::byte* Download::wait() { not_built(); }
Stream default_stream() { not_built(); }
void wait(Stream) { not_built(); }
bool capturing(Stream) { return false; }

}  // namespace dsmoe::device

namespace dsmoe {

struct Timeline::Impl {};
Timeline::Timeline() = default;
Timeline::~Timeline() = default;
std::vector<std::pair<std::string, double>> Timeline::seconds() { return {}; }
void mark(const Context&, const char*) {}

struct SideStream::Impl {};
SideStream::SideStream() = default;
SideStream::~SideStream() = default;
SideStream::SideStream(SideStream&&) noexcept = default;
void SideStream::run(Context&, Index stages, const std::function<void(Index stage)>& work) {
  for (Index stage = 0; stage < stages; ++stage) work(stage);
}
void SideStream::wait(const Context&, Index) const {}
void SideStream::wait(const Context&) const {}
void SideStream::wait() const {}
bool SideStream::pending() const { return false; }

}  // namespace dsmoe
