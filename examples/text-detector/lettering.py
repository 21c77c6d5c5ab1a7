"""Draw lettering over medical pictures, as scanners burn it in, and what looks like lettering but is not.

A mask goes with each picture: 1 where a line of three characters or more is, 2 where it is undecided (one or
two characters beside a number's unit), 0 elsewhere. Side markers, rulers, callipers and colour bars are 0.
Everything random comes from one `numpy` generator.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

TEXT, UNDECIDED = 1, 2
SIZES = (8, 40)  # font sizes in pixels
_COLOURS = ((255, 255, 255),) * 6 + (
    (255, 255, 0),
    (255, 220, 60),
    (0, 255, 0),
    (120, 255, 120),
    (0, 255, 255),
    (255, 160, 0),
    (255, 60, 60),
    (200, 200, 200),
    (150, 150, 150),
    (0, 0, 0),
    (0, 0, 0),
    (30, 30, 30),
)
_FAMILY = [
    "SMITH",
    "JONES",
    "GARCIA",
    "MUELLER",
    "Müller",
    "Nguyen",
    "Rossi",
    "Yilmaz",
    "O'Brien",
    "Kowalski",
    "Petrov",
    "Andersen",
    "Dubois",
    "Haddad",
    "Silva",
    "Okafor",
    "Tanaka",
    "LEE",
    "Wang",
    "KIM",
    "PATEL",
    "Schmidt",
    "Novak",
    "JOHNSON",
    "Ivanova",
    "Papadopoulos",
]
_GIVEN = [
    "JOHN",
    "MARY",
    "Anna",
    "Peter",
    "Fatima",
    "Wei",
    "JOSE",
    "Li",
    "Ingrid",
    "Ahmed",
    "Olga",
    "David",
    "Sofia",
    "ROBERT",
    "Aiko",
    "Paul",
]
_PLACES = [
    "GENERAL HOSPITAL",
    "University Clinic",
    "St. Mary's",
    "RADIOLOGY DEPT",
    "Klinikum Nord",
    "City Imaging Centre",
    "Hospital Central",
    "Women's Health",
    "DEPT OF CARDIOLOGY",
    "Praxis Dr. Weber",
]
_SETTINGS = [
    "FR {n}Hz",
    "MI {d}",
    "TIS {d}",
    "Gn {n}",
    "Dyn R {n}",
    "kV {n}",
    "mA {n}",
    "SL {d}mm",
    "TE {n}",
    "TR {n}",
    "WW {n} WL {n}",
    "{d} cm/s",
    "Dist {d} cm",
    "Vol {d} ml",
    "Im: {n}/{n}",
    "Se: {n}",
    "ZOOM {n}%",
    "C5-{n}",
    "DEPTH {d}",
    "{n}fps",
    "RT BREAST",
    "LEFT OVARY",
    "MAMA DIR",
    "THYROID LT",
    "A4C",
    "SUPINE",
    "PORTABLE",
    "AP ERECT",
    "R MLO",
    "L CC",
    "CINE",
    "FREEZE",
    "SCAN",
    "OLYMPUS",
    "GIF-H{n}",
    "Axial T2",
    "Contrast 50 ml",
]
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_OTHER = (
    "ΑΒΓΔΕΖΗΘΛΞΠΣΦΨΩαβγδεζηθλμξπσφψωАБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЭЮЯабвгдежзиклмнопрстуфхцчшщэюяÄÖÜäöüßéèçñåø"
)


def draw_lettering(
    rng: np.random.Generator, image: np.ndarray, fonts: list[Path], sizes: tuple[int, int] = SIZES
) -> tuple[np.ndarray, np.ndarray]:
    """Return the picture `(H, W, 3)` with one to four blocks of lettering, and its mask `(H, W)`."""
    image, mask = image.copy(), np.zeros(image.shape[:2], np.uint8)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        _block(rng, image, mask, fonts, sizes)
    return image, mask


def draw_distractors(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> np.ndarray:
    """Return the picture with side markers, rulers, callipers, bars or grids, none of which is lettering."""
    image = image.copy()
    for _ in range(rng.integers(1, 4)):
        kinds = (_marker, _marker, _ruler, _callipers, _bar, _grid, _curve, _boxes)
        kinds[rng.integers(len(kinds))](rng, image, fonts)
    return image


def degrade(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Blur, noise and JPEG, each at times."""
    if rng.random() < 0.3:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 0.9))
    if rng.random() < 0.3:
        noise = rng.normal(0, rng.uniform(1, 10), image.shape[:2])[..., None]
        image = np.clip(image + noise, 0, 255).astype(np.uint8)
    if rng.random() < 0.5:
        _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(40, 96))])
        image = cv2.imdecode(data, cv2.IMREAD_COLOR)
    return image


