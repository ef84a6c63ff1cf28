"""Fine-tunes a model on a text file with LoRA, and shows what it writes then.

python fine_tune.py MODEL TEXT OUT [STEPS]
"""

import sys

import dsmoe

model, text, out = sys.argv[1:4]
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 100


def on_step(step):
    if step["step"] % 10 == 0:
        print(f"step {step['step']}: loss {step['loss']:.3f}, largest expert load {step['load_max']:.1f} times the mean")


before = dsmoe.Model(model).evaluate(text, limit=8)
result = dsmoe.train(
    out, model=model, data=[text], steps=steps, lora_rank=8, batch_size=4, seq_len=64, warmup_steps=2, on_step=on_step
)
tuned = dsmoe.Model(result.folder)
after = tuned.evaluate(text, limit=8)
print(f"perplexity {before.perplexity:.2f} before, {after.perplexity:.2f} after {result.steps} steps")
for piece in tuned.generate("The", max_tokens=32, temperature=0, stream=True):
    print(piece.text, end="", flush=True)
print()
