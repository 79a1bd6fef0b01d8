"""ONNX Runtime: a model with batches of varying length, on the CUDA provider.

    onnx_job.py MODEL.onnx [NAME=VALUE…]      options of the provider
"""

import sys
import time

import numpy
import onnxruntime

model, *options = sys.argv[1:]
provider = ("CUDAExecutionProvider", dict(option.split("=") for option in options))
session = onnxruntime.InferenceSession(model, providers=[provider])
assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
width = session.get_inputs()[0].shape[1]
random = numpy.random.default_rng(2)
began, total = time.perf_counter(), 0.0
for turn in range(60):
    batch = random.standard_normal((64 + 640 * (turn % 13), width), numpy.float32)
    total += float(session.run(None, {"input": batch})[0].max(axis=1).astype(numpy.float64).sum())
print(f"onnx {' '.join(options)}: result {total!r}, {time.perf_counter() - began:.2f} s")
