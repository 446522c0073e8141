"""One forward pass of a BERT-like encoder from given weights, in transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

SENTENCES = ["A tensor has an identity of its own.", "Load once, attach everywhere."]


def forward_pass(folder: Path, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sentence embeddings (2, 384) float32, mean-pooled, normalised. Raises on a missing or extra weight."""
    config = BertConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model = BertModel(config)
    # assign=True: the model computes on the attached memory itself, not on a copy of it. Position ids are a buffer
    # that older checkpoints store and newer models rebuild.
    wanted = {k: v for k, v in weights.items() if not k.endswith("position_ids")}
    model.load_state_dict(wanted, strict=True, assign=True)
    length = config.max_position_embeddings
    embeddings = model.embeddings
    embeddings.register_buffer("position_ids", torch.arange(length).unsqueeze(0))
    embeddings.register_buffer("token_type_ids", torch.zeros((1, length), dtype=torch.long))
    tokenizer = BertTokenizerFast.from_pretrained(folder, local_files_only=True)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    model.train(mode=False)
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).float()
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
