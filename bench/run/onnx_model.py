"""Writes a model for ONNX Runtime: a stack of dense layers with random weights, for batches of any length.

    onnx_model.py MODEL.onnx
"""

import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, LAYERS = 512, 8

random = numpy.random.default_rng(1)
weights, nodes, last = [], [], "input"
for layer in range(LAYERS):
    values = random.standard_normal((WIDTH, WIDTH), numpy.float32) * (2 / WIDTH) ** 0.5
    weights.append(numpy_helper.from_array(values, f"weight{layer}"))
    nodes.append(helper.make_node("MatMul", [last, f"weight{layer}"], [f"product{layer}"]))
    nodes.append(helper.make_node("Relu", [f"product{layer}"], [f"relu{layer}"]))
    last = f"relu{layer}"
nodes.append(helper.make_node("Softmax", [last], ["output"]))
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in ("input", "output")]
graph = helper.make_graph(nodes, "dense", ends[:1], ends[1:], weights)
onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), sys.argv[1])
