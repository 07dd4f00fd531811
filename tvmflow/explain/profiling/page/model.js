// The profiles, and what is made of their records: layers, colours, findings of a kernel.

const { profiles, pairs, codes, yardstickNote } =
  JSON.parse(document.getElementById("data").textContent);
const comparing = profiles.length > 1;
const SIDES = ["before", "after"];

for (const [side, profile] of profiles.entries()) {
  profile.side = side;
  profile.sideName = comparing ? SIDES[side] : "";
  profile.kernels_us = sum(profile.kernels.map((kernel) => kernel.median_us));
  const findings = grouped(profile.findings, (finding) => finding.kernel);
  for (const [index, kernel] of profile.kernels.entries()) {
    kernel.profile = profile;
    kernel.index = index;
    kernel.id = `${side}.${index}`;
    // Standalone libraries name none.
    kernel.family ||= "unknown";
    kernel.label = kernel.nodes.join(" + ") || kernel.function;
    kernel.share = part(kernel.median_us, profile.kernels_us);
    kernel.bytes =
      kernel.bytes_read === null ? null : kernel.bytes_read + kernel.bytes_written;
    kernel.findings = findings.get(kernel.name) ?? [];
  }
  const launches = grouped(profile.kernels, (kernel) => kernel.name);
  for (const finding of profile.findings) {
    const own = launches.get(finding.kernel) ?? [];
    // What it may be worth in a run: its share of its kernel's launches, or of the call.
    finding.us = finding.share * (finding.kernel
      ? sum(own.map((kernel) => kernel.median_us)) : 1e3 * profile.whole.median_ms);
    finding.slowest = own.reduce(
      (best, one) => (best && best.median_us >= one.median_us ? best : one), null);
  }
  profile.layers = layersOf(profile.kernels);
}

function grouped(values, key) {
  const groups = new Map();
  for (const value of values) {
    if (!groups.has(key(value))) groups.set(key(value), []);
    groups.get(key(value)).push(value);
  }
  return groups;
}

/** Launches one behind the other of the same function and nodes are a layer. */
function layersOf(kernels) {
  const layers = [];
  for (const kernel of kernels) {
    const last = layers.at(-1);
    if (last && last.slowest.function === kernel.function && last.label === kernel.label) {
      last.us += kernel.median_us;
      last.launches += 1;
      if (kernel.median_us > last.slowest.median_us) last.slowest = kernel;
    } else {
      layers.push({ label: kernel.label, us: kernel.median_us, launches: 1, slowest: kernel });
    }
  }
  return layers;
}

function kernelOf(id) {
  const [side, index] = id.split(".").map(Number);
  return profiles[side]?.kernels[index] ?? null;
}

function layerHint(layer) {
  const kernel = layer.slowest;
  const share = percent(part(layer.us, kernel.profile.kernels_us));
  const launches = layer.launches > 1 ? `, ${layer.launches} launches` : "";
  return `${layer.label}\n${microseconds(layer.us)}, ${share} of the kernels${launches}\n` +
    `${kernel.family}, ${boundText(kernel)}`;
}

function timeText({ median_us, p10_us, p90_us }) {
  return `${microseconds(median_us)} (${microseconds(p10_us)} to ${microseconds(p90_us)})`;
}

function kernelHint(kernel) {
  const lines = [kernel.name, kernel.label];
  lines.push(`${timeText(kernel)}, ${percent(kernel.share)} of the kernels`);
  if (kernel.gflops !== null) {
    lines.push(`${number(kernel.gflops)} GFLOP/s, ${number(kernel.gbps)} GB/s, ` +
      `${number(kernel.intensity)} FLOP/B`);
  }
  lines.push(`${kernel.family}, ${boundText(kernel)}`);
  return lines.join("\n");
}

function boundText(kernel) {
  const { bound, roofline_share: share } = kernel;
  const reason = bound === null ? "what holds it back is not known" : `held back by ${bound}`;
  return share === null ? reason : `${reason}, ${percent(share)} of the roofline`;
}

// --- colours: of families, the slowest first, or of what holds kernels back -------------------

const COLOURS = 8;
const BOUNDS = { bandwidth: 1, arithmetic: 2, launch: 3, latency: 4 };
// Nothing was counted, or the device's ceilings were not measured.
const UNKNOWN = "not known";
let colouring = "family";

const families = [...grouped(profiles.flatMap((p) => p.kernels), (kernel) => kernel.family)]
  .map(([name, kernels]) => ({ name, us: sum(kernels.map((kernel) => kernel.median_us)) }))
  .sort((a, b) => b.us - a.us);
const familyColours = new Map(families.map((family, rank) => [family.name, rank + 1]));

function colourOf(kernel) {
  const colour = colouring === "family" ? familyColours.get(kernel.family) : BOUNDS[kernel.bound];
  return `colour${colour <= COLOURS ? colour : 0}`;
}

/** Names and colours that are in use. */
function legendEntries() {
  if (colouring === "family") {
    const own = families.slice(0, COLOURS).map((family, rank) => [family.name, rank + 1]);
    return families.length > COLOURS ? [...own, ["others", 0]] : own;
  }
  const kernels = profiles.flatMap((profile) => profile.kernels);
  const own = Object.entries(BOUNDS).filter(([name]) => kernels.some((k) => k.bound === name));
  return kernels.some((kernel) => kernel.bound === null) ? [...own, [UNKNOWN, 0]] : own;
}

function legend() {
  const entries = legendEntries().map(([name, colour]) =>
    element("li", { class: `colour${colour}` }, element("i"), name));
  return element("ul", { class: "legend", id: "legend" }, entries);
}

/** Colour everything that is drawn by family or by bound. */
function recolour(by) {
  colouring = by;
  for (const node of document.querySelectorAll("[class*=colour][data-kernel]")) {
    const others = [...node.classList].filter((name) => !name.startsWith("colour"));
    node.setAttribute("class", [...others, colourOf(kernelOf(node.dataset.kernel))].join(" "));
  }
  document.getElementById("legend").replaceWith(legend());
}
