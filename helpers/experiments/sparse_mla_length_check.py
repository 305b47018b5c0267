"""The prefill inside a CUDA graph, first as it is, then with the check that reads the values of topk_length."""

from __future__ import annotations

import torch

from helpers import topology
from helpers.calls import same_bits
from helpers.experiments._prefill import valid_call

if topology.exists(topology.HOME):
    call = valid_call()
    call.run()
    eager = call["out"].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
    call["out"].zero_()
    graph.replay()
    told = f"captured without the check; the replay equals the eager call: {same_bits(call['out'], eager)}"
    call["check_topk_length_values"] = True
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call.run()
        told += ". Captured with the check too"
    except RuntimeError as error:
        # The error that ended the capture; the one on top of it only says that the capture came to nothing.
        first = error.__context__ or error
        told += f". With the check the capture failed: {str(first).splitlines()[0]}"
else:
    missing = "there is no GPU here, so there is no CUDA graph to capture"
