"""check.py: reads command lines of swift from standard input, one JSON object in each line, and prints what ms-swift's own
parser says of each: OK, or why not. It loads no weights and opens no connection.

    {"arguments": ["swift", "sft", "--model", ...], "environment": {"NNODES": "2"}, "device": "nvidia"}

Real are the names of subcommands, the parser of the flags with its check that none is left over, and what swift, transformers,
trl and accelerate check of the values together. Replaced are the looks at models and adapters, which are not here, the look
at a hub's account, and the answers of the hardware. What trainers check when they are built is repeated in `refused_later`.
"""

import contextlib
import io
import json
import os
import socket
import sys
import tempfile

FOLDER = tempfile.mkdtemp()
os.environ.update(
    {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "HF_HOME": FOLDER, "HF_HUB_OFFLINE": "1", "MODELSCOPE_CACHE": FOLDER}
)
os.chdir(FOLDER)
sys.argv = sys.argv[:1]


def no_connection(*_arguments, **_options):
    raise OSError("the parser has asked for a connection")


socket.socket.connect = no_connection
socket.create_connection = no_connection
# What swift prints goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import swift.arguments.base_args.base_args as base_args
import swift.arguments.base_args.model_args as model_args
import swift.arguments.sft_args as sft_args
import swift.model.model_meta as model_meta
import swift.trainers.arguments as trainer_args
import swift.utils
import transformers.training_args as training_args
from swift.arguments import PretrainArguments, RLHFArguments, SftArguments
from swift.callbacks.mapping import callbacks_map
from swift.hub.hub import MSHub

CLASSES = {"sft": SftArguments, "pt": PretrainArguments, "rlhf": RLHFArguments}
# The parser looks at it; the others would start processes.
PASSED_ON = ["USE_HF"]
GPUS = ["nvidia", "ascend"]


def folder(name, file, content):
    path = os.path.join(FOLDER, name)
    os.makedirs(path)
    with open(os.path.join(path, file), "w") as written:
        json.dump(content, written)
    return path


MODEL = folder(
    "Qwen2.5-7B-Instruct",
    "config.json",
    {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "vocab_size": 259,
        "torch_dtype": "bfloat16",
    },
)
ADAPTER = folder("adapter", "adapter_config.json", {"peft_type": "LORA"})


def model_of(name, *_arguments, **_options):
    return os.path.abspath(name) if os.path.isdir(name) else MODEL


def init_adapters(arguments):
    if isinstance(arguments.adapters, str):
        arguments.adapters = [arguments.adapters]
    arguments.adapters = [path if os.path.isdir(path) else ADAPTER for path in arguments.adapters]


def replace_looks():
    MSHub.try_login = classmethod(lambda _class, token=None: bool(token))
    model_meta.safe_snapshot_download = model_of
    base_args.safe_snapshot_download = model_of
    base_args.BaseArguments._init_adapters = init_adapters
    meta_of = model_meta.get_matched_model_meta
    model_meta.get_matched_model_meta = lambda name: meta_of(name) or meta_of("Qwen/Qwen2.5-7B-Instruct")
    absolute = sft_args.to_abspath
    sft_args.to_abspath = lambda path, check=False: absolute(path, False)
    if hasattr(trainer_args, "to_abspath"):
        trainer_args.to_abspath = sft_args.to_abspath


def pretend(device):
    training_args.is_torch_bf16_gpu_available = lambda: device in GPUS
    model_args.is_torch_mps_available = lambda *_arguments, **_options: device == "mps"
    sft_args.get_device_count = lambda: 0


def refused_later(command, arguments):
    """Checks of swift/trainers/mixin.py, pipelines/train/tuner.py, pipelines/train/rlhf.py and trl's PPOTrainer."""
    unknown = [name for name in arguments.callbacks if name not in callbacks_map]
    if unknown:
        return f"unknown callbacks: {unknown}"
    if arguments.tuner_type not in base_args.get_supported_tuners():
        return f"unknown tuner_type: {arguments.tuner_type}"
    if command == "rlhf" and arguments.ref_adapters and arguments.rlhf_type not in ("dpo", "kto", "grpo"):
        return f"ref_adapters are not for {arguments.rlhf_type}"
    if command == "rlhf" and arguments.rlhf_type == "ppo" and not arguments.reward_model:
        return "ppo without a reward_model"
    if arguments.tuner_type == "full" and arguments.adapters:
        return "full training ignores adapters"
    return None


def verdict(line):
    pretend(line["device"])
    for name in PASSED_ON:
        os.environ.pop(name, None)
        if name in line["environment"]:
            os.environ[name] = line["environment"][name]
    program, command, *flags = line["arguments"]
    if program != "swift" or command not in CLASSES:
        return f"the parser knows swift with {sorted(CLASSES)}, not {program} {command}"
    if "--output_dir" in flags:
        # It is made by the parser.
        flags[flags.index("--output_dir") + 1] = tempfile.mkdtemp(dir=FOLDER)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments, left_over = swift.utils.parse_args(CLASSES[command], flags)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    if left_over:
        return f"unknown flags: {left_over}"
    return refused_later(command, arguments) or "OK"


replace_looks()
for line in sys.stdin:
    print(verdict(json.loads(line)), file=ANSWERS)
