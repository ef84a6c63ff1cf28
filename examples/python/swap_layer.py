"""Puts the layer in place of the MoE blocks of a Hugging Face model, and compares outputs and time.

python swap_layer.py [FOLDER]     (without one: a small DeepSeek-V3 with random weights)
"""

import sys
import time

import torch
import transformers

import dsmoe.torch


def small_model():
    config = transformers.DeepseekV3Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4,
        n_group=4, topk_group=2, first_k_dense_replace=0, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16,
        qk_rope_head_dim=16, v_head_dim=16,
    )  # fmt: skip
    return transformers.DeepseekV3ForCausalLM(config)


def run(model, ids):
    began = time.perf_counter()
    loss = model(ids, labels=ids).loss + dsmoe.torch.aux_loss(model)
    loss.backward()
    return loss.item(), time.perf_counter() - began


torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]) if len(sys.argv) > 1 else small_model()
ids = torch.randint(model.config.vocab_size, (4, 128))
run(model, ids)
before, seconds = run(model, ids)
print(dsmoe.torch.replace(model))
run(model, ids)
after, faster = run(model, ids)
print(f"loss {before:.5f} and {after:.5f}; forward and backward took {seconds:.3f} s and {faster:.3f} s")
