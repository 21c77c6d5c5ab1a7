"""Every template by name. One file per task; `Template` says what a template is."""

from typing import Final

from mie.core.registry import unknown_name
from mie.questions.templates import anatomy, diagnosis, features, imaging, location, screening
from mie.questions.templates.template import Draft, Template

TEMPLATES: Final[dict[str, Template]] = {
    template.name: template
    for module in (imaging, anatomy, screening, features, location, diagnosis)
    for template in module.TEMPLATES
}


def find_template(name: str) -> Template:
    """The template of that name; a near miss is suggested."""
    if name not in TEMPLATES:
        raise unknown_name("template", name, TEMPLATES)
    return TEMPLATES[name]


__all__ = ["TEMPLATES", "Draft", "Template", "find_template"]
