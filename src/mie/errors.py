"""One exception for everything a user can put right, worded so that they can."""

from __future__ import annotations


class MieError(Exception):
    """What went wrong, where, what was expected, what was found, and what to do about it.

    >>> print(MieError("mask and image differ in size", where="a.png", expected="512x512",
    ...                found="512x511", fix="resample the mask to the image"))
    mask and image differ in size
      where:    a.png
      expected: 512x512
      found:    512x511
      to do:    resample the mask to the image
    """

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.expected = None if expected is None else str(expected)
        self.found = None if found is None else str(found)
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        for label, value in (
            ("where:   ", self.where),
            ("expected:", self.expected),
            ("found:   ", self.found),
            ("to do:   ", self.fix),
        ):
            if value is not None:
                lines.append(f"  {label} {value}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments do not cross process borders by themselves.
        return _rebuild, (type(self), self.what, self.where, self.expected, self.found, self.fix)

    @property
    def reason(self) -> str:
        """The error on one line, for `rejected.parquet` and logs."""
        parts = [self.what]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.found is not None:
            parts.append(f"found {self.found}")
        return "; ".join(parts)


def _rebuild(
    kind: type[MieError],
    what: str,
    where: str | None,
    expected: str | None,
    found: str | None,
    fix: str | None,
) -> MieError:
    return kind(what, where=where, expected=expected, found=found, fix=fix)


class ImageError(MieError):
    """A file that cannot be turned into pixels we trust."""


class ConfigError(MieError):
    """A recipe, catalogue entry or option that does not make sense. Exit code 2."""


# Why a number could not be computed.


class MetricError(MieError):
    """A metric that has no value here: the sample is unscored for it, and `reason` says why."""
