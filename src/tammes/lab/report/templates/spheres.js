"use strict";
// Spheres that turn with the pointer: everything is redrawn from its coordinates, the farthest first.

const SVG = "http://www.w3.org/2000/svg";
const element = (name, attributes) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

// Meridians and parallels every 30 degrees, as lists of points.
const circle = (at) => Array.from({ length: 49 }, (_, i) => at((i * Math.PI) / 24));
const globe = [];
for (let j = 0; j < 6; j++)
  globe.push(circle((t) => [Math.sin(t) * Math.cos((j * Math.PI) / 6), Math.sin(t) * Math.sin((j * Math.PI) / 6), Math.cos(t)]));
for (const z of [-0.866, -0.5, 0, 0.5, 0.866]) {
  const r = Math.sqrt(1 - z * z);
  globe.push(circle((t) => [r * Math.cos(t), r * Math.sin(t), z]));
}

let azimuth = 0.6, elevation = 0.3;

// Right, up and towards the viewer.
function turn([x, y, z]) {
  const a = x * Math.cos(azimuth) + y * Math.sin(azimuth), b = y * Math.cos(azimuth) - x * Math.sin(azimuth);
  return [b, -(z * Math.cos(elevation) - a * Math.sin(elevation)), a * Math.cos(elevation) + z * Math.sin(elevation)];
}

function draw(svg) {
  const shapes = [];
  for (const line of globe) {
    const points = line.map(turn);
    for (let i = 1; i < points.length; i++)
      shapes.push([points[i][2], element("path", { class: points[i][2] < 0 ? "far" : "near", d: `M${points[i - 1].slice(0, 2)}L${points[i].slice(0, 2)}` })]);
  }
  for (const point of JSON.parse(svg.dataset.prototypes)) {
    const [x, y, z] = turn(point);
    const group = element("g", { class: "arrow", opacity: z < 0 ? 0.55 : 1 });
    const length = Math.hypot(x, y) || 1e-9, [ux, uy] = [x / length, y / length], head = Math.min(0.1, length);
    group.append(
      element("path", { d: `M0,0L${x - ux * head * 0.7},${y - uy * head * 0.7}` }),
      element("path", { class: "head", d: `M${x},${y}L${x - ux * head - uy * 0.045},${y - uy * head + ux * 0.045}L${x - ux * head + uy * 0.045},${y - uy * head - ux * 0.045}z` }),
    );
    shapes.push([z, group]);
  }
  for (const point of JSON.parse(svg.dataset.features)) {
    const [x, y, z] = turn(point);
    shapes.push([z, element("circle", { class: "feature", cx: x, cy: y, r: 0.028, opacity: z < 0 ? 0.5 : 1 })]);
  }
  svg.replaceChildren(...shapes.sort((a, b) => a[0] - b[0]).map(([, shape]) => shape));
}

const spheres = [...document.querySelectorAll("svg.sphere")];
const drawAll = () => spheres.forEach(draw);
for (const svg of spheres) {
  svg.addEventListener("pointerdown", (event) => svg.setPointerCapture(event.pointerId));
  svg.addEventListener("pointermove", (event) => {
    if (!svg.hasPointerCapture(event.pointerId)) return;
    azimuth -= event.movementX / 120;
    elevation = Math.max(-1.5, Math.min(1.5, elevation + event.movementY / 120));
    requestAnimationFrame(drawAll);
  });
}
drawAll();
