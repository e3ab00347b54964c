"""The frame around an example: the paper's forms byte for byte, one BOS, blanks kept, dates that
stand still."""

import pytest

from rulerkit.common.errors import UserError
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import task
from rulerkit.generation.tokenizers import load_tokenizer

DIRECT = " Do not provide any explanation. Please directly give me the answer."
CHATML = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{t}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
TABLE_6 = {  # written from the paper's Table 6; {t} is the user's part, the answer prefix follows
    "base": "{t}",
    "gpt-4": "{t}" + DIRECT,
    "llama2": "[INST] {t} [/INST]",
    "lwm": "You are a helpful assistant. USER: {t} ASSISTANT: ",
    "longchat": "A chat between a curious user and an artificial intelligence assistant. The "
    "assistant gives helpful, detailed, and polite answers to the user's questions. USER: {t} ASSISTANT:",
    "command-r": "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>{t}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
    "<|CHATBOT_TOKEN|>",
    "glm": "[gMASK]sop<|user|> \n {t}<|assistant|> \n ",
    "phi3": "<|user|>\n{t}<|end|>\n<|assistant|>\n",
    "llama3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{t}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "qwen": CHATML,
    "dbrx": CHATML,
    "jamba": "<|startoftext|><|bom|><|system|> <|eom|><|bom|><|user|> {t}<|eom|><|bom|><|assistant|>",
    "rwkv": "User: hi\n\nAssistant: Hi. I am your assistant and I will provide expert full response in full details. "
    "Please feel free to ask any question and I will always answer it\n\nUser: {t}\n\nAssistant:",
}
HEADER = "{{- '<|start_header_id|>' + ROLE + '<|end_header_id|>\\n\\n' }}"
LLAMA3_LIKE = (
    "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = 'unknown' %}"
    "{%- endif %}" + HEADER.replace("ROLE", "'system'") + "Today Date: {{ date_string }}<|eot_id|>"
    "{%- for m in messages %}" + HEADER.replace("ROLE", "m.role") + "{{- m.content | trim }}"
    "{{- '<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}"
    + HEADER.replace("ROLE", "'assistant'")
    + "{%- endif %}"
)


def example(form, name="niah_single_1", length=1400):
    return generate(task(name).with_corpora("builtin"), length, 1, prompt_format=form)[0]


@pytest.mark.parametrize("name", TABLE_6)
def test_forms_byte_for_byte(name):
    """With the answer prefix in the assistant's turn; and in the user's, which is what chat
    services take: the direct request, then the prefix, then the end of the turn."""
    made = example(PromptFormat("builtin", template=name))
    question = made.text_of("question").removesuffix(DIRECT)
    user = f"{made.text_of('instruction')}{made.context_text}{question}".strip()
    assert user.startswith("A special magic number is hidden within the following text.")
    assert made.answer_prefix.startswith(" The special magic number for ")
    assert made.prompt == TABLE_6[name].replace("{t}", user) + made.answer_prefix
    made = example(PromptFormat("builtin", template=name, prefix_in="user"))
    before, _, after = TABLE_6[name].removesuffix(DIRECT).partition("{t}")
    assert made.prompt.startswith(before + "A special magic number")
    assert made.prompt.endswith("provided text?" + DIRECT + made.answer_prefix + after)


@pytest.mark.parametrize("name", ["base", "llama2", "glm", "llama3", "lwm", "rwkv"])
def test_ids_of_every_form(vocabulary, name):
    """One BOS at most, put before the ids of the text as the vocabulary itself encodes it; all
    within the length. The 2024 demonstration begins with a blank, glm's frame ends with one: both
    stay."""
    before = TABLE_6[name].partition("{t}")[0]
    for where in ("assistant", "user"):
        form = PromptFormat(vocabulary, template=name, prefix_in=where)
        for spec in ("niah_single_1", task("vt", "paper"), {"base": "qa_1", "context": "none"}):
            made = example(form, spec)
            ids = made.ids.tolist()
            assert ids == [*form.bos, *vocabulary.encode(made.prompt).tolist()]
            assert made.num_tokens == len(ids) <= 1400 - made.max_new_tokens
            assert made.prompt.startswith(before + " Memorize") or made.task[:2] != "vt"
            for bos in vocabulary.leading_ids:
                assert ids.count(bos) == (ids[0] == bos) <= 1
                if name not in ("command-r", "glm", "llama3", "jamba"):
                    assert ids[0] == bos


