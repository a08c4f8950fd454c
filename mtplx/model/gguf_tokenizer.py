"""Rebuilds a tokenizer from a GGUF file's vocabulary, so that it cuts text exactly as the model's own does.

A GGUF names the rule that cuts text into words before merging (its pre-tokenizer); the rule itself is not in the file.
A wrong rule is silent: the ids stay valid and the model gets worse. So a name that isn't known here is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mtplx.errors import ModelError
from mtplx.model.gguf import GgufFile

CONTROL = 3  # token types of llama.cpp
USER_DEFINED = 4

# Byte-level BPE with GPT-2's own rule. "default" is what converters write when they have nothing to tell.
GPT2_RULE = frozenset({"default", "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "mellum"})
# Every digit alone, then GPT-2's rule. transformers knows none of these and would drop the digit split in silence.
DIGITS_RULE = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
# Vocabularies with words that merging can't reach: whole words are looked up first, and bos is added unless denied.
WHOLE_WORDS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken"}
)
COMPOSED = frozenset({"qwen2"})  # text is brought to composed form (NFC) first


def build_tokenizer(gguf: GgufFile) -> Tokenizer:
    """The tokenizer that the file describes.

    Raises:
        ModelError: the file has none, or its kind or its pre-tokenizer is unknown.
    """
    kind = gguf.fields.get("tokenizer.ggml.model")
    builders: dict[str, Callable[[GgufFile], Tokenizer]] = {"gpt2": _byte_level, "llama": _sentencepiece}
    if not gguf.tokens or kind is None:
        raise ModelError(f"{gguf.path} carries no tokenizer")
    if kind not in builders:
        raise ModelError(f"{gguf.path} has a tokenizer of kind {kind!r}; known are {', '.join(builders)}")
    tokenizer = builders[kind](gguf)
    _add_marked_tokens(tokenizer, gguf)
    _add_frame(tokenizer, gguf)
    _check_control_tokens(tokenizer, gguf)
    return tokenizer


def save_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json (special tokens, chat template) into `folder`."""
    build_tokenizer(gguf).save(str(folder / "tokenizer.json"))
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: gguf.token_id(role) for name, role in roles.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: gguf.tokens[token_id] for name, token_id in special.items() if token_id is not None},
        "add_bos_token": _adds_bos(gguf),
        "add_eos_token": _adds_eos(gguf),
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.get("context_length"),
    }
    if template := gguf.fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _byte_level(gguf: GgufFile) -> Tokenizer:
    vocab = {token: token_id for token_id, token in enumerate(gguf.tokens)}
    merges = [_pair(merge) for merge in gguf.fields.get("tokenizer.ggml.merges", ())]
    rule = _rule_name(gguf)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule in WHOLE_WORDS))
    tokenizer.pre_tokenizer = _pre_tokenizer(rule, gguf)
    tokenizer.decoder = decoders.ByteLevel()
    if rule in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _pre_tokenizer(rule: str, gguf: GgufFile) -> pre_tokenizers.PreTokenizer:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    if rule in DIGITS_RULE:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if rule in GPT2_RULE:
        return gpt2
    if rule in GGUF_PRE_TOKENIZER_SPLITS:
        split = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[rule]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(sorted({*DIGITS_RULE, *GPT2_RULE, *GGUF_PRE_TOKENIZER_SPLITS}))
    raise ModelError(
        f"{gguf.path} cuts text by the rule {rule!r}, which is not known here, and guessing would spoil the answers; "
        f"known are {known}. The same model in Hugging Face layout brings its own tokenizer.json"
    )


def _sentencepiece(gguf: GgufFile) -> Tokenizer:
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    if gguf.fields.get("tokenizer.ggml.add_space_prefix") is False and not gguf.architecture.startswith("gemma"):
        raise ModelError(f"{gguf.path} has a sentencepiece tokenizer without a space in front, which is unknown here")
    architecture, description, _ = get_gguf_tokenizer(str(gguf.path))
    tokenizer, _ = convert_gguf_tokenizer(architecture, description)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def _rule_name(gguf: GgufFile) -> str:
    rule = gguf.fields.get("tokenizer.ggml.pre")
    if not isinstance(rule, str):
        raise ModelError(f"{gguf.path} doesn't say how its text is cut (tokenizer.ggml.pre): convert it anew")
    return rule


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _marked(gguf: GgufFile, kind: int) -> list[tuple[int, str]]:
    types = gguf.fields.get("tokenizer.ggml.token_type", ())
    return [(token_id, gguf.tokens[token_id]) for token_id, found in enumerate(types) if found == kind]


def _add_marked_tokens(tokenizer: Tokenizer, gguf: GgufFile) -> None:
    """Control tokens stay whole and are special; user-defined ones stay whole and are text."""
    control = [AddedToken(text, special=True, normalized=False) for _, text in _marked(gguf, CONTROL)]
    tokenizer.add_special_tokens(control)
    vocab = tokenizer.get_vocab()
    wanted = [text for token_id, text in _marked(gguf, USER_DEFINED) if vocab.get(text) == token_id]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in wanted])


def _add_frame(tokenizer: Tokenizer, gguf: GgufFile) -> None:
    """Puts bos in front and eos behind where the file asks for them."""
    ends = {"bos": gguf.token_id("bos"), "eos": gguf.token_id("eos")}
    wanted = {"bos": _adds_bos(gguf), "eos": _adds_eos(gguf)}
    tokens = {role: gguf.tokens[token_id] for role, token_id in ends.items() if token_id is not None and wanted[role]}
    if not tokens:
        return
    frame = [tokens["bos"]] if "bos" in tokens else []
    back = [tokens["eos"]] if "eos" in tokens else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*frame, "$A", *back],
        pair=[*frame, "$A", *back, *frame, "$B", *back],
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in tokens.values()],
    )


def _adds_bos(gguf: GgufFile) -> bool:
    said = gguf.fields.get("tokenizer.ggml.add_bos_token")
    if said is not None:
        return bool(said)
    return gguf.fields.get("tokenizer.ggml.model") == "llama" or gguf.fields.get("tokenizer.ggml.pre") in WHOLE_WORDS


def _adds_eos(gguf: GgufFile) -> bool:
    return bool(gguf.fields.get("tokenizer.ggml.add_eos_token"))


def _check_control_tokens(tokenizer: Tokenizer, gguf: GgufFile) -> None:
    """A control token that isn't one id would reach the model as letters."""
    for token_id, text in _marked(gguf, CONTROL):
        if tokenizer.encode(text, add_special_tokens=False).ids != [token_id]:
            raise ModelError(f"the tokenizer of {gguf.path} can't be rebuilt: {text!r} isn't the one id {token_id}")