def words(rng: np.random.Generator) -> str:
    """One line as it stands on such pictures: a name, a number, a date, a place, a setting."""
    n = lambda most=1000: int(rng.integers(1, most))
    kind = rng.integers(10)
    if kind <= 1:
        family, given = _FAMILY[n(len(_FAMILY)) - 1], _GIVEN[n(len(_GIVEN)) - 1]
        forms = (
            f"{family}^{given}",
            f"{family}, {given}",
            f"{given} {family}",
            f"Name: {family} {given[0]}.",
        )
        return forms[rng.integers(len(forms))]
    if kind <= 3:
        d, m, y = n(29), n(13), 1920 + n(107)
        forms = (
            f"{d:02}.{m:02}.{y}", f"{y}-{m:02}-{d:02}", f"{m}/{d}/{y}", f"DOB {d:02}/{m:02}/{y % 100:02}",
            f"{d:02} {_MONTHS[m - 1]} {y}", f"{y}{m:02}{d:02}", f"{n(24):02}:{n(60):02}:{n(60):02}",
            f"{n(13)}:{n(60):02} PM", f"{n(99):03}Y {'MF'[rng.integers(2)]}",
        )  # fmt: skip
        return forms[rng.integers(len(forms))]
    if kind <= 5:
        number = "".join(map(str, rng.integers(0, 10, rng.integers(4, 11))))
        return ("", "ID ", "ID: ", "MRN ", "Acc# ", "PID:", "No. ")[rng.integers(7)] + number
    if kind == 6:
        return _PLACES[n(len(_PLACES)) - 1]
    if kind <= 8:
        return _SETTINGS[n(len(_SETTINGS)) - 1].format(n=n(), d=f"{rng.uniform(0, 30):.1f}")
    if rng.random() < 0.5:
        return "".join(rng.choice(list(_OTHER), rng.integers(3, 14)))
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-./:# "
    return ("X" + "".join(rng.choice(list(letters), rng.integers(2, 16)))).strip() + "0a"


@lru_cache(maxsize=4096)
def _font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), size)


