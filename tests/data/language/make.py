"""Make the language models of this folder: two layers, random weights, by the exporters of three runtimes.

    pip install torch==2.13.0 litert-torch==0.10.0 onnxruntime-genai==0.18.0 transformers==5.24.0 onnxscript onnx-ir
    python make.py
    pip install torch==2.13.0 executorch==1.5.1  # and opscope
    python make.py executorch

``executorch-*.pte`` is what ``export_llm`` makes of a configuration: one method of tokens and a position.
``genai-fp32`` and ``genai-int4`` are folders of ONNX Runtime's generative library, ``litert-*.tflite`` are models of
LiteRT's generative layers with the signatures ``prefill_16`` and ``decode``.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch

HERE = Path(__file__).parent
LAYERS, WIDTH, HIDDEN, HEADS, SHARED, WORDS, CONTEXT, PROMPT = 2, 64, 128, 4, 2, 64, 64, 16


def genai() -> None:
    """Folders of ONNX Runtime's generative library, from a checkpoint of transformers."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    words = {f"t{number}": number for number in range(WORDS)}
    special = {"unk_token": "t3", "bos_token": "t1", "eos_token": "t2", "pad_token": "t0"}
    words_of = Tokenizer(models.WordLevel(words, unk_token=special["unk_token"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_of, **special)
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "source"
        LlamaForCausalLM(config).eval().save_pretrained(source)
        tokenizer.save_pretrained(source)
        for precision in ("fp32", "int4"):
            out = Path(directory) / precision
            command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", out]
            subprocess.run([*command, "-p", precision, "-e", "cpu", "-c", Path(directory) / "cache"], check=True)
            target = HERE / f"genai-{precision}"
            target.mkdir(exist_ok=True)
            for name in ("model.onnx", "model.onnx.data", "genai_config.json"):
                shutil.copyfile(out / name, target / name)


def litert() -> None:
    """Models of LiteRT's generative layers."""
    import torch._dynamo  # before the stand-in, which it would look into
    import torch.export
    from ai_edge_litert import schema_py_generated

    # litert-torch takes the schema from tensorflow; the same one is in LiteRT's own package.
    for name in ("tensorflow", "tensorflow.lite", "tensorflow.lite.python"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
    sys.modules["tensorflow.lite.python"].schema_py_generated = schema_py_generated
    sys.modules["tensorflow.lite.python.schema_py_generated"] = schema_py_generated

    from litert_torch.generative.layers import model_config as made
    from litert_torch.generative.utilities import converter, export_config, model_builder

    norm = made.NormalizationConfig(type=made.NormalizationType.RMS_NORM)
    block = made.TransformerBlockConfig(
        attn_config=made.AttentionConfig(
            num_heads=HEADS,
            head_dim=WIDTH // HEADS,
            num_query_groups=SHARED,
            rotary_base=10000,
            rotary_percentage=1.0,
        ),
        ff_config=made.FeedForwardConfig(
            type=made.FeedForwardType.GATED,
            activation=made.ActivationConfig(made.ActivationType.SILU),
            intermediate_size=HIDDEN,
        ),
        pre_attention_norm_config=norm,
        post_attention_norm_config=norm,
    )
    config = made.ModelConfig(
        vocab_size=WORDS,
        num_layers=LAYERS,
        max_seq_len=CONTEXT,
        embedding_dim=WIDTH,
        block_configs=block,
        final_norm_config=norm,
        lm_head_share_weight_with_embedding=False,
    )
    for quantised, name in (("none", "fp32"), ("dynamic_int8", "int8"), ("dynamic_int4_block32", "int4")):
        torch.manual_seed(0)
        model = model_builder.DecoderOnlyModel(config, mask_cache_size=CONTEXT).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.02)
        with tempfile.TemporaryDirectory() as directory:
            made_file = converter.convert_to_tflite(
                model,
                output_path=directory,
                output_name_prefix="model",
                prefill_seq_len=[PROMPT],
                kv_cache_max_len=CONTEXT,
                quantize=quantised,
                config=config,
                export_config=export_config.ExportConfig(),
            )
            shutil.copyfile(made_file, HERE / f"litert-{name}.tflite")


def executorch() -> None:
    """Programs of ExecuTorch's export_llm, and what their export recorded, without weights."""
    from executorch.examples.models.llama.export_llama_lib import export_llama, get_llama_model
    from executorch.extension.llm.export.config.llm_config import LlmConfig

    from opscope.runtimes.executorch.etrecord import slim_etrecord

    shape = {
        "dim": WIDTH,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "n_kv_heads": SHARED,
        "vocab_size": WORDS,
        "hidden_dim": HIDDEN,
    }
    for name, quantised in (("fp32", None), ("int4", "8da4w")):
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            config = LlmConfig()
            config.base.params = f"{directory}/params.json"
            Path(config.base.params).write_text(json.dumps(shape))
            config.model.use_kv_cache = config.model.use_sdpa_with_kv_cache = True
            config.export.max_seq_length = config.export.max_context_length = CONTEXT
            config.export.output_name = f"{directory}/model.pte"
            config.backend.xnnpack.enabled = config.backend.xnnpack.extended_ops = True
            config.debug.generate_etrecord = True
            torch.manual_seed(0)
            named = get_llama_model(config)[0].named_parameters()
            weights = {n: torch.ones(w.shape) if w.dim() == 1 else 0.02 * torch.randn(w.shape) for n, w in named}
            config.base.checkpoint = f"{directory}/checkpoint.pth"
            torch.save(weights, config.base.checkpoint)
            if quantised:
                config.quantization.qmode, config.quantization.group_size = quantised, 32
            export_llama(config)
            shutil.copyfile(f"{directory}/model.pte", HERE / f"executorch-{name}.pte")
            (HERE / f"executorch-{name}.etrecord").write_bytes(slim_etrecord(Path(directory) / "etrecord.bin"))


if __name__ == "__main__":
    if sys.argv[1:] == ["executorch"]:
        executorch()
    else:
        genai()
        litert()
