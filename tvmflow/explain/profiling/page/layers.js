// Time by layer: areas, grouped by family, and bars.

/** Rectangles as square as possible whose areas are in the values' ratio, the largest first. */
function squarified(items, x, y, width, height) {
  const placed = [];
  const total = sum(items.map((item) => item.us));
  let scale = total > 0 ? (width * height) / total : 0;
  let rest = items.filter((item) => item.us > 0);
  while (rest.length && scale > 0) {
    const side = Math.min(width, height);
    let row = [];
    let best = Infinity;
    for (const item of rest) {
      const longer = [...row, item];
      const worst = worstRatio(longer, side, scale);
      if (worst > best) break;
      row = longer;
      best = worst;
    }
    const thick = Math.min(Math.max(width, height), (sum(row.map((item) => item.us)) * scale) / side);
    let along = 0;
    for (const item of row) {
      const long = (item.us * scale) / thick;
      placed.push(width >= height
        ? { item, x, y: y + along, width: thick, height: long }
        : { item, x: x + along, y, width: long, height: thick });
      along += long;
    }
    if (width >= height) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
    rest = rest.slice(row.length);
    const left = sum(rest.map((item) => item.us));
    scale = left > 0 ? Math.max(0, width * height) / left : 0;
  }
  return placed;
}

function worstRatio(row, side, scale) {
  const areas = row.map((item) => item.us * scale);
  const thick = sum(areas) / side;
  return Math.max(...areas.map((area) => Math.max(thick ** 2 / area, area / thick ** 2)));
}

function bySize(a, b) {
  return b.us - a.us;
}

function treemap(profile, width) {
  if (!(profile.kernels_us > 0)) {
    return element("p", { class: "note" }, "No kernel took any time.");
  }
  const height = 300;
  const groups = [...grouped(profile.layers, (layer) => layer.slowest.family)]
    .map(([family, layers]) => ({ family, layers: layers.sort(bySize),
      us: sum(layers.map((layer) => layer.us)) }))
    .sort(bySize);
  const parts = [];
  for (const outer of squarified(groups, 0, 0, width, height)) {
    const { layers } = outer.item;
    for (const box of squarified(layers, outer.x + 1, outer.y + 1,
      Math.max(0, outer.width - 2), Math.max(0, outer.height - 2))) {
      parts.push(tile(box));
    }
  }
  return chart(`Time by layer as areas: ${profile.layers.length} layers`, width, height, parts);
}

function tile({ item, x, y, width, height }) {
  const rect = shape("rect", {
    ...mark(item.slowest, layerHint(item)),
    x: (x + 0.5).toFixed(1),
    y: (y + 0.5).toFixed(1),
    width: Math.max(0.5, width - 1).toFixed(1),
    height: Math.max(0.5, height - 1).toFixed(1),
    rx: 2,
  });
  rect.classList.add("tinted");
  if (width < 40 || height < 20) return [rect];
  return [rect, ...tileLines(item, width - 10, Math.floor((height - 6) / 14)).map((line, row) =>
    shape("text", { x: (x + 6).toFixed(1), y: (y + 15 + 14 * row).toFixed(1), class: "inside" },
      line))];
}

/** The name, in two lines where one is too short for it, and the time, in so many lines at most. */
function tileLines(layer, width, rows) {
  const name = nameOf(layer.slowest);
  const parts = name.split(/(?<=[./_:])/);
  let first = "";
  while (parts.length > 1 && textWidth(first + parts[0]) <= width) first += parts.shift();
  const lines = first && rows > 2 && textWidth(name) > width
    ? [first, fitted(parts.join(""), width)] : [fitted(name, width)];
  const time = microseconds(layer.us);
  if (rows > lines.length && textWidth(time) <= width) lines.push(time);
  return lines.filter(Boolean);
}

/** The first node's name without its operator; a function's, where there is no node. */
function nameOf(kernel) {
  return (kernel.nodes[0] ?? kernel.function).replace(/(.)\/[A-Z]\w*$/, "$1");
}

/** Bars with names, as links: by time, or in the order of launches. */
function bars(profile) {
  // Both of two profiles have one scale.
  const most = Math.max(...profiles.flatMap((one) => one.layers.map((layer) => layer.us)));
  const rows = profile.layers.map((layer) => {
    const own = { "data-kernel": layer.slowest.id };
    const bar = element("i", { class: `bar ${colourOf(layer.slowest)}`, ...own });
    bar.style.width = `${100 * part(layer.us, most)}%`;
    return element("li", {},
      element("a", { href: `#k${layer.slowest.id}`, "data-tip": layerHint(layer), ...own },
        element("span", { class: "name" }, layer.label),
        element("span", { class: "track" }, bar),
        element("span", { class: "value" }, microseconds(layer.us)),
        element("span", { class: "value" }, percent(part(layer.us, profile.kernels_us)))));
  });
  const order = (by) => [...profile.layers.keys()].sort(
    by === "time" ? (a, b) => bySize(profile.layers[a], profile.layers[b]) : (a, b) => a - b);
  const list = element("ol", { class: "bars", tabindex: 0, "aria-label": "Time by layer" });
  const show = (by) => list.replaceChildren(...order(by).map((index) => rows[index]));
  show("time");
  const choice = element("select", { change: (event) => show(event.target.value) },
    element("option", { value: "time" }, "the slowest first"),
    element("option", { value: "order" }, "in their order"));
  return element("div", {}, element("label", { class: "controls" }, "Layers ", choice), list);
}