def _alpha(rng: np.random.Generator, text: str, fonts: list[Path], size: int, crisp: bool) -> np.ndarray:
    """The text's cover `(h, w)` in 0..255, cropped to what is drawn."""
    if rng.random() < 0.12:  # the stroke fonts of old overlays
        face = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_PLAIN, cv2.FONT_HERSHEY_DUPLEX)[rng.integers(3)]
        text = text.encode("ascii", "ignore").decode() or "ID 4711"
        scale, thick = size / (18 if face == cv2.FONT_HERSHEY_PLAIN else 32), 1 + (size > 24)
        (w, h), base = cv2.getTextSize(text, face, scale, thick)
        alpha = np.zeros((h + base + 8, w + 8), np.uint8)
        line = cv2.LINE_8 if crisp else cv2.LINE_AA
        cv2.putText(alpha, text, (4, h + 4), face, scale, 255, thick, line)
    else:
        font = _font(fonts[rng.integers(len(fonts))], size)
        left, top, right, bottom = font.getbbox(text)
        canvas = Image.new("L", (max(4, right - left + 8), max(4, bottom - top + 8)), 0)
        draw = ImageDraw.Draw(canvas)
        draw.fontmode = "1" if crisp else "L"
        draw.text((4 - left, 4 - top), text, 255, font)
        alpha = np.asarray(canvas)
    rows, columns = np.flatnonzero(alpha.any(1)), np.flatnonzero(alpha.any(0))
    if not len(rows):
        return np.zeros((0, 0), np.uint8)
    return alpha[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _size(rng: np.random.Generator, sizes: tuple[int, int]) -> int:
    return round(float(np.exp(rng.uniform(np.log(sizes[0]), np.log(sizes[1] + 1)))))


def _block(
    rng: np.random.Generator, image: np.ndarray, mask: np.ndarray, fonts: list[Path], sizes: tuple[int, int]
) -> None:
    size, crisp = _size(rng, sizes), bool(rng.random() < 0.3)
    font = [fonts[rng.integers(len(fonts))]]
    lines = [_alpha(rng, words(rng), font, size, crisp) for _ in range(rng.choice((1, 1, 1, 2, 3, 5)))]
    lines = [np.rot90(a) for a in lines[:1]] if rng.random() < 0.03 else lines
    height, width = image.shape[:2]
    gap = int(size * rng.uniform(0.15, 0.7))
    lines = [a[: height - 2, : width - 2] for a in lines if a.size]
    while lines and sum(len(a) + gap for a in lines) > height - 2:
        lines.pop()
    if not lines:
        return
    tall, wide = sum(len(a) + gap for a in lines) - gap, max(a.shape[1] for a in lines)
    if rng.random() < 0.6:  # a corner
        edge = int(rng.integers(0, 16))
        y = min(edge, height - tall) if rng.random() < 0.5 else max(0, height - tall - edge)
        x = min(edge, width - wide) if rng.random() < 0.5 else max(0, width - wide - edge)
    else:
        y, x = int(rng.integers(0, height - tall + 1)), int(rng.integers(0, width - wide + 1))
    place = image[y : y + tall, x : x + wide]
    colour = np.array(_COLOURS[rng.integers(len(_COLOURS))], np.float32)
    if rng.random() < 0.5:
        colour[:] = colour.mean()
    pad = int(rng.integers(1, 6))
    boxed = rng.random() < 0.15
    if not boxed and not _stands_out(place, colour):
        colour[:] = 255 if place.mean() < 128 else 0
        boxed = not _stands_out(place, colour)
    if boxed:
        shade = 0 if colour.mean() > 110 else 255
        image[max(0, y - pad) : y + tall + pad, max(0, x - pad) : x + wide + pad] = shade
    blur = rng.uniform(0.3, min(1.0, size / 16)) if rng.random() < 0.2 else 0
    strength = rng.uniform(0.75, 1) if rng.random() < 0.3 else 1.0
    shadow = rng.random() < 0.15
    for alpha in lines:
        left = x if rng.random() < 0.7 else x + wide - alpha.shape[1]
        h, w = alpha.shape
        cover = alpha.astype(np.float32) / 255 * strength
        if blur:
            cover = cv2.GaussianBlur(cover, (0, 0), blur)
        spot = image[y : y + h, left : left + w]
        if shadow:
            moved = np.zeros_like(cover)
            moved[1:, 1:] = cover[:-1, :-1]
            spot[:] = (spot * (1 - moved[..., None])).astype(np.uint8)
        spot[:] = (spot * (1 - cover[..., None]) + colour * cover[..., None] + 0.5).astype(np.uint8)
        mask[max(0, y - 1) : y + h + 1, max(0, left - 1) : left + w + 1] = TEXT
        y += h + gap


def _stands_out(place: np.ndarray, colour: np.ndarray) -> bool:
    """Whether lettering of that colour can be read there: it differs from nearly all pixels below it."""
    far = np.abs(place.astype(np.float32) - colour).mean(-1)
    return bool(np.quantile(far, 0.15) > 55) if far.size else False


def _shade(rng: np.random.Generator) -> tuple[int, int, int]:
    colour = _COLOURS[rng.integers(len(_COLOURS))]
    return tuple(int(c) for c in colour)


def _marker(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> None:
    """One or two characters: a side, an orientation, a number."""
    texts = (
        "R",
        "L",
        "R",
        "L",
        "A",
        "P",
        "H",
        "F",
        "S",
        "I",
        "V",
        "+",
        "x",
        "*",
        "1",
        "2",
        "3",
        "D",
        "●",
        "←",
    )
    text = texts[rng.integers(len(texts))]
    size = int(rng.integers(10, 64))
    alpha = _alpha(rng, text, fonts, size, bool(rng.random() < 0.3))[
        : image.shape[0] - 2, : image.shape[1] - 2
    ]
    if not alpha.size:
        return
    y = int(rng.integers(0, image.shape[0] - alpha.shape[0]))
    x = int(rng.integers(0, image.shape[1] - alpha.shape[1]))
    spot = image[y : y + alpha.shape[0], x : x + alpha.shape[1]]
    cover = alpha[..., None].astype(np.float32) / 255
    if rng.random() < 0.3:
        p = int(rng.integers(2, 8))
        cv2.rectangle(image, (x - p, y - p), (x + alpha.shape[1] + p, y + alpha.shape[0] + p), _shade(rng), 1)
    spot[:] = (spot * (1 - cover) + np.array(_shade(rng)) * cover).astype(np.uint8)


def _ruler(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> None:
    """Ticks at equal distances along a line or an edge, every fifth longer."""
    h, w = image.shape[:2]
    upright, step, colour = rng.random() < 0.5, int(rng.integers(3, 28)), _shade(rng)
    at = (
        int(rng.integers(0, w if upright else h))
        if rng.random() < 0.5
        else int(rng.choice((2, (w if upright else h) - 12)))
    )
    start, count = int(rng.integers(0, 40)), int(rng.integers(4, 60))
    tick, side, line = int(rng.integers(2, 9)), int(rng.choice((-1, 1))), rng.random() < 0.5
    thick = int(rng.choice((1, 1, 2)))
    for k in range(count):
        long = tick * (2 if k % 5 == 0 else 1) * side
        p = start + k * step
        ends = ((at, p), (at + long, p)) if upright else ((p, at), (p, at + long))
        cv2.line(image, *ends, colour, thick)
    if line:
        last = start + (count - 1) * step
        cv2.line(image, *(((at, start), (at, last)) if upright else ((start, at), (last, at))), colour, thick)


def _callipers(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> None:
    """Two crosses and a dotted line between them."""
    h, w = image.shape[:2]
    a, b = rng.integers(0, (w, h), (2, 2))
    colour, arm = _shade(rng), int(rng.integers(2, 8))
    for x, y in (a, b):
        cv2.drawMarker(image, (int(x), int(y)), colour, int(rng.choice((0, 1, 2))), 2 * arm, 1)
    length = int(np.hypot(*(a - b)))
    for k in range(0, length, int(rng.integers(4, 10))):
        p = a + (b - a) * k / max(1, length)
        cv2.circle(image, (int(p[0]), int(p[1])), int(rng.choice((0, 1))), colour, -1)


def _bar(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> None:
    """A grey or colour scale at an edge."""
    h, w = image.shape[:2]
    tall, wide = int(rng.integers(h // 6, h // 2)), int(rng.integers(4, 18))
    y, x = int(rng.integers(0, h - tall)), int(rng.choice((3, w - wide - 3)))
    ramp = np.linspace(255, 0, tall).astype(np.uint8)[:, None].repeat(wide, 1)
    image[y : y + tall, x : x + wide] = (
        cv2.applyColorMap(ramp, cv2.COLORMAP_JET) if rng.random() < 0.4 else ramp[..., None]
    )


def _grid(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> None:
    h, w = image.shape[:2]
    step, colour = int(rng.integers(6, 60)), _shade(rng)
    y0, x0 = int(rng.integers(0, h)), int(rng.integers(0, w))
    y1, x1 = min(h - 1, y0 + int(rng.integers(30, 200))), min(w - 1, x0 + int(rng.integers(30, 200)))
    for x in range(x0, x1, step):
        cv2.line(image, (x, y0), (x, y1), colour, 1)
    for y in range(y0, y1, step):
        cv2.line(image, (x0, y), (x1, y), colour, 1)


def _curve(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> None:
    """A trace, as of an electrocardiogram, or hairs."""
    h, w = image.shape[:2]
    if rng.random() < 0.5:
        x = np.arange(0, w, 2)
        wave = np.cumsum(rng.normal(0, 2, len(x)))
        wave += 25 * (rng.random(len(x)) < 0.06) * rng.choice((-1, 1))
        y = rng.integers(h // 2, h) + wave
        cv2.polylines(image, [np.stack([x, y], 1).astype(np.int32)], False, _shade(rng), 1, cv2.LINE_AA)
        return
    for _ in range(rng.integers(1, 12)):
        a, b, c = rng.integers(0, (w, h), (3, 2))
        t = np.linspace(0, 1, 40)[:, None]
        points = (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c
        shade = int(rng.integers(0, 90))
        cv2.polylines(
            image,
            [points.astype(np.int32)],
            False,
            (shade, shade, shade),
            int(rng.choice((1, 1, 2))),
            cv2.LINE_AA,
        )


def _boxes(rng: np.random.Generator, image: np.ndarray, fonts: list[Path]) -> None:
    """Black or grey boxes, as after redaction, and plain frames and ellipses."""
    h, w = image.shape[:2]
    y, x = int(rng.integers(0, h)), int(rng.integers(0, w))
    size = rng.integers(6, 90, 2)
    kind = rng.integers(3)
    if kind == 2:
        cv2.ellipse(
            image, (x, y), (int(size[0]), int(size[1])), int(rng.integers(180)), 0, 360, _shade(rng), 1
        )
    else:
        cv2.rectangle(
            image,
            (x, y),
            (x + int(size[0]) * 2, y + int(size[1])),
            _shade(rng) if kind else (0, 0, 0),
            1 if kind else -1,
        )
