"""The run config tree: what a person writes as TOML, the store keeps as JSON and the trainer parses, by one class.

One file per concern; `tree.py` has the root and what the sections must agree on. The docstring under a field is its
help text in the JSON schema, the launch form and the API docs, so it is written for the person who launches a run. How
files, environment variables and overrides become this tree: `trainers/config.py`. Imports neither torch nor Django.
"""

from trainers.run_config.algorithm import AlgorithmConfig, CorrectionsConfig, FiltersConfig, TermsConfig
from trainers.run_config.data import DataConfig
from trainers.run_config.losses import (
    AdvantageMethod,
    AipoLoss,
    CispoLoss,
    CrossEntropyLoss,
    CustomLoss,
    DapoLoss,
    DistillLoss,
    DppoLoss,
    DrGrpoLoss,
    GrpoLoss,
    GspoLoss,
    GspoTokenLoss,
    LossConfig,
    LossSection,
    MaskedIsLoss,
    Normaliser,
    OpoLoss,
    RlooLoss,
    SapoLoss,
)
from trainers.run_config.model import LORA_RANKS, LoraConfig, ModelConfig
from trainers.run_config.policies import PolicyRef
from trainers.run_config.pools import PoolsConfig
from trainers.run_config.review import ReviewConfig
from trainers.run_config.sampling import BatchConfig, EnvironmentRef, SamplingConfig
from trainers.run_config.schedule import WeightPoint
from trainers.run_config.section import ConfigProblem, CrossFieldError, Section
from trainers.run_config.serving import EvaluationConfig, InferenceConfig, LauncherConfig, WorkersConfig
from trainers.run_config.tracking import TrackingConfig
from trainers.run_config.trainer import OptimizerConfig, TrainerConfig
from trainers.run_config.tree import RunConfig

__all__ = [
    "LORA_RANKS",
    "AdvantageMethod",
    "AipoLoss",
    "AlgorithmConfig",
    "BatchConfig",
    "CispoLoss",
    "ConfigProblem",
    "CorrectionsConfig",
    "CrossEntropyLoss",
    "CrossFieldError",
    "CustomLoss",
    "DapoLoss",
    "DataConfig",
    "DistillLoss",
    "DppoLoss",
    "DrGrpoLoss",
    "EnvironmentRef",
    "EvaluationConfig",
    "FiltersConfig",
    "GrpoLoss",
    "GspoLoss",
    "GspoTokenLoss",
    "InferenceConfig",
    "LauncherConfig",
    "LoraConfig",
    "LossConfig",
    "LossSection",
    "MaskedIsLoss",
    "ModelConfig",
    "Normaliser",
    "OpoLoss",
    "OptimizerConfig",
    "PolicyRef",
    "PoolsConfig",
    "ReviewConfig",
    "RlooLoss",
    "RunConfig",
    "SamplingConfig",
    "SapoLoss",
    "Section",
    "TermsConfig",
    "TrackingConfig",
    "TrainerConfig",
    "WeightPoint",
    "WorkersConfig",
]
