// Work beside that of a Context: on a second stream of a GPU, of lower priority, in stages that the Context's own work
// waits for one by one. On a CPU, where nothing runs beside the caller, it is done at once.
#pragma once

#include <functional>
#include <memory>

#include "dsmoe/context.h"

namespace dsmoe {

class SideStream {
 public:
  SideStream();
  ~SideStream();  // what is launched goes on; see wait()
  SideStream(SideStream&&) noexcept;

  // work(stage) for each stage launches on the Context what comes after all that it has been given so far, and after the
  // stages before. It must not allocate: memory belongs to the Context's own stream.
  void run(Context& ctx, Index stages, const std::function<void(Index stage)>& work);

  // What the Context is given from now on comes after this stage and those before it, or after all of them.
  void wait(const Context& ctx, Index stage) const;
  void wait(const Context& ctx) const;
  void wait() const;  // the Context that run() had
  bool pending() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe
