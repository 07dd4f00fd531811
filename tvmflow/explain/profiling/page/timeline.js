// A run over time: launches, and the memory that intermediate tensors occupy.

const LANE = { left: 62, kernels: 34, axis: 22, memory: 96, gap: 20 };

function timelineView(profile) {
  if (!profile.kernels.length) return element("p", { class: "note" }, "No kernel was launched.");
  let zoom = 1;
  const place = panel((width) => timelineChart(profile, width * zoom));
  const scroll = element("div", { class: "scroll", tabindex: 0, role: "region",
    "aria-label": "Timeline, scrolls sideways when enlarged" }, place);
  const change = (factor) => {
    const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / zoom;
    zoom = factor === 0 ? 1 : Math.min(64, Math.max(1, zoom * factor));
    redraw(place);
    scroll.scrollLeft = middle * zoom - scroll.clientWidth / 2;
  };
  const button = (text, name, factor) =>
    element("button", { type: "button", title: name, "aria-label": name,
      click: () => change(factor) }, text);
  const controls = element("div", { class: "controls" }, button("+", "Enlarge", 2),
    button("−", "Reduce", 0.5), button("All", "The whole run", 0));
  const unknown = profile.memory.length ? null
    : element("p", { class: "note" }, "What tensors occupy at each moment is not known.");
  return element("div", {}, controls, scroll, unknown ?? "");
}

function endOf(kernel) {
  return kernel.start_us + kernel.median_us;
}

function timelineChart(profile, width) {
  // Both of two profiles have one scale.
  const end = Math.max(...profiles.flatMap((one) => one.kernels.map(endOf)), 1e-3);
  const wide = width - LANE.left - 12;
  const x = (us) => LANE.left + (us / end) * wide;
  const rects = profile.kernels.flatMap((kernel) => {
    const long = Math.max(1, (kernel.median_us / end) * wide - 0.5);
    const rect = shape("rect", {
      ...mark(kernel, kernelHint(kernel)),
      x: x(kernel.start_us).toFixed(2), y: 2, width: long.toFixed(2), height: LANE.kernels - 4,
    });
    rect.classList.add("tinted");
    if (long < 40) return [rect];
    const at = { x: x(kernel.start_us) + 4, y: LANE.kernels / 2 + 4, class: "inside" };
    return [rect, shape("text", at, fitted(nameOf(kernel), long - 8))];
  });
  const names = [shape("text", { x: 0, y: LANE.kernels / 2 + 4 }, "kernels")];
  const marks = ticks(end, Math.max(2, wide / 110)).flatMap((us) => {
    const at = x(us).toFixed(1);
    const time = microseconds(us);
    // At the right edge, half of a centred one would be cut off.
    const inside = x(us) + textWidth(time) / 2 <= width;
    return [
      shape("line", { x1: at, x2: at, y1: 0, y2: LANE.kernels + 6, class: "grid" }),
      shape("text", { x: inside ? at : width, y: LANE.kernels + 18,
        class: inside ? "middle" : "end" }, time),
    ];
  });
  const memory = memoryLane(profile, x, Math.max(...profile.kernels.map(endOf), 1e-3));
  const height = LANE.kernels + LANE.axis + (memory.length ? LANE.gap + LANE.memory : 0) + 4;
  return chart(`Timeline of ${profile.kernels.length} launches`, width, height,
    marks, names, rects, memory);
}

function memoryLane(profile, x, end) {
  if (!profile.memory.length) return [];
  // Where steps do not follow launches they are drawn one behind the other, equally long.
  const times = profile.step_starts;
  const begin = (index) => times?.[index] ?? (index * end) / profile.memory.length;
  const top = LANE.kernels + LANE.axis + LANE.gap;
  const most = Math.max(
    ...profiles.flatMap((one) => one.memory.map((step) => step.live_bytes)), 1);
  const y = (count) => (top + LANE.memory * (1 - count / most)).toFixed(1);
  const bottom = top + LANE.memory;
  let path = `M${x(begin(0)).toFixed(1)},${bottom}`;
  const hits = profile.memory.map((step, index) => {
    const [from, to] = [x(begin(index)), x(index + 1 < profile.memory.length ? begin(index + 1) : end)];
    path += `L${from.toFixed(1)},${y(step.live_bytes)}L${to.toFixed(1)},${y(step.live_bytes)}`;
    return shape("rect", {
      x: from.toFixed(1), y: top, width: Math.max(0, to - from).toFixed(1), height: LANE.memory,
      class: "hit",
      "data-tip": `${step.function}\n${bytes(step.live_bytes)} of intermediate tensors`,
    });
  });
  path += `L${x(end).toFixed(1)},${bottom}Z`;
  const line = (at) => shape("line", { x1: LANE.left, x2: x(end).toFixed(1), y1: at, y2: at,
    class: "grid" });
  return [
    line(top), line(bottom),
    shape("text", { x: 0, y: top + 10 }, "memory"),
    shape("text", { x: 0, y: top + 25 }, bytes(most)),
    shape("text", { x: 0, y: bottom }, "0 B"),
    shape("path", { d: path, class: "memory" }),
    hits,
    times ? null : shape("text", { x: LANE.left, y: top - 4 }, "by step"),
  ].flat().filter(Boolean);
}
