// The roofline: each kernel's rate over its intensity, under what the device reaches.

const ROOM = { left: 58, right: 24, top: 16, bottom: 44 };

/** Powers of ten around values, for both profiles the same; two decades at least. */
function decades(values) {
  const known = values.filter((value) => value > 0);
  if (!known.length) return [0, 2];
  const low = Math.log10(Math.min(...known) * 0.6);
  return [low, Math.max(low + 2, Math.log10(Math.max(...known) * 1.7))];
}

function arithmeticCeilings({ ceilings }) {
  if (!ceilings) return [];
  const { fp32_gflops, fp16_gflops, int8_gops } = ceilings;
  return [["fp32", fp32_gflops, "GFLOP/s"], ["fp16", fp16_gflops, "GFLOP/s"],
    ["int8", int8_gops, "GOP/s"]].filter(([, rate]) => rate > 0);
}

function memoryCeilings({ ceilings }) {
  if (!ceilings) return [];
  return [...ceilings.caches.map(({ name, gbps }) => [name, gbps]),
    ["copy", ceilings.copy_gbps], ["texture", ceilings.texture_gbps]].filter(([, rate]) => rate > 0);
}

function onRoofline(kernel) {
  return kernel.intensity > 0 && kernel.gflops > 0;
}

const pointed = profiles.flatMap((profile) => profile.kernels.filter(onRoofline));
const ridges = profiles.flatMap((profile) => arithmeticCeilings(profile).flatMap(
  ([, rate]) => memoryCeilings(profile).map(([, speed]) => rate / speed)));
const INTENSITIES = decades([...pointed.map((kernel) => kernel.intensity), ...ridges]);
const RATES = decades([...pointed.map((kernel) => kernel.gflops),
  ...profiles.flatMap((profile) => arithmeticCeilings(profile).map(([, rate]) => rate))]);

function rooflineChart(profile, width) {
  const height = Math.round(Math.min(440, Math.max(300, width * 0.62)));
  const wide = width - ROOM.left - ROOM.right;
  const high = height - ROOM.top - ROOM.bottom;
  const x = (value) =>
    ROOM.left + ((Math.log10(value) - INTENSITIES[0]) / (INTENSITIES[1] - INTENSITIES[0])) * wide;
  const y = (value) =>
    ROOM.top + high - ((Math.log10(value) - RATES[0]) / (RATES[1] - RATES[0])) * high;
  const scale = { x, y, width, height, wide, high };
  const points = profile.kernels.filter(onRoofline).sort((a, b) => b.median_us - a.median_us);
  const slowest = Math.max(...points.map((kernel) => kernel.median_us), 1);
  const circles = points.map((kernel) => shape("circle", {
    ...mark(kernel, kernelHint(kernel)),
    cx: x(kernel.intensity).toFixed(1),
    cy: y(kernel.gflops).toFixed(1),
    r: (3 + 11 * Math.sqrt(Math.max(0, kernel.median_us) / slowest)).toFixed(1),
  }));
  const label = `Roofline${comparing ? `, ${profile.sideName}` : ""}: ${points.length} kernels`;
  const { lines, names } = ceilingLines(profile, scale);
  return chart(label, width, height, rooflineAxes(scale), lines, circles, names);
}

function rooflineAxes({ x, y, width, height, wide, high }) {
  const parts = [];
  for (let power = Math.ceil(INTENSITIES[0]); power <= INTENSITIES[1]; power++) {
    const at = x(10 ** power).toFixed(1);
    parts.push(shape("line", { x1: at, x2: at, y1: ROOM.top, y2: ROOM.top + high, class: "grid" }));
    parts.push(shape("text", { x: at, y: ROOM.top + high + 16, class: "middle" },
      number(10 ** power)));
  }
  for (let power = Math.ceil(RATES[0]); power <= RATES[1]; power++) {
    const at = y(10 ** power).toFixed(1);
    parts.push(shape("line",
      { x1: ROOM.left, x2: ROOM.left + wide, y1: at, y2: at, class: "grid" }));
    parts.push(shape("text", { x: ROOM.left - 6, y: Number(at) + 4, class: "end" },
      number(10 ** power)));
  }
  const turned = `translate(14 ${ROOM.top + high / 2}) rotate(-90)`;
  parts.push(shape("text", { x: ROOM.left + wide / 2, y: height - 6, class: "middle" },
    "intensity, operations for a byte"));
  parts.push(shape("text", { transform: turned, class: "middle" }, "GFLOP/s"));
  return parts;
}

function ceilingLines(profile, { x, y, width, wide, high }) {
  const memory = memoryCeilings(profile).sort((a, b) => b[1] - a[1]);
  const arithmetic = arithmeticCeilings(profile).sort((a, b) => b[1] - a[1]);
  const lines = [];
  const names = [];
  const [least, most] = [10 ** INTENSITIES[0], 10 ** INTENSITIES[1]];
  const line = (x1, y1, x2, y2) => lines.push(shape("line", {
    x1: x(x1).toFixed(1), y1: y(y1).toFixed(1), x2: x(x2).toFixed(1), y2: y(y2).toFixed(1),
    class: "ceiling",
  }));
  const angle = (-Math.atan2(high / (RATES[1] - RATES[0]), wide / (INTENSITIES[1] - INTENSITIES[0]))
    * 180) / Math.PI;
  let crowded = 0;
  for (const [rank, [name, speed]] of memory.entries()) {
    // Names of lines that are near to each other stand one behind the other.
    crowded = rank && memory[rank - 1][1] < 1.7 * speed ? crowded + 1 : 0;
    const begin = Math.max(least, 10 ** RATES[0] / speed);
    const end = arithmetic.length ? Math.min(most, arithmetic[0][1] / speed) : most;
    if (end <= begin) continue;
    line(begin, begin * speed, end, end * speed);
    // The upper line's name stands above it, the lower one's below.
    const from = begin * 1.25 * 3 ** crowded;
    const at = `translate(${x(from)} ${y(from * speed)}) rotate(${angle})`;
    names.push(shape("text", { transform: at, dy: rank ? 13 : -5, class: "halo" },
      `${name} ${number(speed)} GB/s`));
  }
  let free = -Infinity;
  for (const [name, rate, unit] of arithmetic) {
    line(memory.length ? Math.max(least, rate / memory[0][1]) : least, rate, most, rate);
    const beside = Math.max(y(rate) - 5, free + 13);
    free = beside;
    names.push(shape("text", { x: width - ROOM.right - 4, y: beside, class: "end halo" },
      `${name} ${number(rate)} ${unit}`));
  }
  return { lines, names };
}

/** What the chart does not show, as a sentence. */
function rooflineNote(profile) {
  const hidden = profile.kernels.filter((kernel) => !onRoofline(kernel)).length;
  const without = hidden ? ` Not shown: ${hidden} without arithmetic or without counts.` : "";
  const lines = profile.ceilings
    ? "Lines: what this device reached in kernels that do one thing only."
    : "The device's ceilings were not measured.";
  const measured = profile.ceilings_measured ? ` Measured ${profile.ceilings_measured}.` : "";
  const faster = profile.ceilings && profile.kernels.some((kernel) =>
    onRoofline(kernel) && kernel.gbps > profile.ceilings.copy_gbps)
    ? " Points above the line of copies are faster than memory: caches hold their tensors." : "";
  return element("p", { class: "note" },
    `Each point is a launch, as large as its time. ${lines}${measured}${faster}${without}`);
}
