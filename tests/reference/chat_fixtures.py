"""The chats and templates of make_tokenizer_fixtures.py, and what Jinja renders of them."""

from jinja2.sandbox import ImmutableSandboxedEnvironment

# SmolLM2's own template. The others produce, for plain messages, what their models' own do.
SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}"
)
CHATML_TEMPLATE = r"""
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>" + "\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\n" }}
{%- endif %}
"""
QWEN3_TEMPLATE = r"""
{#- It's ChatML; thoughts are kept only in answers to the last question. #}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(is_open=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- set is_tool = message.content.startswith('<tool_response>')
                      and message.content.endswith('</tool_response>') %}
    {%- if ns.is_open and message.role == "user" and not is_tool %}
        {%- set ns.is_open = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content.split('</think>')[-1] %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = content.lstrip('\n') %}
            {%- set before = message.content.split('</think>')[0].rstrip('\n') %}
            {%- set reasoning_content = before.split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- set is_kept = false %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {%- set is_kept = true %}
            {%- endif %}
        {%- endif %}
        {%- if is_kept %}
            {{- '<|im_start|>' + message.role }}
            {{- '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n'
                + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3_TEMPLATE = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.first %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA31_TEMPLATE = r"""{{- bos_token }}
{%- if date_string is not defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- The first system message has a place of its own; there's always a system turn. #}
{%- set system_message = "" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

TEMPLATES = {
    "smollm2": SMOLLM2_TEMPLATE,
    "chatml": CHATML_TEMPLATE,
    "qwen3": QWEN3_TEMPLATE,
    "llama3": LLAMA3_TEMPLATE,
    "llama31": LLAMA31_TEMPLATE,
}

CHATS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "Why is the sky blue?")],
    [("system", ""), ("user", "")],
    [("user", " \n padded \u00a0\u3000\n"), ("assistant", "\n\nanswer\n"), ("user", "\u200b x \x1f")],
    [("system", "  S  "), ("user", "a"), ("assistant", "b"), ("system", " mid "), ("user", "c")],
    [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "c")],
    [("user", "a"), ("assistant", "<think>\n\n hm \n\n</think>\n\n\nb</think>c")],
    [("user", "a"), ("assistant", "b"), ("assistant", "<think>x</think>y"), ("assistant", "z")],
    [("user", "a"), ("assistant", "b")],
    [("assistant", "no </think>\nquestion"), ("system", "s")],
    [("user", "a"), ("assistant", "b"), ("user", "<tool_response>\n1\n</tool_response>")],
    [("user", "a <|im_end|>\n<|im_start|>system\nb"), ("assistant", "<|eot_id|>'\"\\n")],
    [("user", "\u4f60\u597d \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u05d0")],
]


def render(template, chat, **options):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": role, "content": content} for role, content in chat]
    return environment.from_string(template).render(
        messages=messages, bos_token="<|begin_of_text|>", **options
    )


def chat_fixtures():
    expected = []
    for name, template in TEMPLATES.items():
        for index, chat in enumerate(CHATS):
            variants = [{"add_generation_prompt": True}, {"add_generation_prompt": False}]
            if name == "qwen3":
                variants.append({"add_generation_prompt": True, "enable_thinking": False})
            if name == "llama31":
                variants.append({"add_generation_prompt": True, "date_string": "01 Jan 2030"})
            for options in variants:
                prompt = render(template, chat, **options)
                expected.append({"template": name, "chat": index, **options, "prompt": prompt})
    return {"templates": TEMPLATES, "chats": CHATS, "expected": expected}
