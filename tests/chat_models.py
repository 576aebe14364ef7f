"""A chat model as others publish one: transformers' Mamba-2 or Mamba of random weights, a tokenizer, a template."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parent.parent
END, START, CLOSE = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
SPECIAL = (END, START, CLOSE, *LLAMA, "</s>", "<|user|>", "<|assistant|>", "<|system|>")

# As published, but for line ends within a statement: that of ChatML models, Llama 3's and Zephyr's
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
# A template that leaves what a model thought out of later turns, and begins an answer with thinking
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}"
    "<|im_start|>assistant\n<think>\n{% endif %}"
)
# name: (template, begin token, end token, all ends)
TEMPLATES = {
    "chatml": (CHATML, None, CLOSE, (CLOSE, END)),
    "llama3": (LLAMA_3, LLAMA[0], LLAMA[3], (LLAMA[3], END)),
    "zephyr": (ZEPHYR, "</s>", "</s>", ("</s>",)),
    "thinking": (THINKING, None, CLOSE, (CLOSE,)),
}


@cache
def backend() -> str:
    """A byte-level BPE trained on the source of this package, as a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(ROOT / "statewise" / "errors.py").read_text("utf-8")], trainer)
    return str(tokenizer.to_str())


def their_tokenizer(name: str) -> Any:
    """transformers' own, with the template of this name."""
    from transformers import PreTrainedTokenizerFast

    template, begin, end, _ = TEMPLATES[name]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(backend()), bos_token=begin, eos_token=end, pad_token=END
    )
    tokenizer.chat_template = template
    return tokenizer


def publish(
    folder: Path, name: str = "chatml", kind: str = "mamba2", seed: int = 0, **settings: Any
) -> tuple[Any, Any]:
    """Writes the folder as transformers does, and gives transformers' model and tokenizer.

    settings: of its generation_config.json, besides the tokens
    """
    import transformers

    tokenizer = their_tokenizer(name)
    ends = [tokenizer.convert_tokens_to_ids(end) for end in TEMPLATES[name][3]]
    size = {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "tie_word_embeddings": False}
    own: dict[str, Any] = {"num_heads": 4, "head_dim": 16, "n_groups": 1} if kind == "mamba2" else {}
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(seed)
    config = {"mamba": transformers.MambaConfig, "mamba2": transformers.Mamba2Config}[kind](**size, **own, **ids)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # so that greedy answers wander, and come to an end
        model.lm_head.weight.normal_(0, 1)
        model.lm_head.weight[len(tokenizer) :] = 0  # the ids that pad the vocabulary never win
    model.generation_config = transformers.GenerationConfig(**ids, **settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def publish_one_that_ends(folder: Path, question: str, kind: str = "mamba") -> tuple[Any, Any, list[int]]:
    """The same with the first seed of which the answer to a question comes to an end, and this answer. Which one it is
    depends on the processor's rounding.
    """
    for seed in range(100):
        model, tokenizer = publish(folder, "chatml", kind, seed)
        written = their_answer(model, tokenizer, [{"role": "user", "content": question}], 500)
        if len(written) < 500:
            return model, tokenizer, written
    raise AssertionError("no seed of a hundred has an answer that ends")


def their_answer(model: Any, tokenizer: Any, messages: list[dict[str, str]], n: int, **settings: Any) -> list[int]:
    """What transformers writes, token by token, with its end token if it comes to it."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**prompt, max_new_tokens=n, **settings)
    return [int(i) for i in written[0, prompt["input_ids"].shape[1] :]]
