"use strict";
// The page is complete without this script, which adds tooltips, switches and sorting.

const tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));

function say(text, event, photo) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  if (photo) tip.append(picture(photo));
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4))}px`;
  tip.style.top = `${event.clientY > box.height + 24 ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}

const SVG = "http://www.w3.org/2000/svg";
function picture(key) {
  const svg = document.createElementNS(SVG, "svg"), use = document.createElementNS(SVG, "use");
  svg.setAttribute("viewBox", document.getElementById(key).getAttribute("viewBox"));
  use.setAttribute("href", `#${key}`);
  svg.append(use);
  return svg;
}

// A matrix is one picture; the tooltip of a cell comes from its numbers, hundredths of cosines.
function cell(image, event) {
  const names = JSON.parse(image.dataset.names), k = names.length, box = image.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * k);
  const row = Math.floor(((event.clientY - box.top) / box.height) * k);
  if (row === column || !(row in names) || !(column in names)) return names[row] || "";
  const bytes = (image.bytes ||= Uint8Array.from(atob(image.dataset.hundredths), (c) => c.charCodeAt(0)));
  const cosine = (bytes[row * k + column] - 100) / 100;
  const angle = (Math.acos(Math.max(-1, Math.min(1, cosine))) * 180) / Math.PI;
  return `${names[row]} and ${names[column]}\ncosine ${cosine.toFixed(2)}, ${angle.toFixed(0)}° apart`;
}

for (const kind of ["pointermove", "pointerdown"])
  document.addEventListener(kind, (event) => {
    const image = event.target.closest("image[data-names]"), marked = event.target.closest("[data-tip]");
    say(image ? cell(image, event) : marked?.dataset.tip, event, marked?.dataset.photo);
  });
document.addEventListener("pointerleave", () => say(""));
addEventListener("scroll", () => say(""), { passive: true });

// Buttons show and hide the curves of a run.
for (const button of document.querySelectorAll("button[data-run]"))
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", shown);
    for (const mark of button.closest("section").querySelectorAll(`svg .run-${button.dataset.run}`))
      mark.style.display = shown ? "" : "none";
  });

// A cell of the confusion matrix opens the photos of its pair.
for (const cell of document.querySelectorAll("[data-open]"))
  cell.addEventListener("click", () => {
    const section = cell.closest("section");
    for (const pair of section.querySelectorAll("details[data-pair]")) pair.open = pair.dataset.pair === cell.dataset.open;
    section.querySelector(`[data-pair="${cell.dataset.open}"]`)?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  });

// Histograms: linear or logarithmic counts.
for (const box of document.querySelectorAll("input[data-log]"))
  box.addEventListener("change", () => {
    for (const chart of box.closest("section").querySelectorAll("svg.histogram"))
      chart.classList.toggle("log", box.checked);
  });

// The map: one class, or mistakes only.
for (const section of document.querySelectorAll("section")) {
  const chosen = section.querySelector("select[data-classes]"), mistakes = section.querySelector("input[data-mistakes]");
  if (!chosen || !mistakes) continue;
  const draw = () => {
    for (const group of section.querySelectorAll("g[data-class]"))
      for (const mark of group.children)
        mark.classList.toggle(
          "fade",
          (chosen.value !== "" && chosen.value !== group.dataset.class) ||
            (mistakes.checked && !mark.classList.contains("wrong")),
        );
  };
  chosen.addEventListener("change", draw);
  mistakes.addEventListener("change", draw);
}

// With several models, show one at a time.
const chooser = document.querySelector("select[data-parts]");
if (chooser) {
  const choose = () => {
    for (const part of document.querySelectorAll("article[data-part]"))
      part.hidden = part.dataset.part !== chooser.value;
  };
  chooser.addEventListener("change", choose);
  choose();
}

// Click a column heading to sort.
const number = (text) => parseFloat(text.replaceAll(",", "").replace("−", "-"));
for (const table of document.querySelectorAll("table")) {
  if (table.tBodies.length !== 1 || table.tBodies[0].rows.length < 2) continue;
  for (const head of table.tHead.rows[0].cells) {
    head.classList.add("sortable");
    head.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", place = head.cellIndex;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const compare = (a, b) => {
        const [x, y] = [a, b].map((row) => row.cells[place].textContent);
        const order = head.classList.contains("number") ? number(x) - number(y) || 0 : x.localeCompare(y, undefined, { numeric: true });
        return down ? -order : order;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    });
  }
}

// Say so where a table or a row of photos goes on beyond the edge.
const hints = () => {
  for (const box of document.querySelectorAll(".scroll")) {
    const cut = box.scrollWidth > box.clientWidth + 1, hint = box.previousElementSibling;
    if (hint?.classList.contains("more")) hint.hidden = !cut;
    else if (cut) box.before(Object.assign(document.createElement("p"), { className: "more", textContent: "Scroll sideways for more →" }));
  }
};
addEventListener("resize", hints);
chooser?.addEventListener("change", hints);
hints();

addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});
