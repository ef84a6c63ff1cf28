// Training in a program of your own: fine_tune FOLDER trains a tiny model for a few steps on built-in text, then fine-tunes
// it with LoRA. Both are model folders afterwards, with checkpoints and logs.
#include <dsmoe/error.h>
#include <dsmoe/session.h>
#include <dsmoe/trainer.h>

#include <cstdio>
#include <string>

namespace {

void train(const dsmoe::train::RunSetup& setup) {
  dsmoe::train::TrainingRun run(setup);
  dsmoe::train::RunHooks hooks;
  hooks.step = [](const dsmoe::train::StepRecord& r) {
    std::printf("step %lld: loss %.3f, lr %.2g\n", static_cast<long long>(r.step), r.result.loss, r.result.rate);
  };
  run.run(hooks);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "fine_tune";
  dsmoe::train::RunSetup setup;
  setup.preset = "tiny";
  setup.out = folder + "/base";
  setup.train.steps = 10;
  setup.train.batch_size = 4;
  setup.train.seq_len = 64;
  train(setup);

  setup.preset.clear();
  setup.model = folder + "/base";
  setup.out = folder + "/tuned";
  setup.train.lora_rank = 4;
  setup.train.steps = 3;
  train(setup);

  dsmoe::Session session(dsmoe::Model::load(setup.out));
  std::printf("Once upon a time%s\n", session.generate("Once upon a time", {.max_tokens = 16}).text.c_str());
  return 0;
} catch (const dsmoe::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
