"""What all tests share: hypothesis, repeatable and without wall-clock deadlines on a busy machine; and Triton's
interpreter where there is no GPU, which has to be chosen before Triton is first imported."""

import os

import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")
