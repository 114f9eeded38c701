"""Write the benchmarks' checkpoint in the forms that other engines read.

    python -m bench.export FOLDER --openvino PYTHON     FOLDER/openvino; its Python has optimum-intel, transformers<5
    python -m bench.export FOLDER --gguf PYTHON --llama-source CHECKOUT
                                                        FOLDER/gguf; its Python has transformers<5, sentencepiece

Both converters know transformers 4 only, so both read FOLDER/older: the same weights behind the older configuration.
Owns the forms; knows nothing of how they are served.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

OLDER, OPENVINO, GGUF = "older", "openvino", "gguf"
AS_THEY_ARE = ("model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json")
# llama.cpp refuses a vocabulary without merges; "w0" is never one piece of text, so that this one never happens.
NO_MERGES = "#version: 0.2\n\u0120 w0\n"
# The converter knows tokenizers by a hash of what they do, and not ours; text is cut as Qwen's is, then into bytes.
CONVERT = """
import runpy, sys
source, sys.argv[1:2] = sys.argv[1], []
sys.path[:0] = [source, source + "/gguf-py"]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
runpy.run_path(source + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def write_older_layout(model: Path, older: Path) -> None:
    """The checkpoint as transformers 4 would have saved it; the weights are a link."""
    older.mkdir(exist_ok=True)
    for name in AS_THEY_ARE:
        (older / name).unlink(missing_ok=True)
        (older / name).symlink_to((model / name).resolve())
    (older / "merges.txt").write_text(NO_MERGES)
    _write(older / "config.json", _older_config(_read(model / "config.json")))
    tokenizer = _read(model / "tokenizer_config.json")
    marks = tokenizer.pop("extra_special_tokens")
    tokenizer |= {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": marks}
    _write(older / "tokenizer_config.json", tokenizer)
    processor = _read(model / "processor_config.json")
    for kind, name in (("image_processor", "preprocessor"), ("video_processor", "video_preprocessor")):
        _write(older / f"{name}_config.json", {**processor[kind], "processor_class": processor["processor_class"]})


def _older_config(config: dict[str, Any]) -> dict[str, Any]:
    text = dict(config["text_config"])
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope["rope_theta"]
    text["rope_scaling"] = {"type": "mrope", "rope_type": "default", "mrope_section": rope["mrope_section"]}
    vision = {name: value for name, value in config["vision_config"].items() if name != "rope_parameters"}
    return {**config, "text_config": text, "vision_config": vision, "torch_dtype": config["dtype"]}


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1))


def export_openvino(python: str, folder: Path) -> None:
    """16-bit weights, which bf16 products read."""
    source, target = str(folder / OLDER), str(folder / OPENVINO)
    flags = ["--model", source, "--task", "image-text-to-text", "--weight-format", "fp16", target]
    _run(python, "-m", "optimum.commands.optimum_cli", "export", "openvino", *flags)


def export_gguf(python: str, llama_source: str, folder: Path) -> None:
    """bf16 weights of the language model, and of the vision tower beside it."""
    (folder / GGUF).mkdir(exist_ok=True)
    for name, flags in (("model", []), ("mmproj", ["--mmproj"])):
        target = str(folder / GGUF / f"{name}.gguf")
        _run(python, "-c", CONVERT, llama_source, str(folder / OLDER), "--outtype", "bf16", "--outfile", target, *flags)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--gguf", metavar="PYTHON")
    parser.add_argument("--llama-source", metavar="CHECKOUT")
    options = parser.parse_args()
    if bool(options.gguf) != bool(options.llama_source):
        parser.error("--gguf and --llama-source go together")
    write_older_layout(options.folder / "model", options.folder / OLDER)
    if options.openvino:
        export_openvino(options.openvino, options.folder)
    if options.gguf:
        export_gguf(options.gguf, options.llama_source, options.folder)


if __name__ == "__main__":
    main()
