"""`mie edit`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mie.cli._show import EditorHelp
from mie.cli._signals import end_in_order

if TYPE_CHECKING:
    from mie.editors.base import Editor
    from mie.editors.saving import Marks
    from mie.privacy.gate import Policy


def edit(
    image: Path | None = typer.Argument(
        None,
        help="A picture or DICOM file, or a folder of them; a volume, or the folder of a DICOM series.",
        show_default=False,
    ),
    instruction: str | None = typer.Argument(None, help="What to change.", show_default=False),
    editor: str | None = typer.Option(
        None,
        "-e",
        "--editor",
        help="An editor of the list below: NAME, NAME:ARGUMENT or NAME:ARGUMENT,KEY=VALUE.",
        show_default=False,
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="The .png or .dcm file to write; a folder for a folder; .nii.gz or .dcm for a volume.",
        show_default=False,
    ),
    modality: str | None = typer.Option(
        None, help="What the image is, such as CT: settles words that mean several things."
    ),
    plane: str | None = typer.Option(
        None, help="Of a volume: axial, coronal or sagittal; by default as its slices are stored."
    ),
    window: str | None = typer.Option(
        None, help="Of a volume: a CT window such as lung, or LOW,HIGH; by default found in its values."
    ),
    list_: bool = typer.Option(False, "--list", help="Print what can be asked for, in words and colours."),
    reference: list[Path] = typer.Option(
        [], "--reference", help="A further image that the instruction speaks of; may be repeated."
    ),
    seed: int = typer.Option(0, min=0, max=2**31 - 1, help="The editor's seed."),
    overwrite: bool = typer.Option(False, help="Replace the output if it exists."),
    dicom: bool = typer.Option(False, "--dicom", help="In a folder: write edited DICOM files as DICOM."),
    series: bool = typer.Option(
        False, "--series", help="The folder is one DICOM series: edit it as a volume, write a series."
    ),
    watermark: bool = typer.Option(
        False, "--watermark", help="Add an invisible watermark; it changes pixels by a few grey levels."
    ),
    certificate: Path | None = typer.Option(
        None,
        help="Sign the PNG (Content Credentials): a PEM file with your certificates.",
        show_default=False,
    ),
    key: Path | None = typer.Option(
        None, help="Sign the PNG: a PEM file with your private key.", show_default=False
    ),
    allow_remote: bool = typer.Option(
        False, "--allow-remote", help="The editor may send the image to another machine."
    ),
    deidentified: bool = typer.Option(
        False, "--deidentified", help="You vouch that no patient can be identified in what is sent."
    ),
    redact: bool = typer.Option(False, "--redact", help="Black out text and faces in what is sent."),
    allow_phi: bool = typer.Option(
        False, "--allow-phi", help="Send even what may identify a patient; logged."
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Edit one image, every image of a folder, or a volume slice by slice.

    In a folder, edits that are there already are kept, so the same command resumes. A volume (NIfTI, NRRD,
    MetaImage, or the folder of a DICOM series with a .nii.gz or .dcm output or --series) becomes a label
    volume where the instruction marks something, else a volume in its own units, on the same grid.

    Example: mie edit scan.png "Mark the optic disc in red." -e http:http://127.0.0.1:8000/edit -o out.png
    """
    from mie.cli._edit_volume import VolumeOptions, edit_volume_file
    from mie.cli._show import print_json, progress_bar
    from mie.core.files import WriteError, make_folder, remove_scratch
    from mie.core.registry import unknown_name
    from mie.core.spec import parse_spec
    from mie.editors.base import StopRunError, open_editor
    from mie.editors.runs import plain
    from mie.editors.saving import Marks, edits_of
    from mie.editors.volumes import is_volume_edit
    from mie.errors import ConfigError, MieError
    from mie.privacy.gate import LOG, Policy
    from mie.vocabulary import MODALITIES

    if modality is not None and modality not in MODALITIES:
        raise unknown_name("modality", modality, MODALITIES)
    if list_:
        _list(modality, json)
        return
    if image is None or instruction is None or editor is None or output is None:
        raise ConfigError(
            "an edit needs an image, an instruction, an editor and an output",
            expected='mie edit IMAGE "INSTRUCTION" -e EDITOR -o OUT.png, or mie edit --list',
        )
    marks = Marks(watermark, certificate, key)
    if is_volume_edit(image, output, series=series):
        edit_volume_file(
            image,
            instruction,
            editor if modality is None else f"{editor},modality={modality}",
            output,
            VolumeOptions(modality, plane, window, seed, overwrite, json),
            Policy(deidentified, redact, allow_phi, allow_remote),
        )
        return
    if plane is not None or window is not None:
        raise ConfigError("--plane and --window are for volumes", where=image)
    pairs = edits_of(image, output, dicom=dicom)
    whole_folder = image.is_dir()
    if output.exists() and not overwrite and not whole_folder:
        raise ConfigError("the output exists already", where=output, fix="give --overwrite to replace it")
    end_in_order()
    if modality is not None:
        editor += f",modality={modality}"
    spec = parse_spec(editor)
    policy = Policy(deidentified, redact, allow_phi, allow_remote)
    log = output / LOG if whole_folder else output.with_name(f"{output.name}.{LOG}")
    ask = _Ask(instruction, seed, policy, log, tuple(reference), marks)
    place = make_folder(output if whole_folder else output.parent)
    remove_scratch(place, *(target.name for target in pairs.values()))  # of a command that was killed
    done: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    todo = {a: b for a, b in pairs.items() if overwrite or not whole_folder or not b.exists()}
    with open_editor(spec) as editing, progress_bar("editing") as bar:
        for number, (source, target) in enumerate(todo.items()):
            editing.on_step = lambda step, steps, number=number: bar(
                number * steps + step, len(todo) * steps, "steps"
            )
            try:
                done.append(ask.one(editing, spec.name, source, target))
            except MieError as error:
                if not whole_folder or isinstance(error, StopRunError | WriteError):
                    raise
                failed.append({"image": str(source), "reason": error.reason})
            bar(number + 1, len(todo), "images")
    document: dict[str, Any] = {"editor": str(spec.masked()), "seed": seed}
    if not whole_folder:
        document = {**done[0], **document}
    else:
        document |= {"edits": done, "failed": failed, "kept": len(pairs) - len(todo)}
    if json:
        print_json(plain(document))
    else:
        for one in done:
            size = one["size"]
            remarks = _remarks(one["meta"])
            typer.echo(f"{one['output']}: {size[1]}x{size[0]}, {one['seconds']:.2f} s{remarks}")
        if len(pairs) > len(todo):
            typer.echo(f"{len(pairs) - len(todo)} of {len(pairs)} were there already")
        for one in failed:
            typer.echo(f"{one['image']}: not edited: {one['reason']}", err=True)
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Ask:
    """The same instruction for every image."""

    instruction: str
    seed: int
    policy: Policy
    privacy_log: Path
    references: tuple[Path, ...]
    marks: Marks

    def one(self, editor: Editor, name: str, source: Path, target: Path) -> dict[str, Any]:
        """Edit one file; what was done."""
        from mie.api import edit as edit_image
        from mie.api import read_image
        from mie.editors.saving import save_edit
        from mie.images.provenance import edit_mark

        picture = read_image(source)
        started = time.perf_counter()
        edited = edit_image(
            picture.pixels,
            self.instruction,
            editor,
            seed=self.seed,
            policy=self.policy,
            privacy_log=self.privacy_log,
            references=self.references,
        )
        seconds = round(time.perf_counter() - started, 4)
        mark = edit_mark(editor.marked_as(name), synthetic=editor.generative, seed=self.seed)
        save_edit(edited.image, picture, source, target, mark, self.marks)
        return {
            "output": str(target),
            "size": list(edited.image.shape[:2]),
            "seconds": seconds,
            "steps": list(picture.steps),
            "meta": edited.meta,
        }


