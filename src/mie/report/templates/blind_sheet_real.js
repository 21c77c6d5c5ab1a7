{% extends "blind_sheet.js" %}
{% block pictures %}
    at("picture").src = `data:image/png;base64,${at(`picture-${row}`).textContent}`;
    const [width, height, x, y, radius] = at(`circle-${row}`).textContent.split(" ");
    at("outline").setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const circle of document.querySelectorAll("#outline circle")) {
      circle.setAttribute("cx", x);
      circle.setAttribute("cy", y);
      circle.setAttribute("r", radius);
    }
{% endblock %}
{% block answers %}
  function real() {
    say("real");
    show(row + 1);
  }

  function generated() {
    say("generated");
    show(row + 1);
  }

  function outline() {
    const off = at("outline").classList.toggle("off");
    at("toggle").setAttribute("aria-pressed", String(!off));
  }

{% endblock %}
{% block keys %}r: real, g: generated, o: outline,{% endblock %}
{% block enter %}
      if (event.key === "Enter" && answers[row]?.answer) show(row + 1); // it may be written before the answer
{% endblock %}
{% block more %}
  at("toggle").addEventListener("click", outline);
{% endblock %}
