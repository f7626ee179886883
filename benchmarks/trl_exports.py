"""Do exported files load elsewhere? Each is read by `datasets` and trained on by the trainer of TRL for its form.

    python -m venv /venv && /venv/bin/pip install trl==1.16.0 torch==2.13.0 transformers==5.19.0 accelerate==1.15.0
    rollyard export-sft good@3 -o good; rollyard export-dpo pairs@1 -o pairs.jsonl.gz
    rollyard export-kto RUN --unwanted-below 0.5 -o kto.parquet
    /venv/bin/python -m benchmarks.trl_exports MODEL good pairs.jsonl.gz kto.parquet

The columns say which form a file has. A directory of a version is as good as a file. Nothing of Rollyard is imported.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

_BATCH = 4
_TRAINERS = {"sft": (SFTTrainer, SFTConfig), "dpo": (DPOTrainer, DPOConfig), "kto": (KTOTrainer, KTOConfig)}


def main() -> int:
    """Train on each, and print a line of JSON for it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trl_exports")
    parser.add_argument("model", type=Path)
    parser.add_argument("exports", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    for path in options.exports:
        rows = _load(path)
        print(json.dumps({"export": str(path), **_learn(options.model, rows, options.steps)}), flush=True)
    return 0


def _load(path: Path) -> Dataset:
    if path.is_dir():
        rows = load_dataset(str(path))
    else:
        rows = load_dataset("parquet" if path.suffix == ".parquet" else "json", data_files=str(path))
    return rows["train"].filter(lambda row: row["prompt"] is not None)


def _learn(model: Path, rows: Dataset, steps: int) -> dict[str, Any]:
    """Its form, and the loss of TRL's trainer over some steps."""
    form = "dpo" if "rejected" in rows.column_names else "kto" if "label" in rows.column_names else "sft"
    trainer, config = _TRAINERS[form]
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with tempfile.TemporaryDirectory() as directory:
        arguments = config(
            output_dir=directory,
            max_steps=steps,
            per_device_train_batch_size=_BATCH,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
        )
        learner = AutoModelForCausalLM.from_pretrained(model)
        made = trainer(model=learner, args=arguments, train_dataset=rows, processing_class=tokenizer)
        return {"form": form, "rows": len(rows), "steps": steps, "loss": round(made.train().training_loss, 4)}


if __name__ == "__main__":
    raise SystemExit(main())