edit.cls = EditorHelp  # type: ignore[attr-defined]


def _list(modality: str | None, json: bool) -> None:
    """What can be asked for: targets with other words for them, transformations, operations and colours."""
    from mie.cli._show import print_json
    from mie.words import vocabulary

    known = vocabulary()
    targets = [known.targets[name] for name in known.known(modality)]
    changes = [t for t in known.transformations.values() if modality is None or modality in t.modalities]
    if json:
        document = {
            "modality": modality,
            "operations": list(known.operations),
            "colours": list(known.colours),
            "targets": [
                {
                    "name": t.name,
                    "kind": t.kind,
                    "modalities": list(t.modalities),
                    "sides": t.sides,
                    "synonyms": {language: list(words) for language, words in t.synonyms.items()},
                }
                for t in targets
            ],
            "transformations": [
                {"name": t.name, "task": t.task, "modalities": list(t.modalities)} for t in changes
            ],
        }
        print_json(document)
        return
    typer.echo(f"operations: {', '.join(known.operations)}")
    typer.echo(f"colours: {', '.join(known.colours)}")
    typer.echo("sides: left, right (the patient's), of lungs, kidneys and others in pairs")
    typer.echo(f"targets{f' for {modality}' if modality else ''}:")
    for target in targets:
        others = ", ".join(target.synonyms.get("en", ())[:4])
        typer.echo(f"  {target.name}" + (f" (also: {others})" if others else ""))
    typer.echo("transformations:" if changes else "transformations: none")
    for change in changes:
        typer.echo(f"  {change.name} ({change.task})")


def _remarks(meta: Mapping[str, Any]) -> str:
    """What the editor says that people should know before they use the edit."""
    from mie.editors.runs import remarks

    confidence = meta.get("confidence")
    text = f", confidence {confidence:.2f}" if isinstance(confidence, int | float) else ""
    return text + "".join(f"\n  {line}" for line in remarks(meta))
