"""URLs where a verb takes a folder or file: pulled before it runs, uploaded when it has ended."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import typer

from mie.core.files import URL

# What the user says about an upload. A verb that sends images to a model or a judge has these already.
_CONSENT: Final = {
    "allow_remote": typer.Option(
        False, "--allow-remote", help="The output may be a URL on another machine, to which it is uploaded."
    ),
    "deidentified": typer.Option(
        False, "--deidentified", help="You vouch that no patient can be identified in what is uploaded."
    ),
    "allow_phi": typer.Option(
        False, "--allow-phi", help="Upload also what may identify a patient; this is logged."
    ),
}
_OUTPUT: Final = "output"


def on_storage(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, which then also takes URLs for its folders and files.

    What is written is uploaded at the end, whatever the exit code. A verb with an output gets the options
    that consent to an upload, where it has none.
    """
    signature = inspect.signature(verb, eval_str=True)
    own = signature.parameters
    added = {name: option for name, option in _CONSENT.items() if _OUTPUT in own and name not in own}

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **{k: v for k, v in kwargs.items() if k not in added}).arguments
        if not any(_is_url(one) for value in given.values() for one in _each(value)):
            return verb(**given)
        with ExitStack() as stack:
            policy = {name: bool(kwargs.get(name)) for name in _CONSENT}
            for name, value in given.items():
                if any(_is_url(one) for one in _each(value)):
                    writes = name == _OUTPUT or "allow_remote" in own
                    places = [_opened(stack, one, policy, name != _OUTPUT, writes) for one in _each(value)]
                    given[name] = places if isinstance(value, list | tuple) else places[0]
            try:
                return verb(**given)
            except typer.Exit as ended:  # a code for the shell: the verb did its work
                leaving = ended
        raise leaving

    parameters = [
        *own.values(),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool)
            for name, option in added.items()
        ),
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _each(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_url(value: Any) -> bool:
    """Whether a path, or a text that names its scheme in full, is the URL of a storage."""
    if not isinstance(value, Path) and not (isinstance(value, str) and "://" in value):
        return False
    if URL.fullmatch(str(value)) is None:
        return False
    from mie.core.storage import url_of

    return url_of(value) is not None


def _opened(stack: ExitStack, value: Any, policy: dict[str, bool], exists: bool, writes: bool) -> Any:
    if not _is_url(value):
        return value
    from mie.cli._show import progress_bar
    from mie.datasets.remote import leaves_this_machine, work_folder
    from mie.privacy.gate import Policy

    # What a verb adds to a folder that it reads is uploaded where nobody has to be asked.
    upload = writes or not leaves_this_machine(value)
    folder = stack.enter_context(
        work_folder(
            value,
            Policy(**policy),
            exists=exists,
            upload=upload,
            progress=lambda title: stack.enter_context(progress_bar(title)),
            tell=lambda text: typer.echo(text, err=True),
        )
    )
    return type(value)(folder)
