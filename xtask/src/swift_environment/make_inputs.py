"""make_inputs.py FOLDER: FOLDER/model, a Qwen2 of 90 000 random weights, and FOLDER/sums.jsonl, a dataset of 40 sums.

No hub is asked: the tokenizer has one token for each byte.
"""

import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

LONGEST = 2048


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    made.model_max_length = LONGEST
    return made


def model(tokens):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        tie_word_embeddings=True,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def sample(number):
    question, answer = f"What is {number} + {number}?", f"{number} + {number} is {2 * number}."
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


folder = pathlib.Path(sys.argv[1])
tokens = tokenizer()
tokens.save_pretrained(folder / "model")
model(tokens).save_pretrained(folder / "model")
(folder / "sums.jsonl").write_text("".join(json.dumps(sample(number)) + "\n" for number in range(40)))
# Weights are written for their owner alone; a pod reads them as another user.
for file in (folder / "model").iterdir():
    file.chmod(0o644)
