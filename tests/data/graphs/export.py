"""Exports the ONNX files beside it, with the weights left out: python export.py [NAME...].

Needs torch 2.13.0, torchvision 0.28.0, transformers and onnxscript; no accelerator. Weights are
random and never written: each large tensor is marked as lying in a file that does not exist.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
import torchvision
import transformers
from onnx import TensorProto

FOLDER = Path(__file__).parent
LARGEST = 64  # elements of the tensors that stay: shapes, axes, scales


class Logits(torch.nn.Module):
    """A language model without its cache."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, use_cache=False).logits


def gpt2_medium(path: str) -> None:
    """GPT-2 of 24 layers by torch's exporter of today, batch and sequence left open."""
    model = Logits(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=24, n_embd=1024, n_head=16
    )))  # fmt: skip
    torch.onnx.export(
        model.eval(), (torch.zeros(2, 128, dtype=torch.long),), path, dynamo=True,
        input_names=["ids"], output_names=["logits"], external_data=True,
        dynamic_shapes={"ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}},
    )  # fmt: skip


def resnet50(path: str) -> None:
    """ResNet-50 by TorchScript, which folds the batch norms; the batch left open."""
    model = torchvision.models.resnet50()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)  # equal tensors would be written once
    torch.onnx.export(
        model.eval(), (torch.zeros(2, 3, 224, 224),), path, dynamo=False, opset_version=17,
        input_names=["image"], output_names=["scores"],
        dynamic_axes={"image": {0: "batch"}, "scores": {0: "batch"}},
    )  # fmt: skip


def encoder(path: str) -> None:
    """Two layers of an encoder; norms, GELU and attention are single operators of opset 14."""
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, activation="gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model.train()  # in evaluation torch calls one fused operator that no exporter knows
    torch.onnx.export(
        model, (torch.zeros(2, 16, 256),), path, dynamo=False, opset_version=14,
        input_names=["x"], output_names=["y"], training=torch.onnx.TrainingMode.TRAINING,
    )  # fmt: skip


def stripped(path: str) -> onnx.ModelProto:
    """Returns a model without weights, traces and names of source lines."""
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
    model.graph.ClearField("metadata_props")
    model.ClearField("metadata_props")
    for tensor in model.graph.initializer:
        tensor.ClearField("metadata_props")
        if torch.Size(tensor.dims).numel() > LARGEST:
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                tensor.ClearField(field)
            del tensor.external_data[:]
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="weights")
    return model


EXPORTS: dict[str, Callable[[str], None]] = {
    "gpt2-medium": gpt2_medium,
    "resnet50": resnet50,
    "encoder-opset14": encoder,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    for name in sys.argv[1:] or EXPORTS:
        whole = f"{name}-with-weights.onnx"
        EXPORTS[name](whole)
        onnx.save(stripped(whole), FOLDER / f"{name}.onnx")