def test_a_template_that_trims_keeps_the_blanks(data):
    """Content and prefix are put in raw: the trailing blank of variable tracking's prefix is there,
    once."""
    form = PromptFormat(str(data / "tokenizers" / "llama-3"), template=LLAMA3_LIKE)
    made = example(form, "vt")
    value = made.prompt.rpartition("are assigned the value ")[2].partition(",")[0]
    assert made.prompt.endswith(f"<|end_header_id|>\n\n{made.answer_prefix}")
    assert made.answer_prefix.endswith(f"5 variables are assigned the value {value}, they are: ")
    assert made.ids.tolist().count(128000) == 1
    assert made.ids.tolist() == form.tokenizer.encode(made.prompt).tolist()


def test_a_template_with_the_date_and_with_marks_of_training():
    """Any way of asking for today gives the same day, or every digest would change overnight."""
    days = "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d') }}|{{ date_string }}|"
    form = PromptFormat("builtin", template=days + "{{ messages[0].content }}")
    assert form.around == ("26 Jul 2024|2024-07-26|26 Jul 2024|", "")
    assert "Today Date: 26 Jul 2024" in PromptFormat("builtin", template=LLAMA3_LIKE).around[0]
    marked = "{% generation %}{% if messages[1] %}x{% endif %}{% endgeneration %}"
    form = PromptFormat("builtin", template="U: {{ messages[0].content }} A:" + marked)
    assert form.around == ("U: ", " A:")


def test_templates_are_rendered_as_transformers_renders_them(data):
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    own = load_tokenizer(str(data / "tokenizers" / "qwen2.5")).chat_template
    blanks = "{% for m in messages %}\n  {% if 1 %}\n  {{ m.content }}\n{% endif %}\n{% endfor %}"
    names = {"bos_token": "", "eos_token": "", "date_string": "26 Jul 2024"}
    asked = {"conversations": [[{"role": "user", "content": "MARK"}]], **names}
    for template in (LLAMA3_LIKE, own, blanks):
        theirs, _ = transformers.render_jinja_template(
            chat_template=template, add_generation_prompt=True, **asked
        )
        before, after = PromptFormat("builtin", template=template).around
        assert before + "MARK" + after == theirs[0]


BARE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|end|>"


@pytest.mark.parametrize(
    ("source", "bos"), [("llama-3", "<|begin_of_text|>"), ("llama-2/tokenizer.model", "<s>")]
)
def test_a_chat_template_says_alone_whether_there_is_a_bos(data, source, bos):
    """As vLLM renders chats. These tokenizers put a BOS before a text, which named forms keep."""
    real = load_tokenizer(str(data / "tokenizers" / source))
    (bos_id,) = real.leading_ids
    bare, whole, base = (PromptFormat(real, form) for form in (BARE, bos + BARE, "base"))
    assert (bare.bos, whole.bos, base.bos) == ((), (), (bos_id,))
    made = example(bare)
    assert made.ids.tolist() == real.encode(made.prompt).tolist()
    assert bos_id not in made.ids
    assert example(whole).ids.tolist().count(bos_id) == 1
    assert bare.settings()["bos"] is False
    for form in (whole, base, PromptFormat("builtin", BARE)):
        assert "bos" not in form.settings()


SWITCHED = (
    "{% set on = namespace(think=true) %}{% for m in messages %}{% if '/no_think' in m.content %}"
    "{% set on.think = false %}{% endif %}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content.replace('/no_think', '') }}{% endfor %}<think>{% if not on.think %}</think>{% endif %}"
)


def test_a_system_prompt_may_be_a_switch_that_is_not_printed():
    """As that of Nemotron Nano v2; one without any effect is refused."""
    form = PromptFormat("builtin", SWITCHED, system_prompt="/no_think")
    assert form.around == ("<|system|><|user|>", "<think></think>")
    dropping = "{{ messages[-1].content }}<|assistant|>"
    with pytest.raises(UserError, match="leaves out the system prompt"):
        _ = PromptFormat("builtin", dropping, system_prompt="/no_think").around


def test_a_thought_has_its_tokens_beside_the_length_or_inside():
    plain = example(PromptFormat("builtin"), length=4096)
    for thinking, place, kept in ((0, "inside", 0), (500, "inside", 500), (500, "beside", 0)):
        form = PromptFormat("builtin", thinking_tokens=thinking, thinking_room=place)
        made = example(form, length=4096)
        assert 4096 - 25 <= made.num_tokens + made.max_new_tokens + kept <= 4096
        assert made.prompt.endswith(plain.answer_prefix) == (not thinking)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"template": "llama-2"}, "llama2"),
        ({"template": "{{ messages[0].content "}, "template"),
        ({"template": "{{ messages[0].content }}{{ messages[0].content }}"}, "message"),
    ],
)
def test_what_is_refused(settings, named):
    with pytest.raises(UserError, match=named) as error:
        _ = PromptFormat("builtin", **settings).around
    assert "\n" not in str(error.value)
