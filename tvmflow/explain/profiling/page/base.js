// Elements, numbers as people read them, hints, and the keyboard.

const NONE = "–";

/** An HTML element; attributes that are null, undefined or false are left out. */
function element(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An element of a drawing. */
function shape(name, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** A part of a whole; null where there is no whole. */
function part(value, whole) {
  return whole ? value / whole : null;
}

// Made once: a page has thousands of numbers.
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const THREE_DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** Three digits or all before the point, grouped: 0.0123, 4.56, 12,345; 1.23e-9 beyond. */
function number(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-6)) return value.toExponential(2);
  return (size >= 100 ? WHOLE : THREE_DIGITS).format(value);
}

function percent(share) {
  if (share === null || share === undefined) return NONE;
  return `${share < 0.0995 ? (100 * share).toFixed(1) : number(Math.round(100 * share))} %`;
}

function microseconds(us) {
  if (us === null) return NONE;
  const size = Math.abs(us);
  if (size >= 1e6) return `${number(us / 1e6)} s`;
  return size >= 1e3 ? `${number(us / 1e3)} ms` : `${number(us)} µs`;
}

/** With a decimal unit: 13.9 MB. */
function bytes(count) {
  return scaled(count, "B");
}

function scaled(count, unit) {
  if (count === null || count === undefined) return NONE;
  const power = count < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
  return `${number(count / 1000 ** power)} ${["", "k", "M", "G", "T"][power]}${unit}`;
}

/** Numbers of one digit and zeros that divide a range into about so many parts. */
function ticks(end, parts) {
  const raw = end / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}

// --- texts in drawings, which have no box that cuts them -----------------------------------------

const pen = document.createElement("canvas").getContext("2d");
// As svg in the style.
pen.font = "11.5px system-ui, sans-serif";

function textWidth(text) {
  return pen.measureText(text).width;
}

/** As much of both ends of a text as pixels hold; nothing where that says nothing. */
function fitted(text, width) {
  const whole = textWidth(text);
  if (whole <= width) return text;
  // Not code units, of which some letters are two.
  const letters = [...text];
  for (let kept = Math.floor((letters.length * width) / whole); kept > 5; kept--) {
    const head = letters.slice(0, Math.floor(kept / 2)).join("");
    const shortened = `${head}…${letters.slice(letters.length - Math.ceil(kept / 2)).join("")}`;
    if (textWidth(shortened) <= width) return shortened;
  }
  return "";
}

// --- panels: drawn as wide as they are, and again when that changes --------------------------

const panels = [];

/** A place for what `draw(width)` returns. */
function panel(draw) {
  const node = element("div", { class: "panel" });
  panels.push({ node, draw, width: 0 });
  return node;
}

function drawPanels() {
  // First all widths, then all drawings: each width that is asked for after a change is a layout.
  const widths = panels.map((one) => Math.floor(one.node.clientWidth));
  for (const [index, one] of panels.entries()) {
    const width = widths[index];
    if (width === one.width || width === 0) continue;
    one.width = width;
    one.node.replaceChildren(one.draw(width));
  }
}

/** Draw a panel again that shows something else now. */
function redraw(node) {
  panels.find((one) => one.node === node).width = 0;
  drawPanels();
}

// --- marks: parts of drawings that stand for a kernel -----------------------------------------

/** The attributes of a mark: coloured, with a hint, opened by a click or Enter. */
function mark(kernel, hint) {
  return {
    class: `mark ${colourOf(kernel)}`,
    "data-kernel": kernel.id,
    "data-tip": hint,
    "aria-label": hint,
    role: "link",
    tabindex: -1,
  };
}

/** A drawing with marks: one stop of the Tab key, arrow keys go on from mark to mark. */
function chart(label, width, height, ...children) {
  const attributes = { width, height, viewBox: `0 0 ${width} ${height}`, role: "group" };
  const node = shape("svg", { ...attributes, "aria-label": label, class: "chart" }, ...children);
  node.querySelector(".mark")?.setAttribute("tabindex", 0);
  return node;
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

document.addEventListener("keydown", (event) => {
  const own = event.target.closest?.(".chart .mark");
  // With Alt, arrows are the browser's own.
  if (!own || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Enter" || event.key === " ") {
    openKernel(own.dataset.kernel);
  } else if (event.key in STEPS || event.key === "Home" || event.key === "End") {
    const marks = [...own.closest(".chart").querySelectorAll(".mark")];
    const at = marks.indexOf(own) + (STEPS[event.key] ?? 0);
    const next = { Home: 0, End: marks.length - 1 }[event.key] ?? at;
    const chosen = marks[Math.min(marks.length - 1, Math.max(0, next))];
    own.setAttribute("tabindex", -1);
    chosen.setAttribute("tabindex", 0);
    chosen.focus();
  } else {
    return;
  }
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const own = event.target.closest?.(".chart .mark, tr[data-kernel]");
  if (own && !event.target.closest("a")) openKernel(own.dataset.kernel);
});

// --- hints, and the same kernel everywhere ----------------------------------------------------

const tip = document.getElementById("tip");
let shown = null;

function hint(event) {
  point(event.target.closest?.("[data-tip]") ?? null);
}

function point(own) {
  if (own === shown) return;
  shown = own;
  tip.hidden = own === null;
  for (const node of document.querySelectorAll(".same")) node.classList.remove("same");
  if (own === null) return;
  tip.textContent = own.dataset.tip;
  placeTip(own);
  if (!own.dataset.kernel) return;
  for (const node of document.querySelectorAll(`[data-kernel="${own.dataset.kernel}"]`)) {
    node.classList.add("same");
  }
}

function placeTip(own) {
  const box = own.getBoundingClientRect();
  const x = Math.min(box.x, innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + tip.offsetHeight + 8 < innerHeight;
  const y = below ? box.bottom + 6 : Math.max(4, box.y - tip.offsetHeight - 6);
  tip.style.transform = `translate(${Math.max(4, x)}px, ${y}px)`;
}

for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, hint);
for (const kind of ["pointerleave", "focusout"]) {
  document.documentElement.addEventListener(kind, () => point(null));
}
document.addEventListener("scroll", () => {
  // The keyboard's focus itself scrolls to what it reaches.
  if (shown && shown === document.activeElement) placeTip(shown);
  else point(null);
}, true);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") point(null); });
