"""Spec strings: what people type, and everything they might."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.core.spec import Spec, mask_secrets, parse_spec
from mie.errors import ConfigError

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
# The characters that the grammar is about, far more often than chance would have them.
tricky = st.text(st.sampled_from("ab=,:'\"\\ {}\n/?&k"), max_size=30)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True),
    st.none() | text | tricky,
    st.dictionaries(keys, text | tricky, max_size=4),
)
def test_what_a_spec_prints_is_read_back(name, argument, options):
    spec = Spec(name, argument, options)
    assert parse_spec(str(spec)) == spec


@given(text | tricky)
def test_any_text_is_a_spec_or_a_config_error(junk):
    for line in (junk, f"name:{junk}", f"name:x,key={junk}"):
        try:
            spec = parse_spec(line)
        except ConfigError:
            continue
        assert parse_spec(str(spec)) == spec


@given(st.text(st.sampled_from("ab:/?&%.{} -\"'1,"), max_size=40))
def test_an_argument_without_key_and_equal_sign_is_taken_as_it_stands(argument):
    if argument[:1] not in ("'", '"'):
        assert parse_spec(f"command:{argument},timeout=3") == Spec("command", argument, {"timeout": "3"})


@pytest.mark.parametrize(
    ("line", "argument", "options"),
    [
        ("identity", None, {}),
        ("compact,steps=3", None, {"steps": "3"}),
        ("folder:", "", {}),
        ("folder:/data/a,b/O'Brien", "/data/a,b/O'Brien", {}),
        ("http:http://127.0.0.1:8000/edit,timeout=30", "http://127.0.0.1:8000/edit", {"timeout": "30"}),
        ("http:https://h/e?mode=a,b&c=1, retries=2", "https://h/e?mode=a,b&c=1", {"retries": "2"}),
        (
            "command:python my.py --x {input} {instruction} {output}",
            "python my.py --x {input} {instruction} {output}",
            {},
        ),
        (
            'command:"my prog" --size=3,4 {input} "{output}",timeout=2.5,jsonl=false',
            '"my prog" --size=3,4 {input} "{output}"',
            {"timeout": "2.5", "jsonl": "false"},
        ),
        ("command:'python -c f(1,b=2) {input}',jsonl=true", "python -c f(1,b=2) {input}", {"jsonl": "true"}),
        (r'command:"say \"a,b=c\" \d {input}"', r'say "a,b=c" \d {input}', {}),
        ("x:a,key='1,2',other=\"3,\"", "a", {"key": "1,2", "other": "3,"}),
    ],
)
def test_examples(line, argument, options):
    spec = parse_spec(line)
    assert (spec.argument, dict(spec.options)) == (argument, options)


@pytest.mark.parametrize("line", ["", ":x", "3d", "name x", "a:b,k=1,2", "a:b,k=1,", "a:b,k='1,2", "a,b"])
def test_what_cannot_be_read_is_refused(line):
    with pytest.raises(ConfigError, match="cannot read this editor"):
        parse_spec(line)


def test_an_option_stands_once():
    with pytest.raises(ConfigError, match="twice"):
        parse_spec("a:b,k=1,k=2")


@pytest.mark.parametrize(
    ("open_", "masked"),
    [
        ("http://me:secret@h:80/x", "http://***@h:80/x"),
        ("https://h/x?model=a&api_key=s3cret&n=1", "https://h/x?model=a&api_key=***&n=1"),
        ("https://h/x?apikey=s3cret", "https://h/x?apikey=***"),
        ("python x.py --api-key s3cret {input}", "python x.py --api-key *** {input}"),
        ("env HF_TOKEN=s3cret python x.py", "env HF_TOKEN=*** python x.py"),
        ("curl -H 'Authorization: Bearer s3cret' {input}", "curl -H 'Authorization: Bearer ***' {input}"),
        ('curl -H "authorization: s3cret" {input}', 'curl -H "authorization: ***" {input}'),
        ("x.py --auth 'Bearer s3cret' {input}", "x.py --auth 'Bearer ***' {input}"),
        ("curl -H 'X-Api-Key: s3cret' {input}", "curl -H 'X-Api-Key: ***' {input}"),
        ("curl -H X-Api-Key:s3cret {input}", "curl -H X-Api-Key:*** {input}"),
        ('x.py --headers \'{"x-api-key": "s3cret"}\'', "x.py --headers '{\"x-api-key\": ***}'"),
        ("x.py --token 's3cret s3cret' {input}", "x.py --token *** {input}"),
        ('x.py --token="s3cret s3cret" {input}', "x.py --token=*** {input}"),
        ("API_KEY='s3cret s3cret' x.py", "API_KEY=*** x.py"),
        ("x.py sk-s3cret0123456789abcdef {input}", "x.py *** {input}"),
        ("x.py --a hf_s3cretABCDEFGHIJKLMN {input}", "x.py --a *** {input}"),
        ("x.py --note 'the key is long' --keyframes 3", "x.py --note 'the key is long' --keyframes 3"),
        ("python x.py --tokenizer t5 --monkey=2 {input}", "python x.py --tokenizer t5 --monkey=2 {input}"),
    ],
)
def test_secrets_are_masked_and_the_rest_is_kept(open_, masked):
    assert mask_secrets(open_) == masked
    assert "s3cret" not in str(Spec("x", open_, {"note": open_}).masked())


def test_an_option_that_is_a_secret_is_masked_by_its_name():
    spec = parse_spec("openai:gpt-4o,api_key=s3cret,Token='s3cret, s3cret',max_tokens=7").masked()
    assert str(spec) == "openai:gpt-4o,api_key=***,Token=***,max_tokens=7"


def test_a_secret_is_not_in_the_error_either():
    with pytest.raises(ConfigError) as caught:
        parse_spec("http:http://me:s3cret@h/x,a=1,2")
    assert "s3cret" not in str(caught.value)
