"""What ``scripts/gpu-torch-tests`` installs as ``sitecustomize``: each Python process begins with it."""

import os

if os.environ.get("MILLPOND_TORCH_SUITE"):
    import millpond.torch

    millpond.torch.enable()
