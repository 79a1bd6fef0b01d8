"""Writes a Llama of random weights in GGUF, for llama.cpp: ``llama_model.py VOCABULARY.gguf MODEL.gguf``.

Needs llama.cpp's ``gguf-py`` on the path. The vocabulary is one of llama.cpp's own, ``models/ggml-vocab-llama-spm.gguf``.
"""

import sys

import gguf
import numpy

WIDTH, FEED_FORWARD, LAYERS, HEADS = 1024, 2816, 8, 16

vocabulary, path = sys.argv[1:]
writer = gguf.GGUFWriter(path, "llama")
writer.add_context_length(2048)
writer.add_embedding_length(WIDTH)
writer.add_feed_forward_length(FEED_FORWARD)
writer.add_block_count(LAYERS)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_rope_dimension_count(WIDTH // HEADS)
writer.add_layer_norm_rms_eps(1e-5)
words = {name.removeprefix("tokenizer.ggml."): field.contents() for name, field in gguf.GGUFReader(vocabulary).fields.items()}
writer.add_tokenizer_model(words["model"])
writer.add_token_list(words["tokens"])
writer.add_token_scores(words["scores"])
writer.add_token_types(words["token_type"])
writer.add_bos_token_id(words["bos_token_id"])
writer.add_eos_token_id(words["eos_token_id"])
writer.add_vocab_size(len(words["tokens"]))

random = numpy.random.default_rng(1)


def matrix(name: str, rows: int, columns: int) -> None:
    writer.add_tensor(f"{name}.weight", (random.standard_normal((rows, columns), numpy.float32) * columns**-0.5).astype(numpy.float16))


def norm(name: str) -> None:
    writer.add_tensor(f"{name}.weight", numpy.ones(WIDTH, numpy.float32))


matrix("token_embd", len(words["tokens"]), WIDTH)
matrix("output", len(words["tokens"]), WIDTH)
norm("output_norm")
for layer in range(LAYERS):
    norm(f"blk.{layer}.attn_norm")
    norm(f"blk.{layer}.ffn_norm")
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        matrix(f"blk.{layer}.{part}", WIDTH, WIDTH)
    matrix(f"blk.{layer}.ffn_gate", FEED_FORWARD, WIDTH)
    matrix(f"blk.{layer}.ffn_up", FEED_FORWARD, WIDTH)
    matrix(f"blk.{layer}.ffn_down", WIDTH, FEED_FORWARD)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
