#include "model/followed_passes.h"

#include <cstring>

#include "core/caught_error.h"
#include "core/fail.h"
#include "model/transformer.h"

namespace dsmoe {

namespace {

enum Message : Index { kEnd, kPool, kCopy, kRun };

// The numbers of one message, taken one after another.
class Told {
 public:
  explicit Told(parallel::Comm& world) {
    const std::string text = world.broadcast("", 0);
    numbers_.resize(text.size() / sizeof(Index));
    std::memcpy(numbers_.data(), text.data(), text.size());
  }
  Index next() {
    invariant(at_ < numbers_.size(), "a message of the first rank is too short");
    return numbers_[at_++];
  }
  std::vector<Index> list() {
    std::vector<Index> all(static_cast<std::size_t>(next()));
    for (Index& n : all) n = next();
    return all;
  }

 private:
  std::vector<Index> numbers_;
  std::size_t at_ = 0;
};

ForwardBatch batch_of(Told& told, KvPool& pool) {
  std::vector<std::int32_t> ids;
  for (const Index id : told.list()) ids.push_back(static_cast<std::int32_t>(id));
  ForwardBatch batch = ForwardBatch::followed(std::move(ids), pool);
  for (Index slices = told.next(); slices > 0; --slices) {
    const Index rows = told.next(), position = told.next(), context = told.next();
    batch.add_followed(rows, position, context, told.list());
  }
  return batch;
}

}  // namespace

void PassLeader::tell(const std::vector<Index>& numbers) const {
  if (lost()) throw *lost();
  std::string text(numbers.size() * sizeof(Index), '\0');
  std::memcpy(text.data(), numbers.data(), text.size());
  try {
    state_->world->broadcast(std::move(text), 0);
  } catch (...) {  // some may have heard a part of it
    lose(caught_error());
    throw;
  }
}

void PassLeader::new_pool(Index tokens, DType dtype) const { tell({kPool, tokens, static_cast<Index>(dtype)}); }
void PassLeader::copy_page(Index from, Index to, Index tokens) const { tell({kCopy, from, to, tokens}); }
void PassLeader::end() const { tell({kEnd}); }

void PassLeader::run(const ForwardBatch& batch) const {
  require(batch.placed_ids().numel() == 0, "a pass whose tokens are not known yet cannot be followed");
  std::vector<Index> numbers = {kRun, batch.tokens()};
  numbers.insert(numbers.end(), batch.ids().begin(), batch.ids().end());
  numbers.push_back(static_cast<Index>(batch.slices().size()));
  for (const ops::Slice& s : batch.slices()) {
    numbers.insert(numbers.end(), {s.rows, s.first_position, s.context, static_cast<Index>(s.tiles.size())});
    numbers.insert(numbers.end(), s.tiles.begin(), s.tiles.end());
  }
  tell(numbers);
}

void follow_passes(Context& ctx, const Transformer& model, parallel::Comm& world) {
  std::shared_ptr<KvPool> pool;
  for (;;) {
    Told told(world);
    const Index message = told.next();
    if (message == kEnd) return;
    if (message == kPool) {
      const Index tokens = told.next();
      pool = model.make_kv_pool(tokens, static_cast<DType>(told.next()));
      continue;
    }
    invariant(pool != nullptr, "a pass came before its KV cache");
    if (message == kCopy) {
      const Index from = told.next(), to = told.next();
      pool->copy(ctx, from, to, told.next());
      continue;
    }
    try {
      static_cast<void>(model.forward(ctx, batch_of(told, *pool)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNumeric) throw;
    }
  }
}

}  // namespace dsmoe
